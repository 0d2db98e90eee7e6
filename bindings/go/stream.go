package quire

// #include "callbacks.h"
import "C"

import (
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
	"weak"
)

// Stream is one computation on a session: it processes what was fed, and then generates. One goroutine at a time reads it
// (another one is told ErrBusy); Cancel, Close, AddStopIDs and AddStopStrings may be called from any other meanwhile.
type Stream struct {
	ref  *reference[*C.quire_stream]
	ctx  context.Context
	step *C.quire_go_step // freed with the reference
	from *source

	vocabSize int32
	waiting   atomic.Bool // a goroutine is in wait
	yielded   time.Time   // when the goroutine last let others run
}

// yieldEvery is less than the 10 ms after which Go takes a goroutine's place from it that was never rescheduled. It does so
// in the middle of calls of C, over and over, and keeps a thread awake for that: a tenth of a small model's tokens a second.
const yieldEvery = 4 * time.Millisecond

// Stream starts to process the pending tokens and then to generate, and returns at once. When ctx is done, the stream is
// cancelled, while it reads too. options may be nil: nothing is generated then. Errors: ErrOverflow, ErrEmpty,
// ErrInvalidArgument, ErrInvalidText, ErrInvalidToken, ErrBusy, ErrClosed, ErrOutOfMemory, ErrCancelled.
func (s *Session) Stream(ctx context.Context, options *StreamOptions) (*Stream, error) {
	if by := doneBy(ctx); by != nil {
		return nil, cancelled(by)
	}
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	var pointer *C.quire_stream
	_ = s.from.failure() // that of an earlier call
	err := s.ref.do(func(p *C.quire_session, e *cError) cStatus { return C.quire_stream_open(p, c, &pointer, e) })
	if err != nil {
		return nil, err
	}
	step := (*C.quire_go_step)(C.calloc(1, C.size_t(unsafe.Sizeof(C.quire_go_step{}))))
	C.quire_event_init(&step.event, C.size_t(unsafe.Sizeof(step.event)))
	forget := func() bool { return true }
	ref := own(pointer, func(p *C.quire_stream) {
		forget()
		C.quire_stream_release(p)
		C.free(unsafe.Pointer(step))
	})
	if ctx.Done() != nil {
		held := weak.Make(ref) // the stream may be collected before ctx is done
		forget = context.AfterFunc(ctx, func() {
			if ref := held.Value(); ref != nil {
				_ = ref.do(cancelStream)
			}
		})
	}
	return &Stream{ref: ref, ctx: ctx, step: step, from: s.from, vocabSize: s.model.vocabSize}, nil
}

func cancelStream(p *C.quire_stream, e *cError) cStatus { return C.quire_stream_cancel(p, e) }

// wait is quire_stream_next: io.EOF behind the end, StatusTimeout where nothing came in time.
func (s *Stream) wait(milliseconds C.int32_t, event *Event) error {
	p, err := s.ref.enter()
	if err != nil {
		return err
	}
	defer s.ref.leave()
	if !s.waiting.CompareAndSwap(false, true) { // an event's text lives until the next one is asked for
		return &Error{Code: ErrBusy, Message: "another goroutine waits for an event of this stream", Offset: -1}
	}
	defer s.waiting.Store(false)
	switch status := C.quire_stream_next(p, milliseconds, &s.step.event, &s.step.error); {
	case status == 0:
		if now := time.Now(); now.Sub(s.yielded) > yieldEvery {
			runtime.Gosched()
			s.yielded = now
		}
		event.fill(&s.step.event)
		if event.FinishReason == FinishCancelled {
			if by := doneBy(s.ctx); by != nil {
				return cancelled(by)
			}
		}
		return nil
	case status == C.QUIRE_END:
		return io.EOF
	case status > 0:
		return Status(status)
	}
	return caused(newError(&s.step.error), ErrIO, s.from.failure())
}

// Next waits for the next event; io.EOF after the end event. A failure while computing is returned once. An end event that
// the context brought comes with an error that wraps the context's.
func (s *Stream) Next() (Event, error) {
	var event Event
	err := s.wait(-1, &event)
	return event, err
}

// Poll is Next that waits no longer than the timeout, and not at all for 0 or less: StatusTimeout if there is no event yet.
func (s *Stream) Poll(timeout time.Duration) (Event, error) {
	var event Event
	milliseconds := max(timeout, 0) / time.Millisecond
	if timeout > milliseconds*time.Millisecond {
		milliseconds++
	}
	err := s.wait(C.int32_t(min(milliseconds, 1<<31-1)), &event)
	return event, err
}

// Events are all that come, in order. A failure is the last pair's error. After leaving the loop early, go on with Events or
// Next, or close the stream.
func (s *Stream) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			var event Event
			err := s.wait(-1, &event)
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// Cancel asks the stream to stop. The next event is then the end event, with FinishCancelled.
func (s *Stream) Cancel() error { return s.ref.do(cancelStream) }

// Close stops the stream and waits until nothing works for it. The session stands at the last delivered token.
func (s *Stream) Close() error {
	return s.ref.finish(func(p *C.quire_stream, e *cError) cStatus { return C.quire_stream_close(p, e) })
}

// AddStopIDs gives more ids that end the answer, for all tokens that are not delivered yet.
func (s *Stream) AddStopIDs(ids ...int32) error {
	return s.ref.do(func(p *C.quire_stream, e *cError) cStatus {
		data, n := items[C.int32_t](ids)
		return C.quire_stream_add_stop_ids(p, data, n, e)
	})
}

// AddStopStrings gives more texts that end the answer. Event.StopIndex counts them on behind those that the stream has.
func (s *Stream) AddStopStrings(texts ...string) error {
	var pins pins
	defer pins.free()
	data, n := pins.texts(texts)
	return s.ref.do(func(p *C.quire_stream, e *cError) cStatus {
		return C.quire_stream_add_stop_strings(p, data, n, e)
	})
}

// Allow says which tokens may come next, with StreamConstrain: once before the first token, and once after each. None: any.
// Experimental.
func (s *Stream) Allow(ids ...int32) error {
	var words []uint32
	if len(ids) > 0 {
		words = make([]uint32, (s.vocabSize+31)/32)
		for i, id := range ids {
			if id < 0 || id >= s.vocabSize {
				return &Error{Code: ErrInvalidToken, Message: "an id outside the vocabulary", Offset: int64(i)}
			}
			words[id/32] |= 1 << (id % 32)
		}
	}
	return s.ref.do(func(p *C.quire_stream, e *cError) cStatus {
		data, n := items[C.uint32_t](words)
		return C.quire_stream_allow(p, data, n, e)
	})
}

// WaitHandle is what becomes ready when an event waits, for poll loops, and sometimes when there is none yet: take events with
// a timeout of 0. Only poll it. Errors: ErrUnsupported.
func (s *Stream) WaitHandle() (uintptr, WaitKind, error) {
	var handle C.int64_t
	var kind C.int32_t
	err := s.ref.do(func(p *C.quire_stream, e *cError) cStatus {
		return C.quire_stream_get_wait_handle(p, &handle, &kind, e)
	})
	return uintptr(handle), WaitKind(kind), err
}
