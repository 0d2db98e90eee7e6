// Package tests has the tests of the Go binding. They are outside of the module, as its users are.
package tests

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	quire "quire.dev/go"
)

// source is the root of the repository.
var source = func() string {
	path, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return path
}()

var (
	tinyModel = filepath.Join(source, "tests/golden/models/text_256")
	adapters  = filepath.Join(source, "tests/golden/adapters")
)

// shared is the runtime and the model of tests that need none of their own.
var shared = sync.OnceValues(func() (*quire.Runtime, *quire.Model) {
	runtime := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 2}))
	return runtime, try(runtime.LoadModel(context.Background(), tinyModel, nil))
})

// try returns what a call gives that must succeed.
func try[T any](value T, err error) T {
	must(err)
	return value
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// check fails the test if what was found is not what was wanted.
func check[T comparable](t *testing.T, what string, found, wanted T) {
	t.Helper()
	if found != wanted {
		t.Fatalf("%s is %v, not %v", what, found, wanted)
	}
}

// fails fails the test if the error is not a *quire.Error of this status.
func fails(t *testing.T, err error, status quire.Status) *quire.Error {
	t.Helper()
	found := (*quire.Error)(nil)
	if !errors.Is(err, status) || !errors.As(err, &found) || found.Message == "" {
		t.Fatalf("the error is %v, not %v", err, status)
	}
	return found
}

func sharedModel() *quire.Model {
	_, model := shared()
	return model
}

// session has these options, and is closed with the test.
func session(t *testing.T, options quire.SessionOptions) *quire.Session {
	t.Helper()
	s, err := sharedModel().NewSession(&options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// fed is a session with DCA that was given a text.
func fed(t *testing.T, text string) *quire.Session {
	t.Helper()
	s := session(t, quire.SessionOptions{Strategy: "dca"})
	must(s.FeedText(text, 0))
	return s
}

// someIDs are n ids of text that never repeats soon.
func someIDs(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(3 + i%300)
	}
	return ids
}

// drain takes all events of a stream and closes it.
func drain(t *testing.T, s *quire.Session, options quire.StreamOptions) []quire.Event {
	t.Helper()
	var events []quire.Event
	for event, err := range s.Generate(t.Context(), &options) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}

func tokensOf(events []quire.Event) []int32 {
	var ids []int32
	for _, event := range events {
		if event.Kind == quire.EventToken {
			ids = append(ids, event.Token)
		}
	}
	return ids
}

func last[T any](values []T) T { return values[len(values)-1] }

func readFile(path string) []byte { return try(os.ReadFile(path)) }
