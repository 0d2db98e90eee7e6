package quire

// #include <quire/quire.h>
import "C"

import (
	"io"
	"strings"
	"unsafe"
)

// FeedText queues one segment of text; nothing is computed until a stream is opened. Tokens never span two calls.
// Errors: ErrInvalidText, ErrInvalidArgument, ErrBusy, ErrClosed, ErrOutOfMemory.
func (s *Session) FeedText(text string, flags TextFlags) error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		return C.quire_session_feed_text(p, chars(text), length(text), C.uint32_t(flags), e)
	})
}

// FeedFrom reads a document to its end and queues it as one segment. It returns the document's length in bytes.
func (s *Session) FeedFrom(document io.Reader, flags TextFlags) (int64, error) {
	var text strings.Builder
	n, err := io.Copy(&text, document)
	if err != nil {
		return n, err
	}
	return n, s.FeedText(text.String(), flags)
}

// FeedLabelled is FeedText with names for parts of the text, which LabelShares, Passages and LabelAttention return.
func (s *Session) FeedLabelled(text string, flags TextFlags, labels []Label) error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		data, n := items[C.quire_label](labels)
		return C.quire_session_feed_labelled(p, chars(text), length(text), C.uint32_t(flags), data, n, e)
	})
}

// FeedTokens queues ids as they are.
func (s *Session) FeedTokens(ids []int32) error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		data, n := items[C.int32_t](ids)
		return C.quire_session_feed_tokens(p, data, n, e)
	})
}

// FeedPositions queues ids at positions of their own, strictly increasing and one for each id.
func (s *Session) FeedPositions(ids []int32, positions []int64) error {
	if len(ids) != len(positions) {
		return &Error{Code: ErrInvalidArgument, Message: "there must be as many positions as ids", Offset: -1}
	}
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		data, n := items[C.int32_t](ids)
		places, _ := items[C.int64_t](positions)
		return C.quire_session_feed_positions(p, data, places, n, e)
	})
}

// EditText makes the session's text another one. What was computed before the first difference stays, and with
// EditApproximate later chunks too. options may be nil.
func (s *Session) EditText(text string, options *EditOptions) (EditResult, error) {
	return s.edit(options, func(p *C.quire_session, c *C.quire_edit_options, r *C.quire_edit_result, e *cError) cStatus {
		return C.quire_session_edit_text(p, chars(text), length(text), c, r, e)
	})
}

// EditTokens is EditText with ids as they are.
func (s *Session) EditTokens(ids []int32, options *EditOptions) (EditResult, error) {
	return s.edit(options, func(p *C.quire_session, c *C.quire_edit_options, r *C.quire_edit_result, e *cError) cStatus {
		data, n := items[C.int32_t](ids)
		return C.quire_session_edit_tokens(p, data, n, c, r, e)
	})
}

func (s *Session) edit(options *EditOptions,
	f func(*C.quire_session, *C.quire_edit_options, *C.quire_edit_result, *cError) cStatus) (EditResult, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	var found C.quire_edit_result
	var result EditResult
	C.quire_edit_result_init(&found, C.size_t(unsafe.Sizeof(found)))
	err := s.ref.do(func(p *C.quire_session, e *cError) cStatus { return f(p, c, &found, e) })
	result.fill(&found)
	return result, err
}

// FillRandom makes an empty session one of n random tokens without computing them. For benchmarks; experimental.
func (s *Session) FillRandom(n int64, seed uint64) error {
	return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
		return C.quire_session_fill_random(p, C.int64_t(n), C.uint64_t(seed), e)
	})
}
