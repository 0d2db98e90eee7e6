package tests

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	quire "quire.dev/go"
)

// handler is a sink of slog that keeps what it gets.
type handler struct {
	slog.Handler
	mutex   sync.Mutex
	records []slog.Record
	panics  bool
}

func (h *handler) Enabled(context.Context, slog.Level) bool { return true }

func (h *handler) Handle(_ context.Context, record slog.Record) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.records = append(h.records, record)
	if h.panics {
		panic("out of paper")
	}
	return nil
}

func TestLog(t *testing.T) {
	for _, panics := range []bool{false, true} {
		sink := &handler{panics: panics}
		r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1, LogLevel: quire.LogDebug, Logger: slog.New(sink)}))
		try(r.LoadModel(t.Context(), tinyModel, nil))
		must(r.Close())
		sink.mutex.Lock()
		found := false
		for _, record := range sink.records {
			found = found || record.Level == slog.LevelInfo && strings.Contains(record.Message, "text_256")
		}
		sink.mutex.Unlock()
		check(t, "that a message names the model", found, true)
	}
	check(t, "the level of a warning", quire.LogWarning.Level(), slog.LevelWarn)
	check(t, "the level of an error", quire.LogError.Level(), slog.LevelError)
	_, err := quire.NewRuntime(&quire.RuntimeOptions{Threads: -1, Logger: slog.Default(), Allocator: newMemory()})
	fails(t, err, quire.ErrInvalidArgument)
}

func TestKeptLogLines(t *testing.T) {
	r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1, LogLevel: quire.LogInfo, KeptLogLines: 2}))
	taken := func() (quire.LogLine, bool) {
		line, ok, err := r.TakeLogLine()
		must(err)
		return line, ok
	}
	_, ok := taken()
	check(t, "that there is no line", ok, false)
	for range 3 {
		must(try(r.LoadModel(t.Context(), tinyModel, nil)).Close())
	}
	for range 2 {
		line, _ := taken()
		check(t, "the level", line.Level, quire.LogInfo)
		check(t, "that the line names the model", strings.Contains(line.Text, "text_256"), true)
		check(t, "the lines lost before", line.Lost, 0)
	}
	must(try(r.LoadModel(t.Context(), tinyModel, nil)).Close())
	line, _ := taken()
	check(t, "the lines lost", line.Lost, 1)
	must(r.Close())
	_, _, err := r.TakeLogLine()
	fails(t, err, quire.ErrClosed)
}

func TestProgress(t *testing.T) {
	r, _ := shared()
	var seen [][2]int64
	model := try(r.LoadModel(t.Context(), tinyModel, &quire.ModelOptions{
		Progress: func(done, total int64) { seen = append(seen, [2]int64{done, total}) }}))
	must(model.Close())
	check(t, "the last progress", last(seen)[0], last(seen)[1])
	ctx, cancel := context.WithCancel(t.Context())
	_, err := r.LoadModel(ctx, tinyModel, &quire.ModelOptions{Progress: func(int64, int64) { cancel() }})
	fails(t, err, quire.ErrCancelled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v is not the context's", err)
	}
}

// TestPanicOfProgress comes out of the call, and the library has ended it in order.
func TestPanicOfProgress(t *testing.T) {
	r, _ := shared()
	calls := 0
	func() {
		defer func() { check(t, "the panic", recover(), any("enough")) }()
		_, err := r.LoadModel(t.Context(), tinyModel, &quire.ModelOptions{Progress: func(int64, int64) {
			calls++
			panic("enough")
		}})
		t.Errorf("the call returned %v", err)
	}()
	check(t, "the number of calls", calls, 1)
	try(r.LoadModel(t.Context(), tinyModel, nil))
}

// TestPanicOfTheLastProgress comes where nothing is left that could be cancelled: what was made is given back all the same.
func TestPanicOfTheLastProgress(t *testing.T) {
	late := func(done, total int64) {
		if done == total {
			panic("late")
		}
	}
	for what, load := range map[string]func(r *quire.Runtime){
		"a model": func(r *quire.Runtime) {
			_, _ = r.LoadModel(t.Context(), tinyModel, &quire.ModelOptions{Progress: late})
		},
		"an adapter": func(r *quire.Runtime) {
			model := try(r.LoadModel(t.Context(), tinyModel, nil))
			defer model.Close()
			_, _ = model.LoadAdapter(t.Context(), filepath.Join(adapters, "attention"), &quire.AdapterOptions{Progress: late})
		},
	} {
		memory := newMemory()
		r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1, Allocator: memory}))
		func() {
			defer func() { check(t, "the panic", recover(), any("late")) }()
			load(r)
		}()
		must(r.Close())
		check(t, "bytes held after loading "+what, memory.held(), 0)
	}
}

func TestPanicOfAnAllocator(t *testing.T) {
	memory := newMemory()
	r := try(quire.NewRuntime(&quire.RuntimeOptions{Threads: 1, Allocator: memory}))
	defer r.Close()
	model := try(r.LoadModel(t.Context(), tinyModel, nil))
	s := try(model.NewSession(nil))
	must(s.FeedText("Rain fell", 0))
	memory.mutex.Lock()
	memory.panics = true
	memory.mutex.Unlock()
	_, err := s.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 1})
	fails(t, err, quire.ErrOutOfMemory)
}

