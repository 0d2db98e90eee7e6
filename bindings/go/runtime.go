package quire

// #include "callbacks.h"
import "C"

import (
	"context"
	"fmt"
	"unsafe"
)

// Version is that of the loaded library, "0.1.0".
func Version() string { return C.GoString(C.quire_get_version_string()) }

// VersionNumber is the same as HeaderVersion has it: major * 10000 + minor * 100 + patch.
func VersionNumber() int { return int(C.quire_get_version()) }

// A library with another ABI is found out before anything else is asked of it.
func init() {
	if !hasABIOf(HeaderVersion, VersionNumber()) {
		panic(fmt.Sprintf("libquire.so is of version %s; this package needs %s, or a later one with its ABI",
			versionText(VersionNumber()), versionText(HeaderVersion)))
	}
}

// hasABIOf: until 1.0 a minor version may break the ABI, then a major one.
func hasABIOf(wanted, found int) bool {
	unit := 10000
	if wanted < 10000 {
		unit = 100
	}
	return found >= wanted && found/unit == wanted/unit
}

func versionText(number int) string {
	return fmt.Sprintf("%d.%d.%d", number/10000, number/100%100, number%100)
}

// Runtime has the threads, the memory and the log; everything else hangs off one. All methods may be called from several
// goroutines at once.
type Runtime struct {
	ref *reference[*C.quire_runtime]
}

// NewRuntime starts a runtime's threads. options may be nil.
func NewRuntime(options *RuntimeOptions) (*Runtime, error) {
	if options == nil {
		options = &RuntimeOptions{}
	}
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	if options.Logger != nil {
		c.log, c.log_user_data = C.quire_log_callback(C.quireGoLog), userData(options.Logger)
		c.log_destroy = C.quire_destroy_callback(C.quireGoDestroy)
	}
	if options.Allocator != nil {
		c.alloc, c.free = C.quire_alloc_callback(C.quireGoAllocate), C.quire_free_callback(C.quireGoFree)
		c.alloc_user_data = userData(options.Allocator)
		c.alloc_destroy = C.quire_destroy_callback(C.quireGoDestroy)
	}
	var pointer *C.quire_runtime
	if err := call(func(e *cError) cStatus { return C.quire_runtime_create(c, &pointer, e) }); err != nil {
		freeUserData(c.log_user_data)
		freeUserData(c.alloc_user_data)
		return nil, err
	}
	return &Runtime{ref: own(pointer, func(p *C.quire_runtime) { C.quire_runtime_release(p) })}, nil
}

// Close cancels everything that runs on it, frees all sessions' memory and ends all threads: when it returns, none is left.
// Models and sessions that are still there fail with ErrClosed from then on.
func (r *Runtime) Close() error {
	return r.ref.finish(func(p *C.quire_runtime, e *cError) cStatus { return C.quire_runtime_close(p, e) })
}

// Stats says what the runtime keeps of released and closed sessions.
func (r *Runtime) Stats() (RuntimeStats, error) {
	var c C.quire_runtime_stats
	var stats RuntimeStats
	c.struct_size = C.uint32_t(unsafe.Sizeof(c))
	err := r.ref.do(func(p *C.quire_runtime, e *cError) cStatus { return C.quire_runtime_get_stats(p, &c, e) })
	stats.fill(&c)
	return stats, err
}

// LogLine is a line of the log that was kept (RuntimeOptions.KeptLogLines).
type LogLine struct {
	Level LogLevel
	Text  string
	// Lost is how many lines were lost between the one before and this one, for want of room.
	Lost int64
}

// TakeLogLine takes the oldest line of the log that was kept and not taken yet. ok is false where there is none.
func (r *Runtime) TakeLogLine() (line LogLine, ok bool, err error) {
	var level C.int32_t
	var lost C.int64_t
	line.Text, err = text(r.ref, func(p *C.quire_runtime, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_runtime_take_log_line(p, &level, &lost, buf, cap, needed, e)
	})
	line.Level, line.Lost = LogLevel(level), int64(lost)
	return line, level != 0, err
}

// Devices are those of this machine, the unusable ones included, in the order in which "auto" prefers them.
func (r *Runtime) Devices() ([]DeviceInfo, error) {
	var n C.int32_t
	err := r.ref.do(func(p *C.quire_runtime, e *cError) cStatus { return C.quire_runtime_get_device_count(p, &n, e) })
	if err != nil {
		return nil, err
	}
	devices := make([]DeviceInfo, n)
	for i := range devices {
		var c C.quire_device_info
		c.struct_size = C.uint32_t(unsafe.Sizeof(c))
		err := r.ref.do(func(p *C.quire_runtime, e *cError) cStatus {
			return C.quire_runtime_get_device_info(p, C.int32_t(i), &c, e)
		})
		if err != nil {
			return nil, err
		}
		devices[i].fill(&c)
	}
	return devices, nil
}

// LoadModel loads a model: a Hugging Face directory, or a GGUF file. It waits until that is done; ctx cancels. options
// may be nil. Errors: ErrNotFound, ErrIO, ErrBadFile, ErrUnsupported, ErrInvalidArgument, ErrOutOfMemory, ErrCancelled.
func (r *Runtime) LoadModel(ctx context.Context, path string, options *ModelOptions) (*Model, error) {
	if options == nil {
		options = &ModelOptions{}
	}
	var pins pins
	defer pins.free()
	m := &Model{}
	err := long(ctx, options.Progress, func(l *longCall) error {
		c := options.inC(&pins)
		c.cancel, c.progress, c.progress_user_data = l.cancel, l.progress, l.data
		var pointer *C.quire_model
		err := r.ref.do(func(p *C.quire_runtime, e *cError) cStatus {
			return C.quire_model_load(p, chars(path), length(path), c, &pointer, e)
		})
		if err != nil {
			return err
		}
		m.ref = own(pointer, func(p *C.quire_model) { C.quire_model_release(p) })
		l.undo = m.ref.drop
		return nil
	})
	if err != nil {
		return nil, err
	}
	info, err := m.Info()
	m.vocabSize = info.VocabSize
	return m, err
}

// LoadTokenizer reads a tokenizer alone: of a model directory, a tokenizer.model, a tokenizer.json or a GGUF file.
func (r *Runtime) LoadTokenizer(path string) (*Tokenizer, error) {
	var pointer *C.quire_tokenizer
	err := r.ref.do(func(p *C.quire_runtime, e *cError) cStatus {
		return C.quire_tokenizer_load(p, chars(path), length(path), &pointer, e)
	})
	return newTokenizer(pointer, err)
}
