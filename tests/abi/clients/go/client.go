// Client is a client over the Go binding. It prints what ../README.md says.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	quire "quire.dev/go"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: client MODEL_DIR")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(path string) error {
	runtime, err := quire.NewRuntime(&quire.RuntimeOptions{Threads: 1})
	if err != nil {
		return err
	}
	defer runtime.Close()
	model, err := runtime.LoadModel(context.Background(), path, nil)
	if err != nil {
		return err
	}
	session, err := model.NewSession(&quire.SessionOptions{Strategy: "dca"})
	if err != nil {
		return err
	}
	if err := answer(session); err != nil {
		return err
	}
	_, err = quire.DescribeStrategy("full(wheels=3)", &quire.StrategyOptions{TrainLen: 4096})
	failure := (*quire.Error)(nil)
	if !errors.As(err, &failure) {
		return fmt.Errorf("no error of the library: %v", err)
	}
	fmt.Println(failure.Code, failure.Offset)
	return nil
}

func answer(session *quire.Session) error {
	if err := session.FeedText("Once upon a time", 0); err != nil {
		return err
	}
	var tokens []string
	finish := quire.Finish(0)
	options := quire.StreamOptions{MaxTokens: 16, Flags: quire.StreamIgnoreEOS}
	for event, err := range session.Generate(context.Background(), &options) {
		if err != nil {
			return err
		}
		finish = event.FinishReason
		if event.Kind == quire.EventToken {
			tokens = append(tokens, fmt.Sprint(event.Token))
		}
	}
	fmt.Println(strings.Join(tokens, " "))
	read, pending, err := session.TokenCounts()
	fmt.Println(strings.ToUpper(finish.String()), read, pending)
	return err
}
