package tests

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	quire "quire.dev/go"
	"quire.dev/go/tests/cmalloc"
)

// until collects garbage until a condition holds; the test's time limit ends it otherwise.
func until(holds func() bool) {
	for !holds() {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{{}}
	}
	var all [][]int
	for _, shorter := range permutations(n - 1) {
		for i := 0; i <= len(shorter); i++ {
			all = append(all, slices.Insert(slices.Clone(shorter), i, n-1))
		}
	}
	return all
}

// TestHandlesMayGoInAnyOrder drops all handles of a runtime in each order, one half of the times to the collector, whose
// cleanups run on a goroutine of their own, and the other half by closing.
func TestHandlesMayGoInAnyOrder(t *testing.T) {
	for i, order := range permutations(5) {
		memory := newMemory()
		r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1, Allocator: memory}))
		model := try(r.LoadModel(t.Context(), tinyModel, nil))
		tokenizer := try(model.Tokenizer())
		s := try(model.NewSession(nil))
		must(s.FeedTokens(try(tokenizer.Encode("Rain fell on the harbour", 0))))
		stream := try(s.Stream(t.Context(), &quire.StreamOptions{MaxTokens: 3, Flags: quire.StreamIgnoreEOS}))
		closing := i%2 == 0
		drop := []func(){
			func() { r = nil }, // closing a runtime would end the others
			func() { ifClosing(closing, model); model = nil },
			func() { ifClosing(closing, tokenizer); tokenizer = nil },
			func() { ifClosing(closing, s); s = nil },
			func() { ifClosing(closing, stream); stream = nil },
		}
		for _, which := range order {
			drop[which]()
			if stream != nil && s != nil {
				if _, err := stream.Next(); err != nil && err.Error() != "EOF" {
					t.Fatal(err)
				}
			}
			runtime.GC()
		}
		until(func() bool { return memory.held() == 0 })
	}
}

func ifClosing(closing bool, handle interface{ Close() error }) {
	if closing {
		must(handle.Close())
	}
}

// TestAThousandSessions makes and forgets them, and all of their memory comes back, C's and Go's.
func TestAThousandSessions(t *testing.T) {
	memory := newMemory()
	r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1, Allocator: memory}))
	defer r.Close()
	model := try(r.LoadModel(t.Context(), tinyModel, nil))
	options := &quire.SnapshotOptions{Progress: func(int64, int64) {}}
	use := func() (*quire.Session, *quire.Session) {
		s := try(model.NewSession(&quire.SessionOptions{Strategy: "dca"}))
		must(s.FeedText("Rain fell on the harbour", 0))
		try(s.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 2}))
		must(s.SaveTo(t.Context(), io.Discard, options))
		return s, try(s.Fork())
	}
	s, fork := use()
	must(s.Close())
	must(fork.Close())
	held := memory.held() // the model, and its working memory
	forget := func() {
		for range 1000 {
			use()
		}
		until(func() bool { return memory.held() == held })
		runtime.GC()
	}
	forget() // what the first ones need stays
	// Of sizes that vary a little: what each session left, were it a hundred bytes, would be seen every time.
	grown := int64(1 << 40)
	for round := 0; round < 5 && grown > 50_000; round++ {
		before := inUse()
		forget()
		grown = inUse() - before
	}
	if grown > 50_000 {
		t.Errorf("a thousand sessions leave %d bytes", grown)
	}
	runtime.KeepAlive(model)
}

// inUse is how many bytes are allocated in C's heap and Go's.
func inUse() int64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) + cmalloc.InUse()
}

func TestCloseEndsEverything(t *testing.T) {
	r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1}))
	model := try(r.LoadModel(t.Context(), tinyModel, nil))
	s := try(model.NewSession(&quire.SessionOptions{Strategy: "dca", PrefillBlock: 16}))
	must(s.FeedTokens(someIDs(100_000)))
	stream := try(s.Stream(t.Context(), nil))
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		var event quire.Event
		var err error
		for event, err = range stream.Events() {
		}
		if err == nil && event.FinishReason != quire.FinishCancelled || err != nil && !errors.Is(err, quire.ErrClosed) {
			t.Errorf("the stream ended with %+v, %v", event, err)
		}
	}()
	must(r.Close())
	must(r.Close())
	group.Wait()
	_, err := stream.Next()
	fails(t, err, quire.ErrClosed)
	_, err = model.NewSession(nil)
	fails(t, err, quire.ErrClosed)
	must(stream.Close())
	must(s.Close())
	must(model.Close())
	_, err = model.Info()
	fails(t, err, quire.ErrClosed)
	must(model.Close())
}

// TestAStreamIsCollected has a context that outlives the stream, and must not keep it.
func TestAStreamIsCollected(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := fed(t, "Rain fell")
	_ = try(s.Stream(ctx, &quire.StreamOptions{MaxTokens: 1 << 30, Flags: quire.StreamIgnoreEOS}))
	until(func() bool {
		err := s.FeedText("more", 0) // BUSY while the stream lives
		if err != nil && !errors.Is(err, quire.ErrBusy) {
			t.Error(err)
		}
		return err == nil
	})
}

// TestAHandleStaysUntilItsMethodReturns lets the collector run while a method waits in C for an object that nothing else
// holds.
func TestAHandleStaysUntilItsMethodReturns(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				collect()
			}
		}
	}()
	r, _ := shared()
	text := strings.Repeat("Rain fell on the harbour. ", 20_000)
	for range 5 {
		if _, err := try(r.LoadTokenizer(tinyModel)).Encode(text, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func collect() {
	runtime.GC()
	time.Sleep(time.Millisecond) // cleanups run on another goroutine
}

// TestCloseFromSeveralGoroutines succeeds in each of them.
func TestCloseFromSeveralGoroutines(t *testing.T) {
	_, model := shared()
	for range 2000 {
		s := try(model.NewSession(nil))
		var closers sync.WaitGroup
		for range 32 {
			closers.Add(1)
			go func() {
				defer closers.Done()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
		}
		closers.Wait()
	}
}
