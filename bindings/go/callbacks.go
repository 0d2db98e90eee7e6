package quire

// #include "callbacks.h"
import "C"

import (
	"context"
	"log/slog"
	"runtime/cgo"
	"unsafe"
)

// A callback's user_data is memory of C with a cgo.Handle in it: C keeps no pointer to Go's memory, and Go no number in
// the place of a pointer.

func userData(value any) unsafe.Pointer {
	cell := (*C.uintptr_t)(C.calloc(1, C.size_t(unsafe.Sizeof(C.uintptr_t(0)))))
	*cell = C.uintptr_t(cgo.NewHandle(value))
	return unsafe.Pointer(cell)
}

func valueOfUserData(data unsafe.Pointer) any { return cgo.Handle(*(*C.uintptr_t)(data)).Value() }

// freeUserData does nothing for NULL.
func freeUserData(data unsafe.Pointer) {
	if data != nil {
		cgo.Handle(*(*C.uintptr_t)(data)).Delete()
		C.free(data)
	}
}

//export quireGoDestroy
func quireGoDestroy(data unsafe.Pointer) { freeUserData(data) }

// Allocator gives memory that is not Go's: from C, from mmap. Its methods run on any thread, several at once, and must
// not call Quire. Where one panics there is no memory.
type Allocator interface {
	// Allocate returns memory aligned to a power of two, or nil where there is none.
	Allocate(size, alignment uintptr) unsafe.Pointer
	// Free takes memory back, with size and alignment as it was allocated.
	Free(memory unsafe.Pointer, size, alignment uintptr)
}

//export quireGoAllocate
func quireGoAllocate(data unsafe.Pointer, size, alignment C.size_t) (memory unsafe.Pointer) {
	defer func() {
		if recover() != nil {
			memory = nil
		}
	}()
	return valueOfUserData(data).(Allocator).Allocate(uintptr(size), uintptr(alignment))
}

//export quireGoFree
func quireGoFree(data, memory unsafe.Pointer, size, alignment C.size_t) {
	defer func() { _ = recover() }()
	valueOfUserData(data).(Allocator).Free(memory, uintptr(size), uintptr(alignment))
}

// Level is the level of log/slog that messages of this level have.
func (v LogLevel) Level() slog.Level {
	switch v {
	case LogError:
		return slog.LevelError
	case LogWarning:
		return slog.LevelWarn
	case LogInfo:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

//export quireGoLog
func quireGoLog(data unsafe.Pointer, level C.int32_t, message *C.char, messageLen C.size_t) {
	defer func() { _ = recover() }()
	logger := valueOfUserData(data).(*slog.Logger)
	logger.Log(context.Background(), LogLevel(level).Level(), textOf(message, messageLen))
}
