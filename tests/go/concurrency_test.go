package tests

import (
	"context"
	"errors"
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	quire "quire.dev/go"
)

// longPrompt takes seconds to read, in small blocks.
func longPrompt(t *testing.T) *quire.Session {
	s := session(t, quire.SessionOptions{Strategy: "dca", Overflow: quire.OverflowExtrapolate, PrefillBlock: 16})
	must(s.FeedTokens(someIDs(200_000)))
	return s
}

// TestCancelWhileReading has a context end it, from another goroutine.
func TestCancelWhileReading(t *testing.T) {
	s := longPrompt(t)
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan bool)
	go func() {
		<-started
		cancel()
	}()
	var end quire.Event
	var failure error
	for event, err := range s.Generate(ctx, &quire.StreamOptions{MaxTokens: 10}) {
		if started != nil {
			started <- true
			started = nil
		}
		end, failure = event, err
	}
	fails(t, failure, quire.ErrCancelled)
	check(t, "that the context ended it", errors.Is(failure, context.Canceled), true)
	check(t, "how it ended", end.FinishReason, quire.FinishCancelled)
	read, pending, _ := s.TokenCounts()
	check(t, "the number of tokens", read+pending, 200_000)
	check(t, "that some were not read", pending > 0, true)
	check(t, "that it stopped at once", try(s.Probes()).TasksAfterCancel <= 2, true)
	must(s.DiscardPending())
	try(s.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 2, Flags: quire.StreamIgnoreEOS}))

	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, failure = longPrompt(t).Answer(ctx, nil)
	check(t, "that the time ended it", errors.Is(failure, context.DeadlineExceeded), true)
	end = last(drain(t, longPrompt(t), quire.StreamOptions{DeadlineMs: 1}))
	check(t, "how it ended", end.FinishReason, quire.FinishDeadline)
}

func TestCancelAndClose(t *testing.T) {
	s := longPrompt(t)
	stream := try(s.Stream(t.Context(), nil))
	go func() { must(stream.Cancel()) }()
	var end quire.Event
	for event, err := range stream.Events() {
		must(err) // it was no context that cancelled
		end = event
	}
	check(t, "how it ended", end.FinishReason, quire.FinishCancelled)
	stream = try(s.Stream(t.Context(), nil))
	reading := make(chan error)
	go func() {
		for _, err := range stream.Events() {
			reading <- err
		}
		close(reading)
	}()
	must(<-reading)
	go func() { must(stream.Close()) }() // while the other goroutine waits in it
	for err := range reading {
		if err != nil {
			fails(t, err, quire.ErrClosed)
		}
	}
	must(stream.Close())
	fails(t, stream.Cancel(), quire.ErrClosed)
}

func TestPollAndWaitHandle(t *testing.T) {
	stream := try(longPrompt(t).Stream(t.Context(), nil))
	defer stream.Close()
	for {
		_, err := stream.Poll(0)
		if errors.Is(err, quire.StatusTimeout) {
			break // nothing waits
		}
		must(err)
	}
	handle, kind, err := stream.WaitHandle()
	must(err)
	check(t, "its kind", kind, quire.WaitFD)
	readable(t, handle)
	try(stream.Poll(0))
	try(stream.Poll(math.MaxInt64))
}

// TestOneReader has all of the text in one block, which takes seconds.
func TestOneReader(t *testing.T) {
	s := session(t, quire.SessionOptions{Strategy: "dca", Overflow: quire.OverflowExtrapolate, PrefillBlock: 1 << 16})
	must(s.FeedTokens(someIDs(60_000)))
	stream := try(s.Stream(t.Context(), nil))
	defer stream.Close()
	_, err := stream.Poll(-time.Hour)
	check(t, "that a time that is over is no time", errors.Is(err, quire.StatusTimeout), true)
	waited := make(chan error)
	go func() {
		err := error(quire.ErrBusy)
		for errors.Is(err, quire.ErrBusy) {
			_, err = stream.Poll(time.Hour)
		}
		waited <- err
	}()
	for err = quire.StatusTimeout; errors.Is(err, quire.StatusTimeout); {
		_, err = stream.Poll(0)
	}
	fails(t, err, quire.ErrBusy)
	must(stream.Cancel())
	must(<-waited)
}

// TestEightStreams at once give the tokens that each gives alone.
func TestEightStreams(t *testing.T) {
	_, model := shared()
	answer := func(i int) []int32 {
		s := try(model.NewSession(&quire.SessionOptions{Strategy: "dca", Flags: quire.SessionNoPrefixReuse}))
		defer s.Close()
		must(s.FeedTokens(someIDs(300 + 50*i)))
		var tokens []int32
		for event, err := range s.Generate(t.Context(), &quire.StreamOptions{MaxTokens: 40, Flags: quire.StreamIgnoreEOS,
			Temperature: 1, Seed: uint64(i)}) {
			must(err)
			if event.Kind == quire.EventToken {
				tokens = append(tokens, event.Token)
			}
		}
		return tokens
	}
	var group sync.WaitGroup
	var together [8][]int32
	for i := range together {
		group.Add(1)
		go func() {
			defer group.Done()
			together[i] = answer(i)
		}()
	}
	group.Wait()
	for i := range together {
		check(t, "the number of tokens", len(together[i]), 40)
		same(t, "alone", answer(i), together[i])
	}
}

// readable waits until the file descriptor can be read.
func readable(t *testing.T, handle uintptr) {
	t.Helper()
	var set syscall.FdSet
	set.Bits[handle/64] = 1 << (handle % 64)
	n, err := syscall.Select(int(handle)+1, &set, nil, nil, &syscall.Timeval{Sec: 60})
	if err != nil || n != 1 {
		t.Fatalf("select gave %d, %v", n, err)
	}
}
