package tests

import (
	"context"
	"errors"
	"io"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	quire "quire.dev/go"
)

const line = "The reader turns the leaves"

func ids(t *testing.T, options quire.StreamOptions) []int32 {
	t.Helper()
	options.MaxTokens, options.Flags = 12, options.Flags|quire.StreamIgnoreEOS
	return tokensOf(drain(t, fed(t, line), options))
}

func same(t *testing.T, what string, found, wanted any) {
	t.Helper()
	if !reflect.DeepEqual(found, wanted) {
		t.Fatalf("%s: %v is not %v", what, found, wanted)
	}
}

func TestEvents(t *testing.T) {
	s := fed(t, line)
	_, prompt, _ := s.TokenCounts()
	text := ""
	for _, event := range drain(t, s, quire.StreamOptions{MaxTokens: 5, Flags: quire.StreamIgnoreEOS, TopLogprobs: 3}) {
		text += event.Text
		switch event.Kind {
		case quire.EventPrefill:
			check(t, "what was read", event.Done+event.Reused <= event.Total, true)
		case quire.EventToken:
			check(t, "the number of candidates", len(event.TopLogprobs), 3)
			check(t, "the best", event.TopLogprobs[0], quire.TokenLogprob{Token: event.Token, Logprob: event.Logprob})
		case quire.EventEnd:
			check(t, "how it ended", event.FinishReason, quire.FinishMaxTokens)
			check(t, "the session's length", event.SessionTokens, prompt+5)
		default:
			t.Errorf("an event of kind %v", event.Kind)
		}
	}
	check(t, "that there is a text", text != "", true)
	auto := session(t, quire.SessionOptions{Strategy: "auto", ExpectedTokens: 100})
	must(auto.FeedText(line, 0))
	notice := drain(t, auto, quire.StreamOptions{MaxTokens: 1})[0]
	check(t, "the first event", notice.Kind, quire.EventNotice)
	check(t, "its code", notice.Code, quire.NoticeAutoChoice)
	check(t, "its message", strings.Contains(notice.Message, try(auto.Strategy())), true)
}

func TestChoosingTokens(t *testing.T) {
	greedy := ids(t, quire.StreamOptions{})
	best := quire.Sampler{Kind: quire.SamplerTopK, N: 1}
	same(t, "a chain", ids(t, quire.StreamOptions{Seed: 4, Samplers: []quire.Sampler{
		{Kind: quire.SamplerTemperature, A: 0.9}, {Kind: quire.SamplerTopK, N: 30}}}),
		ids(t, quire.StreamOptions{Temperature: 0.9, TopK: 30, Seed: 4}))
	same(t, "drafts", ids(t, quire.StreamOptions{DraftTokens: 8, DraftMatch: 1}), greedy)
	same(t, "ahead", ids(t, quire.StreamOptions{MaxUndelivered: 8}), greedy)
	without := ids(t, quire.StreamOptions{LogitBias: []quire.LogitBias{{Token: greedy[0], Bias: float32(math.Inf(-1))}}})
	check(t, "that a token is not chosen", slices.Contains(without, greedy[0]), false)
	once := ids(t, quire.StreamOptions{Samplers: []quire.Sampler{{Kind: quire.SamplerPenalties, A: 1, C: 1000}, best}})
	slices.Sort(once)
	check(t, "that no token comes twice", len(slices.Compact(once)), 12)
	for _, breakers := range [][]string{nil, {}, {"\n", "e"}} {
		check(t, "the length", len(ids(t, quire.StreamOptions{DRYBreakers: breakers, Samplers: []quire.Sampler{
			{Kind: quire.SamplerDRY, A: 0.8, B: 1.75, M: 2}, best}})), 12)
	}
	_, err := fed(t, line).Answer(t.Context(), &quire.StreamOptions{MaxTokens: 1, LogitBias: []quire.LogitBias{{Token: 320}}})
	fails(t, err, quire.ErrInvalidToken)
}

