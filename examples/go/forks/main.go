// Forks reads a document once, and answers several questions about it at once, each in a fork of the session.
//
//	forks MODEL DOCUMENT QUESTION...
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"

	quire "quire.dev/go"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 4 {
		log.Fatal("usage: forks MODEL DOCUMENT QUESTION...")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal("forks: ", err)
	}
}

func run(ctx context.Context, path, document string, questions []string) error {
	file, err := os.Open(document)
	if err != nil {
		return err
	}
	defer file.Close()
	runtime, err := quire.NewRuntime(nil)
	if err != nil {
		return err
	}
	defer runtime.Close()
	model, err := runtime.LoadModel(ctx, path, nil)
	if err != nil {
		return err
	}
	session, err := model.NewSession(&quire.SessionOptions{Strategy: "dca"})
	if err != nil {
		return err
	}
	if _, err := session.FeedFrom(file, 0); err != nil {
		return err
	}
	if err := session.Prefill(ctx, 0); err != nil {
		return err
	}
	answers, errs := make([]string, len(questions)), make([]error, len(questions))
	var group sync.WaitGroup
	for i, question := range questions {
		fork, err := session.Fork() // shares what was read
		if err != nil {
			return err
		}
		group.Add(1)
		go func() {
			defer group.Done()
			defer fork.Close()
			answers[i], errs[i] = answer(ctx, fork, question)
		}()
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, question := range questions {
		fmt.Printf("%s%s\n", question, answers[i])
	}
	stats, err := session.Stats()
	fmt.Printf("(the document's %d tokens were read once)\n", stats.Prefilled)
	return err
}

func answer(ctx context.Context, session *quire.Session, question string) (string, error) {
	if err := session.FeedText(question, 0); err != nil {
		return "", err
	}
	return session.Answer(ctx, &quire.StreamOptions{MaxTokens: 40, StopStrings: []string{"\n"}})
}
