// Server answers requests in the form of OpenAI's chat completions, with one model and any number of conversations.
//
//	server [-listen 127.0.0.1:8080] [-strategy auto] [-template NAME] MODEL
//
// What it answers: GET /v1/models, GET /v1/models/NAME, POST /v1/chat/completions. A conversation that is sent again with
// another message is not read again: the library keeps what it has read (prefix reuse), as usage.prompt_tokens_details says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	quire "quire.dev/go"
)

func main() {
	log.SetFlags(0)
	s := &server{started: time.Now().Unix()}
	listen := flag.String("listen", "127.0.0.1:8080", "address and port; port 0: any")
	flag.StringVar(&s.strategy, "strategy", "auto", "how the model reads texts longer than it was trained for")
	flag.StringVar(&s.template, "template", "", "chat template; default: the checkpoint's own")
	flag.Int64Var(&s.maxTokens, "tokens", 512, "most tokens of an answer that does not say how many")
	cache := flag.Int64("cache", 4<<30, "bytes of what finished conversations have read, kept for later ones")
	parallel := flag.Int("parallel", 8, "answers at once; others wait")
	patience := flag.Duration("patience", 30*time.Second, "how long a client may take nothing of its answer before it loses it")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: server [options] MODEL")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || *parallel < 1 || *patience <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	s.turns = make(chan struct{}, *parallel)
	if err := s.run(flag.Arg(0), *listen, *cache, *patience); err != nil {
		log.Fatal("server: ", err)
	}
}

func (s *server) run(path, listen string, cache int64, patience time.Duration) error {
	runtime, err := quire.NewRuntime(&quire.RuntimeOptions{PrefixCacheBytes: cache, Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer runtime.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.model, err = runtime.LoadModel(ctx, path, nil); err != nil {
		return err
	}
	s.name = strings.TrimSuffix(filepath.Base(filepath.Clean(path)), ".gguf")
	if err := s.checkTemplate(); err != nil {
		return fmt.Errorf("the model cannot chat: %w; -template names a template", err)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/v1 serves %s\n", listener.Addr(), s.name)
	// Answers end with the program: their requests' contexts are children of ctx.
	server := &http.Server{Handler: inTime(s.handler(), patience), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		<-ctx.Done()
		_ = server.Shutdown(context.Background())
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// timedWriter gives each write of an answer some time, and not the answer as a whole, whose length nobody knows. Behind a
// write that took too long the request's context is done.
type timedWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

func (w *timedWriter) Write(data []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.patience))
	return w.ResponseWriter.Write(data)
}

// Unwrap is what http.ResponseController asks for.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func inTime(handler http.Handler, patience time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Time{}) // that of the connection's last answer is over
		handler.ServeHTTP(&timedWriter{w, control, patience}, r)
	})
}

// checkTemplate returns the error that every conversation would have.
func (s *server) checkTemplate() error {
	tokenizer, err := s.model.Tokenizer()
	if err != nil {
		return err
	}
	_, err = tokenizer.EncodeChat([]quire.Message{{Role: "user", Text: "Hello"}}, &quire.ChatOptions{TemplateName: s.template})
	return err
}
