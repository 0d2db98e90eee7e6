/*
Package quire runs language models that read long documents. It is a thin layer over Quire's C interface, quire.h, which is
the manual: each method is one call, and a type named after a struct of C has its fields and comments.

	runtime, err := quire.NewRuntime(nil)
	model, err := runtime.LoadModel(ctx, "path/to/model", nil)
	session, err := model.NewSession(&quire.SessionOptions{Strategy: "dca"})
	_, err = session.FeedFrom(file, 0)
	err = session.FeedText("\n\nWho narrates the first chapter?\n", 0)
	for event, err := range session.Generate(ctx, &quire.StreamOptions{MaxTokens: 200}) {
		if err != nil {
			return err
		}
		fmt.Print(event.Text)
	}

# Options

Zero in any field means its default, and so does nil for the struct. Names of constants are those of C, without QUIRE_.

# Lifetime

Close gives memory back at once, and may be deferred; an object that is not closed is given back when Go collects it.
Handles keep their parents alive, so the order does not matter. Runtime.Close, Session.Close and Stream.Close wait for
the work they end; a second Close does nothing, and other calls fail with ErrClosed.

# Goroutines

Runtime, Model, Tokenizer, Adapter and Store may be used from several goroutines at once; Session and Stream from any, but
from one at a time. A goroutine that waits for an event holds a thread of the system. A context that is done cancels a call
that takes one, in the middle of reading a long document too, and the session stays as it was at the last token.

# Callbacks

Loggers, progress functions, readers, writers and allocators run on threads of the library or inside a call, and must not
call Quire. A panic of one never crosses C: what becomes of it is said where each is set. None may end its goroutine
(runtime.Goexit, also by FailNow and Fatal of a test): Go would leave C in the middle of its call.
*/
package quire
