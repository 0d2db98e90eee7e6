package quire

// #include <quire/quire.h>
import "C"

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// reference is one reference of C's to a handle. It is given back once: when it was closed, and no call uses it any more, or
// when it is collected. So a handle may be closed while another goroutine waits in a call on it. The object that has the
// reference may be collected in the middle of its own method: the method keeps the reference until it returns.
type reference[P any] struct {
	pointer P
	release func(P)
	state   atomic.Int64 // calls under way, and `dropped`
}

const dropped = 1 << 62

type nothing = unsafe.Pointer

// none stands for the handle of functions that take none.
var none = &reference[nothing]{}

// own takes a reference over, and gives it back when nothing refers to it any more.
func own[P any](pointer P, release func(P)) *reference[P] {
	r := &reference[P]{pointer: pointer, release: release}
	runtime.SetFinalizer(r, (*reference[P]).drop)
	return r
}

// enter returns the handle for a call, which ends with leave.
func (r *reference[P]) enter() (P, error) {
	for {
		state := r.state.Load()
		if state&dropped != 0 {
			var null P
			return null, &Error{Code: ErrClosed, Message: "this was closed before", Offset: -1}
		}
		if r.state.CompareAndSwap(state, state+1) {
			return r.pointer, nil
		}
	}
}

func (r *reference[P]) leave() {
	if r.state.Add(-1) == dropped {
		r.release(r.pointer)
	}
}

func (r *reference[P]) drop() {
	for {
		state := r.state.Load()
		if state&dropped != 0 {
			return
		}
		if r.state.CompareAndSwap(state, state|dropped) {
			if state == 0 {
				r.release(r.pointer)
			}
			return
		}
	}
}

// do calls f with the handle.
func (r *reference[P]) do(f func(p P, e *cError) cStatus) error {
	p, err := r.enter()
	if err != nil {
		return err
	}
	defer r.leave()
	return call(func(e *cError) cStatus { return f(p, e) })
}

// finish calls what ends the handle's work, and drops it. Nothing happens the second time.
func (r *reference[P]) finish(f func(p P, e *cError) cStatus) error {
	p, err := r.enter()
	if err != nil {
		return nil
	}
	defer r.drop()
	defer r.leave()
	return call(func(e *cError) cStatus { return f(p, e) })
}

// room is a slice of n elements. ErrOutOfMemory: there can be no such slice; Go ends a program that has no memory for one.
func room[G any](n cSize) (slice []G, err error) {
	defer func() {
		if recover() != nil {
			err = &Error{Code: ErrOutOfMemory, Message: fmt.Sprintf("no memory for a result of %d elements", n), Offset: -1}
		}
	}()
	return make([]G, n), nil
}

// results is what comes back by `buf, cap, *needed`. G and T have the same layout.
func results[G, P, T any](r *reference[P], ask func(p P, buf *T, cap cSize, needed *cSize, e *cError) cStatus) ([]G, error) {
	return guessed[G](r, 0, ask)
}

// guessed is results for which one call is enough where there are no more than `guess`.
func guessed[G, P, T any](r *reference[P], guess int,
	ask func(p P, buf *T, cap cSize, needed *cSize, e *cError) cStatus) ([]G, error) {
	needed := cSize(guess)
	for {
		capacity := needed
		found, err := room[G](capacity)
		if err != nil {
			return nil, err
		}
		status := cStatus(0)
		err = r.do(func(p P, e *cError) cStatus {
			var buf *T
			if capacity > 0 {
				buf = (*T)(unsafe.Pointer(unsafe.SliceData(found)))
			}
			status = ask(p, buf, capacity, &needed, e)
			return status
		})
		if err == nil && needed <= capacity {
			return found[:needed], nil
		}
		if err != nil && Status(status) != ErrBufferTooSmall {
			return nil, err
		}
	}
}

func text[P any](r *reference[P], ask func(p P, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus) (string, error) {
	bytes, err := results[byte](r, ask)
	return string(bytes), err
}
