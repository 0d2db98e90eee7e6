package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	quire "quire.dev/go"
)

// TestEveryError raises each status that a caller can bring about, which is all but INTERNAL, and DEVICE
// where there is no GPU.
func TestEveryError(t *testing.T) {
	runtime, model := shared()
	empty, folder := session(t, quire.SessionOptions{Strategy: "dca"}), t.TempDir()
	_, openEmpty := empty.Stream(t.Context(), &quire.StreamOptions{MaxTokens: 1})
	_, badStrategy := model.NewSession(&quire.SessionOptions{Strategy: "full(wheels=3)"})
	_, notFound := runtime.LoadModel(t.Context(), filepath.Join(folder, "none"), nil)
	_, unsupported := empty.LabelAttention()
	_, tooSmall := model.NewSession(&quire.SessionOptions{KVCompressedBudgetBytes: 1})
	short := session(t, quire.SessionOptions{})
	must(short.FeedTokens(make([]int32, 250)))
	_, overflow := short.Stream(t.Context(), &quire.StreamOptions{MaxTokens: 100})
	must(os.WriteFile(filepath.Join(folder, "bad"), []byte("no snapshot"), 0o600))
	_, badFile := quire.DescribeSnapshot(filepath.Join(folder, "bad"))
	gone := session(t, quire.SessionOptions{})
	must(gone.Close())
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, cancelled := runtime.LoadModel(done, tinyModel, nil)
	must(short.Truncate(100))
	must(short.Prefill(t.Context(), 0))
	for status, err := range map[quire.Status]error{
		quire.ErrInvalidArgument: empty.FeedText("x", 1<<30),
		quire.ErrOutOfMemory:     outOfMemory(t),
		quire.ErrIO:              short.SaveTo(t.Context(), failingWriter{}, nil),
		quire.ErrNotFound:        notFound,
		quire.ErrBadFile:         badFile,
		quire.ErrUnsupported:     unsupported,
		quire.ErrBusy:            busy(t),
		quire.ErrClosed:          gone.FeedText("x", 0),
		quire.ErrCancelled:       cancelled,
		quire.ErrOverflow:        overflow,
		quire.ErrBudget:          tooSmall,
		quire.ErrBadStrategy:     badStrategy,
		quire.ErrInvalidText:     empty.FeedText("half \xe9\x9b", 0),
		quire.ErrInvalidToken:    empty.FeedTokens([]int32{5, 320}),
		quire.ErrNumeric:         numeric(t),
		quire.ErrEmpty:           openEmpty,
		quire.ErrBufferTooSmall:  short.ReadLogits(make([]float32, 1), -1, 1),
	} {
		fails(t, err, status)
	}
	check(t, "a column", fails(t, badStrategy, quire.ErrBadStrategy).Offset, 5)
	if !errors.Is(cancelled, context.Canceled) || errors.Is(cancelled, quire.ErrBusy) {
		t.Errorf("%v is no context.Canceled", cancelled)
	}
	check(t, "its text", badStrategy.Error()[:14], "BAD_STRATEGY: ")
	fails(t, empty.FeedPositions([]int32{5, 6}, []int64{1}), quire.ErrInvalidArgument)
	fails(t, empty.FeedPositions([]int32{5, 6}, []int64{1, 9}), quire.ErrUnsupported)
}

type failingWriter struct{}

var errShelf = fmt.Errorf("the shelf is full: %w", syscall.ENOSPC)

func (failingWriter) Write([]byte) (int, error) { return 0, errShelf }

func busy(t *testing.T) error {
	s := fed(t, "Rain")
	stream := try(s.Stream(t.Context(), &quire.StreamOptions{MaxTokens: 10_000, Flags: quire.StreamIgnoreEOS}))
	defer stream.Close()
	return s.FeedText("more", 0)
}

func outOfMemory(t *testing.T) error {
	memory := newMemory()
	memory.limit = 1 << 20
	runtime := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1, Allocator: memory}))
	defer runtime.Close()
	_, err := runtime.LoadModel(t.Context(), filepath.Join(source, "examples/embedded_model/model"), nil)
	return err
}

// numeric is what a model with a weight that is no number says.
func numeric(t *testing.T) error {
	folder := t.TempDir()
	must(os.CopyFS(folder, os.DirFS(tinyModel)))
	path := filepath.Join(folder, "model.safetensors")
	data := readFile(path)
	weights := data[8+binary.LittleEndian.Uint64(data):]
	for i := 0; i+4 <= len(weights); i += 4 {
		binary.LittleEndian.PutUint32(weights[i:], math.Float32bits(float32(math.NaN())))
	}
	must(os.WriteFile(path, data, 0o600))
	runtime, _ := shared()
	model := try(runtime.LoadModel(t.Context(), folder, nil))
	defer model.Close()
	s := try(model.NewSession(nil))
	defer s.Close()
	must(s.FeedTokens([]int32{5, 6, 7}))
	_, err := s.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 1})
	return err
}

func TestTheCauseOfAnError(t *testing.T) {
	s := fed(t, "Rain fell on the harbour.")
	must(s.Prefill(t.Context(), 0))
	err := s.SaveTo(t.Context(), failingWriter{}, nil)
	if !errors.Is(err, errShelf) || !bytes.Contains([]byte(err.Error()), []byte(errShelf.Error())) {
		t.Errorf("%v does not name its cause", err)
	}
	if found := fails(t, err, quire.ErrIO); found.OSError != syscall.ENOSPC || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the system's error is %v", found.OSError)
	}
	why := errors.New("the shop closes")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err = s.Stream(ctx, nil)
	for _, wanted := range []error{quire.ErrCancelled, context.Canceled, why} {
		if !errors.Is(err, wanted) {
			t.Errorf("%v is not %v", err, wanted)
		}
	}
}
