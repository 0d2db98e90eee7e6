package quire

// #include <quire/quire.h>
import "C"

import "unsafe"

// What a session keeps of its last stream: logits, scores, embeddings, and where the answer looked.

// Logits are raw logits (before sampling): `rows` rows of vocab_size numbers, the first one computed after token first; -1:
// the last processed token. Errors: ErrNotFound (not kept: StreamKeepLogits keeps those of all tokens).
func (s *Session) Logits(first, rows int64) ([]float32, error) {
	return results[float32](s.ref, func(p *C.quire_session, buf *C.float, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_session_get_logits(p, C.int64_t(first), C.int64_t(rows), buf, cap, needed, e)
	})
}

// ReadLogits is Logits into memory that is there already; ErrBufferTooSmall if it is too short.
func (s *Session) ReadLogits(into []float32, first, rows int64) error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		data, n := items[C.float](into)
		return C.quire_session_get_logits(p, C.int64_t(first), C.int64_t(rows), data, n, nil, e)
	})
}

// Scores are log p of n tokens from the first one on, after a stream with StreamScore; NaN where the logits before a token
// are not known.
func (s *Session) Scores(first, n int64) ([]float32, error) {
	return results[float32](s.ref, func(p *C.quire_session, buf *C.float, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_session_get_scores(p, C.int64_t(first), C.int64_t(n), buf, cap, needed, e)
	})
}

// HiddenStates are embeddings: `rows` rows of hidden_size floats, after a stream with StreamKeepHidden.
func (s *Session) HiddenStates(first, rows int64) ([]float32, error) {
	return results[float32](s.ref, func(p *C.quire_session, buf *C.float, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_session_get_hidden_states(p, C.int64_t(first), C.int64_t(rows), buf, cap, needed, e)
	})
}

// LabelAttention says for each label, in the order fed, how the last answer's choices of chunks fell on it. Errors:
// ErrUnsupported (a strategy that chooses no chunks).
func (s *Session) LabelAttention() ([]LabelAttention, error) {
	return results[LabelAttention](s.ref,
		func(p *C.quire_session, buf *C.quire_label_attention, cap cSize, needed *cSize, e *cError) cStatus {
			return C.quire_session_get_label_attention(p, buf, cap, needed, e)
		})
}

// Passages are what n tokens of the last answer from the first one on looked at most, the greatest share first, at most
// `most` of them (1 to 1024); first -1 with n 0: all of the answer. It needs a stream with StreamCite.
func (s *Session) Passages(first, n int64, most int32) ([]Passage, error) {
	return results[Passage](s.ref, func(p *C.quire_session, buf *C.quire_passage, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_session_get_passages(p, C.int64_t(first), C.int64_t(n), C.int32_t(most), buf, cap, needed, e)
	})
}

// LabelShares are the same shares by label, for each label in the order fed.
func (s *Session) LabelShares(first, n int64) ([]LabelAttention, error) {
	return results[LabelAttention](s.ref,
		func(p *C.quire_session, buf *C.quire_label_attention, cap cSize, needed *cSize, e *cError) cStatus {
			return C.quire_session_get_label_shares(p, C.int64_t(first), C.int64_t(n), buf, cap, needed, e)
		})
}

// Probes are what tests of cancelling look at. Experimental.
func (s *Session) Probes() (SessionProbes, error) {
	var c C.quire_session_probes
	var probes SessionProbes
	c.struct_size = C.uint32_t(unsafe.Sizeof(c))
	err := s.ref.do(func(p *C.quire_session, e *cError) cStatus { return C.quire_session_get_probes(p, &c, e) })
	probes.fill(&c)
	return probes, err
}