// shelf is a snapshot in memory, of which some calls fail.
type shelf struct {
	bytes.Buffer
	mutex   sync.Mutex
	good    int // calls, before one fails
	err     error
	panics  any
	flushed int
}

func (s *shelf) count() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.good--; s.good >= 0 {
		return nil
	}
	if s.panics != nil {
		panic(s.panics)
	}
	return s.err
}

func (s *shelf) Write(data []byte) (int, error) {
	if err := s.count(); err != nil {
		return 0, err
	}
	return s.Buffer.Write(data)
}

func (s *shelf) ReadAt(into []byte, offset int64) (int, error) {
	if err := s.count(); err != nil {
		return 0, err
	}
	return bytes.NewReader(s.Bytes()).ReadAt(into, offset)
}

func (s *shelf) Flush() error { s.flushed++; return s.count() }

func TestFailuresOfWritersAndReaders(t *testing.T) {
	s := session(t, quire.SessionOptions{Strategy: "dca(kv_chunk=16)", Flags: quire.SessionNoPrefixReuse})
	must(s.FeedTokens(someIDs(100)))
	must(s.Prefill(t.Context(), 0))
	whole := &shelf{good: 1 << 30}
	must(s.SaveTo(t.Context(), whole, nil))
	check(t, "the number of flushes", whole.flushed, 1)
	writes := 1<<30 - whole.good
	burnt := errors.New("burnt")
	for _, kind := range []*shelf{{err: burnt}, {panics: burnt}, {panics: "burnt"}} {
		for _, good := range []int{0, 1, writes / 2, writes - 1} {
			err := s.SaveTo(t.Context(), &shelf{good: good, err: kind.err, panics: kind.panics}, nil)
			cause(t, err, kind, burnt)
		}
		whole.err, whole.panics = kind.err, kind.panics
		loaded := (*quire.Session)(nil)
		for good := 0; loaded == nil; good++ { // from the first read on, until loading succeeds and the stream fails
			whole.good = good
			var err error
			loaded, err = sharedModel().LoadSessionFrom(whole, int64(whole.Len()),
				&quire.SessionOptions{Flags: quire.SessionNoPrefixReuse})
			if err == nil {
				_, err = loaded.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 3})
			}
			cause(t, err, kind, burnt)
		}
		whole.good = 1 << 30
		try(loaded.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 3, Flags: quire.StreamIgnoreEOS}))
		must(loaded.Close())
		whole.good = 0
		_, err := quire.DescribeSnapshotFrom(whole, int64(whole.Len()))
		cause(t, err, kind, burnt)
		cause(t, quire.VerifySnapshotFrom(t.Context(), whole, int64(whole.Len()), nil), kind, burnt)
	}
	fails(t, s.SaveTo(t.Context(), shortWriter{}, nil), quire.ErrIO)
	fails(t, quire.VerifySnapshotFrom(t.Context(), bytes.NewReader(nil), 5000, nil), quire.ErrIO)
}

// TestFailuresOfTheReaderOfASession come out of the calls that read, and out of no later one.
func TestFailuresOfTheReaderOfASession(t *testing.T) {
	s := session(t, quire.SessionOptions{Strategy: "dca(kv_chunk=16)"})
	must(s.FeedTokens(someIDs(100)))
	must(s.Prefill(t.Context(), 0))
	whole := &shelf{good: 1 << 30}
	must(s.SaveTo(t.Context(), whole, nil))
	store := try(quire.OpenStore(filepath.Join(t.TempDir(), "store"), nil))
	defer store.Close()
	loaded := try(sharedModel().LoadSessionFrom(whole, int64(whole.Len()),
		&quire.SessionOptions{Flags: quire.SessionNoPrefixReuse}))
	defer loaded.Close()
	for what, call := range map[string]func(path string) error{
		"Save":   func(path string) error { return loaded.Save(t.Context(), path, nil) },
		"SaveTo": func(string) error { return loaded.SaveTo(t.Context(), io.Discard, nil) },
		"Put":    func(string) error { _, err := store.Put(t.Context(), loaded, "", nil); return err },
		"Answer": func(string) error {
			_, err := loaded.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 1})
			return err
		},
	} {
		whole.good, whole.err = 0, errors.New("burnt by "+what)
		cause(t, call(filepath.Join(t.TempDir(), "saved.quire")), whole, whole.err)
		whole.good = 1 << 30
		err := loaded.Save(t.Context(), filepath.Join(t.TempDir(), strings.Repeat("x", 300)), nil)
		fails(t, err, quire.ErrIO)
		check(t, "that an error is of an earlier call", errors.Is(err, whole.err), false)
	}
}

type shortWriter struct{}

func (shortWriter) Write(data []byte) (int, error) { return len(data) / 2, io.ErrShortWrite }

func cause(t *testing.T, err error, kind *shelf, burnt error) {
	t.Helper()
	fails(t, err, quire.ErrIO)
	if !strings.Contains(err.Error(), "burnt") || kind.panics != "burnt" && !errors.Is(err, burnt) {
		t.Fatalf("%v does not name its cause", err)
	}
}