func TestStopping(t *testing.T) {
	greedy := ids(t, quire.StreamOptions{})
	s := fed(t, line)
	events := drain(t, s, quire.StreamOptions{MaxTokens: 12, StopIDs: []int32{greedy[3]}, Flags: quire.StreamIgnoreEOS})
	check(t, "how it ended", last(events).FinishReason, quire.FinishStopID)
	check(t, "the token that ended it", last(events).Token, greedy[3])
	whole := try(fed(t, line).Answer(t.Context(), &quire.StreamOptions{MaxTokens: 12, Flags: quire.StreamIgnoreEOS}))
	stop := whole[len(whole)/2:]
	events = drain(t, fed(t, line), quire.StreamOptions{MaxTokens: 12, StopStrings: []string{"never this, surely", stop},
		Flags: quire.StreamIgnoreEOS})
	check(t, "how it ended", last(events).FinishReason, quire.FinishStopString)
	check(t, "which text", last(events).StopIndex, 1)

	stream := try(fed(t, line).Stream(t.Context(), &quire.StreamOptions{MaxTokens: 12, Flags: quire.StreamIgnoreEOS, MaxUndelivered: 8}))
	defer stream.Close()
	event := quire.Event{}
	for event.Kind != quire.EventToken {
		event = try(stream.Next())
	}
	must(stream.AddStopIDs(greedy[5]))
	must(stream.AddStopStrings("never this, surely"))
	for event, err := range stream.Events() {
		must(err)
		if event.Kind == quire.EventEnd {
			check(t, "how it ended", event.FinishReason, quire.FinishStopID)
		}
	}
	_, err := stream.Next()
	check(t, "what comes behind the end", err, io.EOF)
}

func TestAllowing(t *testing.T) {
	stream := try(fed(t, line).Stream(t.Context(), &quire.StreamOptions{MaxTokens: 3, Flags: quire.StreamIgnoreEOS | quire.StreamConstrain}))
	defer stream.Close()
	for _, allowed := range [][]int32{{300, 301}, {17}, nil} {
		must(stream.Allow(allowed...))
		event := quire.Event{}
		for event.Kind != quire.EventToken {
			event = try(stream.Next())
		}
		check(t, "that it was allowed", allowed == nil || slices.Contains(allowed, event.Token), true)
	}
	fails(t, stream.Allow(320), quire.ErrInvalidToken)
}

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
	try(stream.Poll(time.Hour))
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
			if i == 0 {
				runtime.Gosched()
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

func TestLogitsScoresAndEmbeddings(t *testing.T) {
	s := session(t, quire.SessionOptions{KVType: quire.TypeF32})
	prompt := []int32{1, 300, 301, 302, 303, 304}
	must(s.FeedTokens(prompt))
	must(s.Prefill(t.Context(), quire.StreamScore|quire.StreamKeepLogits|quire.StreamKeepHidden))
	logits, scores, states := try(s.Logits(0, 6)), try(s.Scores(0, 6)), try(s.HiddenStates(0, 6))
	check(t, "the number of logits", len(logits), 6*320)
	check(t, "the first score", math.IsNaN(float64(scores[0])), true)
	check(t, "the number of hidden numbers", len(states), 6*int(try(sharedModel().Info()).HiddenSize))
	for i := range 5 {
		sum := 0.0
		for _, value := range logits[i*320 : (i+1)*320] {
			sum += math.Exp(float64(value))
		}
		wanted := float64(logits[i*320+int(prompt[i+1])]) - math.Log(sum)
		check(t, "that logits and score agree", math.Abs(wanted-float64(scores[i+1])) < 1e-4, true)
	}
	row := make([]float32, 320)
	must(s.ReadLogits(row, -1, 1))
	same(t, "the last row", row, logits[5*320:])
	must(s.Reset())
	_, err := s.Logits(-1, 1)
	fails(t, err, quire.ErrNotFound)
}
