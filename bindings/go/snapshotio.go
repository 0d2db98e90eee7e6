package quire

// #include "callbacks.h"
import "C"

import (
	"errors"
	"io"
	"sync/atomic"
	"unsafe"
)

// target is what a snapshot is written to.
type target struct {
	w   io.Writer
	err error
}

// source is what a snapshot is read from: one for the session that was loaded and its forks. nil: no io.ReaderAt.
type source struct {
	r    io.ReaderAt
	last atomic.Pointer[error]
}

// failure is the reader's last error since this was asked before.
func (s *source) failure() error {
	if s == nil {
		return nil
	}
	if err := s.last.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// during makes a call that may read; an error of the reader is what its error wraps.
func (s *source) during(f func() error) error {
	_ = s.failure() // that of an earlier call
	return caused(f(), ErrIO, s.failure())
}

// writer is the struct for C; data is the user data of a target.
func writer(data unsafe.Pointer) *C.quire_snapshot_writer {
	c := new(C.quire_snapshot_writer)
	C.quire_snapshot_writer_init(c, C.size_t(unsafe.Sizeof(*c)))
	c.write, c.commit = C.quire_write_callback(C.quireGoWrite), C.quire_commit_callback(C.quireGoCommit)
	c.user_data = data
	return c
}

// reader is the struct for C; data is the user data of a source, which C frees if it keeps it.
func reader(data unsafe.Pointer, n int64) *C.quire_snapshot_reader {
	c := new(C.quire_snapshot_reader)
	C.quire_snapshot_reader_init(c, C.size_t(unsafe.Sizeof(*c)))
	c.n_bytes, c.read = C.int64_t(n), C.quire_read_callback(C.quireGoRead)
	c.destroy = C.quire_destroy_callback(C.quireGoDestroy)
	c.user_data = data
	return c
}

// caught is f's error; a panic of f is one too, for it cannot cross C.
func caught(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = panicked(value)
		}
	}()
	return f()
}

//export quireGoWrite
func quireGoWrite(data, bytes unsafe.Pointer, n C.size_t, e *C.quire_error) C.int64_t {
	t := valueOfUserData(data).(*target)
	written := 0
	t.err = caught(func() (err error) {
		if written, err = t.w.Write(unsafe.Slice((*byte)(bytes), n)); err == nil && written < int(n) {
			err = io.ErrShortWrite
		}
		return err
	})
	if t.err != nil {
		tell(e, t.err)
		return -1
	}
	return C.int64_t(written)
}

//export quireGoCommit
func quireGoCommit(data unsafe.Pointer, e *C.quire_error) C.int32_t {
	t := valueOfUserData(data).(*target)
	if buffered, ok := t.w.(interface{ Flush() error }); ok {
		if t.err = caught(buffered.Flush); t.err != nil {
			tell(e, t.err)
			return -1
		}
	}
	return 0
}

//export quireGoRead
func quireGoRead(data unsafe.Pointer, offset C.int64_t, buffer unsafe.Pointer, n C.size_t, e *C.quire_error) C.int64_t {
	s := valueOfUserData(data).(*source)
	read := 0
	err := caught(func() (err error) {
		if read, err = s.r.ReadAt(unsafe.Slice((*byte)(buffer), n), int64(offset)); read > 0 || errors.Is(err, io.EOF) {
			err = nil // C asks again for what is missing, and knows an end by the number 0
		}
		return err
	})
	if err != nil {
		s.last.Store(&err)
		tell(e, err)
		return -1
	}
	return C.int64_t(read)
}
