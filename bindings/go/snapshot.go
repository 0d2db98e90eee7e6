package quire

// #include "callbacks.h"
import "C"

import (
	"context"
	"io"
)

// SnapshotInfo is what a snapshot says of itself.
type SnapshotInfo struct {
	Version     int            `json:"version"`
	Contents    string         `json:"contents"`
	Title       string         `json:"title"`
	Bytes       int64          `json:"bytes"`
	UnusedBytes int64          `json:"unused_bytes"`
	Origin      SnapshotOrigin `json:"origin"`
	Tokens      int64          `json:"n_tokens"`
	Generated   int64          `json:"n_generated"`
	Pending     int64          `json:"n_pending"`
	Gaps        int64          `json:"n_gaps"`
	Approximate int64          `json:"n_approximate"`
	KVBytes     int64          `json:"kv_bytes"`
}

// SnapshotOrigin is what a session must have to be loaded from the snapshot.
type SnapshotOrigin struct {
	Model    string `json:"model"`
	Adapters []struct {
		Identity string  `json:"identity"`
		Scale    float64 `json:"scale"`
	} `json:"adapters"`
	Strategy  string `json:"strategy"`
	KVType    Type   `json:"kv_type"`
	KVOldType Type   `json:"kv_old_type"`
	OldAfter  int64  `json:"old_after"`
}

// withSnapshotOptions makes a long call with these options, which may be nil.
func withSnapshotOptions(ctx context.Context, options *SnapshotOptions, f func(c *C.quire_snapshot_options) error) error {
	if options == nil {
		options = &SnapshotOptions{}
	}
	return long(ctx, options.Progress, func(l *longCall) error {
		c := options.inC(nil)
		c.cancel, c.progress, c.progress_user_data = l.cancel, l.progress, l.data
		return f(c)
	})
}

// Save writes the session to a file, which appears whole or not at all; to the file that it was loaded from or last saved to
// only what is new is written. options may be nil.
func (s *Session) Save(ctx context.Context, path string, options *SnapshotOptions) error {
	return s.from.during(func() error {
		return withSnapshotOptions(ctx, options, func(c *C.quire_snapshot_options) error {
			return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
				return C.quire_session_save(p, chars(path), length(path), c, e)
			})
		})
	})
}

// SaveTo writes the bytes of such a file to w; if w has a method Flush() error, that is called behind the last byte. What a
// failed call has written is of no use. The error of w is what the returned one wraps; a panic of it becomes one.
func (s *Session) SaveTo(ctx context.Context, w io.Writer, options *SnapshotOptions) error {
	target := &target{w: w}
	data := userData(target)
	defer freeUserData(data)
	err := s.from.during(func() error {
		return withSnapshotOptions(ctx, options, func(c *C.quire_snapshot_options) error {
			return s.ref.do(func(p *C.quire_session, e *cError) cStatus {
				return C.quire_session_save_to(p, writer(data), c, e)
			})
		})
	})
	return caused(err, ErrIO, target.err)
}

// LoadSession makes a session that goes on where a saved one stood; what it needs of the file is read when it is needed, so
// the file must stay as it is while the session lives. options may be nil; strategy, types and adapters are those of the
// saved session where they are not given.
func (m *Model) LoadSession(path string, options *SessionOptions) (*Session, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	var pointer *C.quire_session
	err := m.ref.do(func(p *C.quire_model, e *cError) cStatus {
		return C.quire_session_load(p, chars(path), length(path), c, &pointer, e)
	})
	return newSession(m, nil, pointer, err)
}

// LoadSessionFrom is LoadSession from the n bytes of r, which is read as long as the session lives, or a fork of it, or one
// that took over chunks of it: on threads of the library, several at once. Its methods must not call Quire, and may take as
// long as a disk. The error of r is what a failed call or stream wraps; a panic of it becomes one.
func (m *Model) LoadSessionFrom(r io.ReaderAt, n int64, options *SessionOptions) (*Session, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	from := &source{r: r}
	data := userData(from)
	var pointer *C.quire_session
	err := m.ref.do(func(p *C.quire_model, e *cError) cStatus {
		return C.quire_session_load_from(p, reader(data, n), c, &pointer, e)
	})
	if err != nil {
		freeUserData(data)
		err = caused(err, ErrIO, from.failure())
	}
	return newSession(m, from, pointer, err)
}

// DescribeSnapshot reads what a snapshot says of itself; no model is needed.
func DescribeSnapshot(path string) (SnapshotInfo, error) {
	return decoded[SnapshotInfo](text(none, func(_ nothing, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_snapshot_describe(chars(path), length(path), buf, cap, needed, e)
	}))
}

// DescribeSnapshotFrom is DescribeSnapshot of the n bytes of r.
func DescribeSnapshotFrom(r io.ReaderAt, n int64) (SnapshotInfo, error) {
	from := &source{r: r}
	data := userData(from)
	defer freeUserData(data)
	info, err := decoded[SnapshotInfo](text(none, func(_ nothing, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_snapshot_describe_from(reader(data, n), buf, cap, needed, e)
	}))
	return info, caused(err, ErrIO, from.failure())
}

// VerifySnapshot reads all of a snapshot and compares its checksums; ErrBadFile says what is damaged. options may be nil.
func VerifySnapshot(ctx context.Context, path string, options *SnapshotOptions) error {
	return withSnapshotOptions(ctx, options, func(c *C.quire_snapshot_options) error {
		return call(func(e *cError) cStatus { return C.quire_snapshot_verify(chars(path), length(path), c, e) })
	})
}

// VerifySnapshotFrom is VerifySnapshot of the n bytes of r.
func VerifySnapshotFrom(ctx context.Context, r io.ReaderAt, n int64, options *SnapshotOptions) error {
	from := &source{r: r}
	data := userData(from)
	defer freeUserData(data)
	err := withSnapshotOptions(ctx, options, func(c *C.quire_snapshot_options) error {
		return call(func(e *cError) cStatus { return C.quire_snapshot_verify_from(reader(data, n), c, e) })
	})
	return caused(err, ErrIO, from.failure())
}
