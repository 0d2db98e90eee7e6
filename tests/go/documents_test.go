package tests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	quire "quire.dev/go"
)

func TestFeedingAReader(t *testing.T) {
	text := strings.Repeat("Every chapter began with a map. ", 100)
	whole, read := session(t, quire.SessionOptions{Strategy: "dca"}), session(t, quire.SessionOptions{Strategy: "dca"})
	must(whole.FeedText(text, 0))
	n := try(read.FeedFrom(iotest.OneByteReader(strings.NewReader(text)), 0))
	check(t, "the length", n, int64(len(text)))
	same(t, "tokens", try(read.Tokens()), try(whole.Tokens()))
	torn := errors.New("torn")
	_, err := read.FeedFrom(io.MultiReader(strings.NewReader("a"), iotest.ErrReader(torn)), 0)
	check(t, "the error", err, torn)
	same(t, "tokens", try(read.Tokens()), try(whole.Tokens()))
	_, err = read.FeedFrom(bytes.NewReader([]byte{0xff}), 0)
	fails(t, err, quire.ErrInvalidText)
	must(read.Reset())
	must(read.FeedText("", 0)) // BOS alone
	positions := session(t, quire.SessionOptions{})
	must(positions.FeedPositions([]int32{5, 6}, []int64{9, 11}))
	_, pending, _ := positions.TokenCounts()
	check(t, "what is pending", pending, 2)
}

func TestForks(t *testing.T) {
	s := fed(t, "Every chapter began with a map.")
	must(s.Prefill(t.Context(), 0))
	fork := try(s.Fork())
	same(t, "the fork's tokens", try(fork.Tokens()), try(s.Tokens()))
	options := quire.StreamOptions{MaxTokens: 10, Flags: quire.StreamIgnoreEOS}
	answer := try(s.Answer(t.Context(), &options))
	must(s.Close())
	check(t, "the fork's answer", try(fork.Answer(t.Context(), &options)), answer)
	check(t, "the fork's fingerprint", len(try(fork.Fingerprint())), 32)
	must(fork.Close())
}

func TestPassages(t *testing.T) {
	text, labels := "", []quire.Label{}
	for i := range 12 {
		begin := int64(len(text))
		text += fmt.Sprintf("page %d tells of the number %d and of nothing else. ", i, i*7)
		labels = append(labels, quire.Label{Begin: begin, End: int64(len(text)), ID: int64(50 + i)})
	}
	s := session(t, quire.SessionOptions{Strategy: "dca"})
	must(s.FeedLabelled(text, 0, labels))
	_, document, _ := s.TokenCounts()
	must(s.FeedText("which number is it? ", 0))
	drain(t, s, quire.StreamOptions{MaxTokens: 4, Flags: quire.StreamCite | quire.StreamIgnoreEOS, CiteEnd: document})
	passages := try(s.Passages(-1, 0, 3))
	check(t, "the number of passages", len(passages), 3)
	tokenizer := try(sharedModel().Tokenizer())
	for _, p := range passages {
		spelt := try(tokenizer.Decode(try(s.Tokens())[p.FirstToken:p.FirstToken+p.Tokens], 0))
		check(t, "a passage", strings.TrimSpace(spelt), strings.TrimSpace(text[p.Begin:p.End]))
		check(t, "its label", p.LabelID, 50+p.Label)
	}
	sum := 0.0
	for i, label := range try(s.LabelShares(-1, 0)) {
		check(t, "a label", label.ID, int64(50+i))
		sum += label.Share
	}
	check(t, "that the shares are one", sum > 0.999 && sum < 1.001, true)
	chosen := session(t, quire.SessionOptions{Strategy: "longheads(chunk=16, chunks=4)"})
	must(chosen.FeedLabelled(text, 0, labels))
	drain(t, chosen, quire.StreamOptions{MaxTokens: 2, Flags: quire.StreamIgnoreEOS})
	check(t, "the number of labels", len(try(chosen.LabelAttention())), 12)
}

func TestWindowsOfSomeLayers(t *testing.T) {
	model := try(try(quire.NewRuntime(nil)).LoadModel(t.Context(), filepath.Join(filepath.Dir(tinyModel), "qwen2_window_layers"), nil))
	for _, flags := range []quire.SessionFlags{0, quire.SessionKeepBehindWindows} {
		s := try(model.NewSession(&quire.SessionOptions{Strategy: "full(kv_chunk=16)", Flags: flags}))
		must(s.FeedTokens(slices.Repeat([]int32{5}, 240)))
		must(s.Prefill(t.Context(), 0))
		check(t, "whether all is kept", try(s.Stats()).KVChunksDropped == 0, flags != 0)
		must(s.Close())
	}
	must(model.Close())
}

func TestEdits(t *testing.T) {
	old := make([]int32, 200)
	for i := range old {
		old[i] = int32(3 + (i*i*i+7*i)%299)
	}
	changed := append(append([]int32{}, old[:80]...), old[100:]...)
	s := session(t, quire.SessionOptions{Strategy: "dca(kv_chunk=16)", Flags: quire.SessionNoPrefixReuse})
	must(s.FeedTokens(old))
	must(s.Prefill(t.Context(), 0))
	exact := try(s.Fork())
	defer exact.Close()
	check(t, "an exact edit", try(exact.EditTokens(changed, nil)), quire.EditResult{Tokens: 180, Kept: 80})
	check(t, "an approximate one", try(s.EditTokens(changed, &quire.EditOptions{Reuse: quire.EditApproximate})),
		quire.EditResult{Tokens: 180, Kept: 80, Moved: 96})
	must(s.Prefill(t.Context(), 0))
	check(t, "what was moved", try(s.Stats()).Moved, 96)
	check(t, "a new text", try(s.EditText("The sky is grey.", &quire.EditOptions{Labels: []quire.Label{{End: 7, ID: 1}}})).Kept, 0)
}

func TestTiers(t *testing.T) {
	s := session(t, quire.SessionOptions{KVHostBudgetBytes: 60_000, KVFileDirectory: t.TempDir(), PrefillBlock: 16})
	must(s.FeedTokens(someIDs(200)))
	must(s.Prefill(t.Context(), 0))
	host, file := try(s.TierStats(quire.TierHost)), try(s.TierStats(quire.TierFile))
	check(t, "that the budget holds", host.BytesPeak <= host.BudgetBytes, true)
	check(t, "that some went to the file", file.BytesWritten > 0, true)
	_, err := s.TierStats(99)
	fails(t, err, quire.ErrInvalidArgument)
	random := session(t, quire.SessionOptions{Overflow: quire.OverflowExtrapolate})
	must(random.FillRandom(500, 1))
	drain(t, random, quire.StreamOptions{MaxTokens: 1})
}

func TestPrefixCache(t *testing.T) {
	r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 2, PrefixCacheBytes: 1 << 30}))
	defer r.Close()
	model := try(r.LoadModel(t.Context(), tinyModel, nil))
	for _, wanted := range []int64{0, 288} {
		s := try(model.NewSession(&quire.SessionOptions{Strategy: "dca(kv_chunk=32)"}))
		must(s.FeedTokens(someIDs(300)))
		must(s.Prefill(t.Context(), 0))
		check(t, "what was reused", try(s.Stats()).Reused, wanted)
		must(s.Close())
		check(t, "what the runtime counts", try(r.Stats()).PrefixCacheTokens, wanted)
	}
}
