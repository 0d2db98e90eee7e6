package quire

// #include "callbacks.h"
import "C"

import (
	"context"
	"errors"
	"unsafe"
)

// longCall is a call that can be watched and cancelled. Its options have these fields.
type longCall struct {
	cancel   *C.quire_cancel
	progress C.quire_progress_callback
	data     unsafe.Pointer

	ctx      context.Context
	report   func(done, total int64)
	trigger  func()
	panicked any
	undo     func() // gives back what the call made; nil: nothing
}

func releaseCancel(p *C.quire_cancel) { C.quire_cancel_release(p) }

// doneBy is why a context is done, nil if it is not: context.Canceled or context.DeadlineExceeded, and the cause that it
// was given.
func doneBy(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(err, cause) {
		return err
	}
	return errors.Join(err, cause)
}

func cancelled(by error) *Error {
	return &Error{Code: ErrCancelled, Message: "cancelled by the context", Offset: -1, cause: by}
}

// long makes a call that ends early when ctx is done, and that reports to progress, which may be nil.
func long(ctx context.Context, progress func(done, total int64), f func(l *longCall) error) error {
	if by := doneBy(ctx); by != nil {
		return cancelled(by)
	}
	l := &longCall{ctx: ctx, report: progress}
	if ctx.Done() != nil || progress != nil {
		if err := call(func(e *cError) cStatus { return C.quire_cancel_create(&l.cancel, e) }); err != nil {
			return err
		}
		ref := &reference[*C.quire_cancel]{pointer: l.cancel, release: releaseCancel}
		defer ref.drop()
		l.trigger = func() {
			_ = ref.do(func(p *C.quire_cancel, _ *cError) cStatus { C.quire_cancel_trigger(p); return 0 })
		}
		defer context.AfterFunc(ctx, l.trigger)()
	}
	if progress != nil {
		l.progress, l.data = C.quire_progress_callback(C.quireGoProgress), userData(l)
		defer freeUserData(l.data)
	}
	err := f(l)
	if l.panicked != nil {
		if l.undo != nil { // the last report comes when there is nothing left to cancel
			l.undo()
		}
		panic(l.panicked)
	}
	if errors.Is(err, ErrCancelled) {
		err = caused(err, ErrCancelled, doneBy(ctx))
	}
	return err
}

//export quireGoProgress
func quireGoProgress(data unsafe.Pointer, done, total C.int64_t) {
	l := valueOfUserData(data).(*longCall)
	if l.panicked != nil {
		return
	}
	defer func() {
		// Where progress itself cancelled, the call ends now, and not when another goroutine comes to it.
		if l.panicked = recover(); l.panicked != nil || l.ctx.Err() != nil {
			l.trigger()
		}
	}()
	l.report(int64(done), int64(total))
}
