package tests

import (
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

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

// TestResultsThatAreTooLarge cannot be allocated; what is not kept is not allocated at all.
func TestResultsThatAreTooLarge(t *testing.T) {
	s := fed(t, line)
	for _, ask := range []func(first, n int64) ([]float32, error){s.Logits, s.Scores, s.HiddenStates} {
		_, err := ask(0, 1<<50)
		fails(t, err, quire.ErrNotFound)
	}
	view := quire.PositionView{Queries: 1 << 24, Keys: 1 << 24}
	_, err := quire.StrategyPositions("dca", &quire.StrategyOptions{TrainLen: 1000}, &view)
	fails(t, err, quire.ErrOutOfMemory)
}
