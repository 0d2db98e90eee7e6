package quire

// #include <quire/quire.h>
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unsafe"
)

// Error is a failed call. errors.Is compares it with a Status (errors.Is(err, quire.ErrBusy)), with the system's error
// (errors.Is(err, syscall.ENOSPC)), and with what caused it on Go's side: a context's error, or that of an io.Writer or
// io.ReaderAt which a snapshot went to or came from.
type Error struct {
	// Code is one of the Err constants.
	Code Status
	// Message is for a person.
	Message string
	// Offset is the byte, column or token index that the message speaks of; -1 where there is none.
	Offset int64
	// OSError is the system's error where the system was the cause, else 0.
	OSError syscall.Errno

	cause error
}

// Error is the status's name and the message.
func (e *Error) Error() string { return e.Code.String() + ": " + e.Message }

// Unwrap returns the status, and what caused the failure where that is known.
func (e *Error) Unwrap() []error {
	errs := []error{e.Code}
	if e.OSError != 0 {
		errs = append(errs, e.OSError)
	}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// String is the name that quire.h has for it, without QUIRE_ and ERROR_.
func (s Status) String() string { return C.GoString(C.quire_get_status_name(C.quire_status(s))) }

// Error makes a Status something to compare errors with.
func (s Status) Error() string { return s.String() }

type (
	cError  = C.quire_error
	cStatus = C.quire_status
	cSize   = C.size_t
)

func newError(e *cError) *Error {
	return &Error{Code: Status(e.code), Message: C.GoString(&e.message[0]), Offset: int64(e.offset),
		OSError: syscall.Errno(e.os_error)}
}

// call returns the error that f was told.
func call(f func(e *cError) cStatus) error {
	var e cError
	if f(&e) < 0 {
		return newError(&e)
	}
	return nil
}

// caused adds what caused it to an error with this status.
func caused(err error, status Status, cause error) error {
	if e := (*Error)(nil); cause != nil && errors.As(err, &e) && e.Code == status {
		e.cause = cause
	}
	return err
}

// tell writes an error of Go where C reads it.
func tell(e *cError, err error) {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		e.os_error = C.int32_t(errno)
	}
	room := unsafe.Slice((*byte)(unsafe.Pointer(&e.message[0])), len(e.message))
	text := err.Error()
	if len(text) >= len(room) {
		text = strings.ToValidUTF8(text[:len(room)-1], "")
	}
	room[copy(room, text)] = 0
}

func panicked(value any) error {
	if err, ok := value.(error); ok {
		return fmt.Errorf("panic: %w", err)
	}
	return fmt.Errorf("panic: %v", value)
}
