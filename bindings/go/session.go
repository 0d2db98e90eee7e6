package quire

// #include <quire/quire.h>
import "C"

import (
	"context"
	"iter"
	"strings"
	"unsafe"
)

// Session is a text that a model has read, and its KV cache. A session may be used from any goroutine, but not from two at
// once, save for Close, Stats, TierStats, TokenCounts, Strategy, Fingerprint and Probes. While a stream is open on it, other
// calls fail with ErrBusy.
type Session struct {
	ref   *reference[*C.quire_session]
	model *Model
	from  *source // what it reads keys and values from, where that is an io.ReaderAt
}

func newSession(m *Model, from *source, pointer *C.quire_session, err error) (*Session, error) {
	if err != nil {
		return nil, err
	}
	ref := own(pointer, func(p *C.quire_session) { C.quire_session_release(p) })
	return &Session{ref: ref, model: m, from: from}, nil
}

// Close ends an open stream, waits, and frees the KV cache.
func (s *Session) Close() error {
	return s.ref.finish(func(p *C.quire_session, e *cError) cStatus { return C.quire_session_close(p, e) })
}

// Fork is another session that stands where this one does, and shares with it what both hold.
func (s *Session) Fork() (*Session, error) {
	var pointer *C.quire_session
	err := s.ref.do(func(p *C.quire_session, e *cError) cStatus { return C.quire_session_fork(p, &pointer, e) })
	return newSession(s.model, s.from, pointer, err)
}

// DiscardPending forgets what was fed and not yet processed.
func (s *Session) DiscardPending() error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus { return C.quire_session_discard_pending(p, e) })
}

// Reset forgets everything.
func (s *Session) Reset() error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus { return C.quire_session_reset(p, e) })
}

// Truncate forgets the tokens from the n-th on, pending ones too.
func (s *Session) Truncate(n int64) error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		return C.quire_session_truncate(p, C.int64_t(n), e)
	})
}

// TokenCounts are the tokens that were read (processed prompt and delivered tokens), and the fed ones that wait.
func (s *Session) TokenCounts() (read, pending int64, err error) {
	var n, waiting C.int64_t
	err = s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		return C.quire_session_get_token_counts(p, &n, &waiting, e)
	})
	return int64(n), int64(waiting), err
}

// Tokens are the ids of all tokens, pending ones last.
func (s *Session) Tokens() ([]int32, error) {
	return results[int32](s.ref, func(p *C.quire_session, buf *C.int32_t, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_session_get_tokens(p, buf, cap, needed, e)
	})
}

// Stats are consistent at a token boundary.
func (s *Session) Stats() (SessionStats, error) {
	var c C.quire_session_stats
	var stats SessionStats
	c.struct_size = C.uint32_t(unsafe.Sizeof(c))
	err := s.ref.do(func(p *C.quire_session, e *cError) cStatus { return C.quire_session_get_stats(p, &c, e) })
	stats.fill(&c)
	return stats, err
}

// TierStats are those of one tier of the KV cache; zeros for a tier that the session does not have.
func (s *Session) TierStats(tier Tier) (TierStats, error) {
	var c C.quire_tier_stats
	var stats TierStats
	c.struct_size = C.uint32_t(unsafe.Sizeof(c))
	err := s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		return C.quire_session_get_tier_stats(p, C.int32_t(tier), &c, e)
	})
	stats.fill(&c)
	return stats, err
}

// Strategy is the session's strategy in canonical form; for auto, the chosen one.
func (s *Session) Strategy() (string, error) {
	return text(s.ref, func(p *C.quire_session, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_session_get_strategy(p, buf, cap, needed, e)
	})
}

// Fingerprint names all that keys and values depend on beside the tokens: 32 hexadecimal digits.
func (s *Session) Fingerprint() (string, error) {
	return text(s.ref, func(p *C.quire_session, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_session_get_fingerprint(p, buf, cap, needed, e)
	})
}

// Generate opens a stream, yields its events, and closes it, also where the loop is left early. A failure is the last
// pair's error. When ctx is done, the stream is cancelled, and the last pair is the end event with an error that says why.
func (s *Session) Generate(ctx context.Context, options *StreamOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		stream, err := s.Stream(ctx, options)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer stream.Close()
		stream.Events()(yield)
	}
}

// Prefill processes what was fed, and generates nothing. flags: what to keep for Scores, Logits and HiddenStates.
func (s *Session) Prefill(ctx context.Context, flags StreamFlags) error {
	_, err := s.Answer(ctx, &StreamOptions{Flags: flags})
	return err
}

// Answer is the text of a whole stream; with an error that which came before.
func (s *Session) Answer(ctx context.Context, options *StreamOptions) (string, error) {
	var answer strings.Builder
	for event, err := range s.Generate(ctx, options) {
		answer.WriteString(event.Text)
		if err != nil {
			return answer.String(), err
		}
	}
	return answer.String(), nil
}
