// Ask answers questions about a document, one a line of standard input. Ctrl-C ends an answer, also while the document is
// being read; between answers it ends the program.
//
//	ask [-strategy auto] [-tokens 200] [-stop TEXT] MODEL DOCUMENT
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	quire "quire.dev/go"
)

func main() {
	log.SetFlags(0)
	strategy := flag.String("strategy", "auto", "how the model reads texts longer than it was trained for")
	tokens := flag.Int64("tokens", 200, "most tokens of an answer")
	stop := flag.String("stop", "", "a text that ends an answer")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: ask [options] MODEL DOCUMENT")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	options := quire.StreamOptions{MaxTokens: *tokens}
	if *stop != "" {
		options.StopStrings = []string{*stop}
	}
	if err := run(flag.Arg(0), flag.Arg(1), *strategy, options); err != nil {
		log.Fatal("ask: ", err)
	}
}

func run(path, document, strategy string, options quire.StreamOptions) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	// What closed sessions have read is kept, so the document is read once.
	runtime, err := quire.NewRuntime(&quire.RuntimeOptions{PrefixCacheBytes: 4 << 30})
	if err != nil {
		return err
	}
	defer runtime.Close()
	model, err := runtime.LoadModel(context.Background(), path, nil)
	if err != nil {
		return err
	}
	questions := bufio.NewScanner(os.Stdin)
	for prompt(); questions.Scan(); prompt() {
		err := answer(model, strategy, string(text), questions.Text(), options)
		switch {
		case errors.Is(err, quire.ErrCancelled):
			fmt.Println("\n(cancelled)")
		case err != nil:
			return err
		default:
			fmt.Println()
		}
	}
	return questions.Err()
}

func prompt() { fmt.Fprint(os.Stderr, "> ") }

func answer(model *quire.Model, strategy, document, question string, options quire.StreamOptions) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	session, err := model.NewSession(&quire.SessionOptions{Strategy: strategy, ExpectedTokens: int64(len(document)/3) + 1000})
	if err != nil {
		return err
	}
	defer session.Close()
	if err := feed(model, session, document, question); err != nil {
		return err
	}
	for event, err := range session.Generate(ctx, &options) {
		fmt.Print(event.Text)
		if err != nil {
			return err
		}
		if event.Kind == quire.EventPrefill {
			fmt.Fprintf(os.Stderr, "\r%d of %d tokens read, %d of them before\n", event.Done+event.Reused, event.Total, event.Reused)
		}
	}
	return nil
}

// feed gives the question in the form that the model was trained for: a message, or a text to be continued.
func feed(model *quire.Model, session *quire.Session, document, question string) error {
	tokenizer, err := model.Tokenizer()
	if err != nil {
		return err
	}
	_, err = tokenizer.ChatTemplate()
	if err == nil {
		return session.FeedMessages([]quire.Message{{Role: "user", Text: document + "\n\n" + question}}, nil)
	}
	if !errors.Is(err, quire.ErrNotFound) {
		return err
	}
	return session.FeedText(document+"\n"+question, 0)
}
