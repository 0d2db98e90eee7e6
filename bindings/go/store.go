package quire

// #include <quire/quire.h>
import "C"

import (
	"context"
	"unsafe"
)

// Store is a directory that keeps documents that were read, for every process that reads them again. All methods may be
// called from several goroutines at once; the session of Put is used as by its own methods.
type Store struct {
	ref *reference[*C.quire_store]
}

// StoreInfo is what is in a store.
type StoreInfo struct {
	Path        string `json:"path"`
	BudgetBytes int64  `json:"budget_bytes"`
	Bytes       int64  `json:"bytes"`
	// Entries has the last used one first.
	Entries []StoreEntry `json:"entries"`
	// Unknown are names in the directory that are not the store's.
	Unknown []string `json:"unknown"`
}

// StoreEntry is a document in a store.
type StoreEntry struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// LastUse is in seconds since 1970.
	LastUse float64        `json:"last_use"`
	InUse   bool           `json:"in_use"`
	Title   string         `json:"title"`
	Tokens  int64          `json:"n_tokens"`
	Origin  SnapshotOrigin `json:"origin"`
	// Damage says why the entry cannot be used; empty where it can.
	Damage string `json:"damage"`
}

// OpenStore opens the store in a directory, which is made where it is missing. options may be nil.
func OpenStore(path string, options *StoreOptions) (*Store, error) {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	var pointer *C.quire_store
	err := call(func(e *cError) cStatus { return C.quire_store_open(chars(path), length(path), c, &pointer, e) })
	if err != nil {
		return nil, err
	}
	return &Store{ref: own(pointer, func(p *C.quire_store) { C.quire_store_release(p) })}, nil
}

// Close gives the store back. Sessions that were loaded from it stay as they are.
func (s *Store) Close() error { s.ref.drop(); return nil }

// withMatch calls f with a match to be filled.
func withMatch(f func(c *C.quire_store_match) error) (StoreMatch, error) {
	var c C.quire_store_match
	var match StoreMatch
	C.quire_store_match_init(&c, C.size_t(unsafe.Sizeof(c)))
	err := f(&c)
	match.fill(&c)
	return match, err
}

// Put puts what the session has read into the store. title may be empty, options nil.
func (s *Store) Put(ctx context.Context, session *Session, title string, options *SnapshotOptions) (StoreMatch, error) {
	p, err := session.ref.enter()
	if err != nil {
		return StoreMatch{}, err
	}
	defer session.ref.leave()
	return withMatch(func(match *C.quire_store_match) error {
		return session.from.during(func() error {
			return withSnapshotOptions(ctx, options, func(c *C.quire_snapshot_options) error {
				return s.ref.do(func(store *C.quire_store, e *cError) cStatus {
					return C.quire_store_put(store, p, chars(title), length(title), c, match, e)
				})
			})
		})
	})
}

// Find looks for the entry that has most of the text, for a session of the model with these options. Nothing that fits is no
// error, but a match without a name.
func (s *Store) Find(model *Model, options *SessionOptions, tokens []int32) (StoreMatch, error) {
	return withMatch(func(match *C.quire_store_match) error {
		return s.look(model, options, func(store *C.quire_store, m *C.quire_model, c *cSessionOptions, e *cError) cStatus {
			data, n := items[C.int32_t](tokens)
			return C.quire_store_find(store, m, c, data, n, match, e)
		})
	})
}

// Load makes a session that stands behind what the store has of the text: the first StoreMatch.Tokens of the tokens. Feed the
// others. Errors: ErrNotFound (nothing that fits: the message says why).
func (s *Store) Load(model *Model, options *SessionOptions, tokens []int32) (*Session, StoreMatch, error) {
	var pointer *C.quire_session
	match, err := withMatch(func(match *C.quire_store_match) error {
		return s.look(model, options, func(store *C.quire_store, m *C.quire_model, c *cSessionOptions, e *cError) cStatus {
			data, n := items[C.int32_t](tokens)
			return C.quire_store_load(store, m, c, data, n, match, &pointer, e)
		})
	})
	session, err := newSession(model, nil, pointer, err)
	return session, match, err
}

type cSessionOptions = C.quire_session_options

// look calls f with the store, the model and the options.
func (s *Store) look(model *Model, options *SessionOptions,
	f func(store *C.quire_store, m *C.quire_model, c *cSessionOptions, e *cError) cStatus) error {
	var pins pins
	defer pins.free()
	c := options.inC(&pins)
	m, err := model.ref.enter()
	if err != nil {
		return err
	}
	defer model.ref.leave()
	return s.ref.do(func(store *C.quire_store, e *cError) cStatus { return f(store, m, c, e) })
}

// Remove removes the entry of that name, in use or not.
func (s *Store) Remove(name string) error {
	return s.ref.do(func(p *C.quire_store, e *cError) cStatus {
		return C.quire_store_remove(p, chars(name), length(name), e)
	})
}

// Verify reads all of an entry and compares its checksums. options may be nil.
func (s *Store) Verify(ctx context.Context, name string, options *SnapshotOptions) error {
	return withSnapshotOptions(ctx, options, func(c *C.quire_snapshot_options) error {
		return s.ref.do(func(p *C.quire_store, e *cError) cStatus {
			return C.quire_store_verify(p, chars(name), length(name), c, e)
		})
	})
}

// Describe lists what is in the store.
func (s *Store) Describe() (StoreInfo, error) {
	return decoded[StoreInfo](text(s.ref, func(p *C.quire_store, buf *C.char, cap cSize, needed *cSize, e *cError) cStatus {
		return C.quire_store_describe(p, buf, cap, needed, e)
	}))
}
