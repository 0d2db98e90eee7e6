package tests

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	quire "quire.dev/go"
)

func TestSnapshots(t *testing.T) {
	s := session(t, quire.SessionOptions{Strategy: "dca", KVType: quire.TypeF32, PrefillBlock: 64})
	must(s.FeedTokens(someIDs(300)))
	must(s.Prefill(t.Context(), 0))
	must(s.FeedTokens(someIDs(400)[300:]))
	path := filepath.Join(t.TempDir(), "saved.quire")
	seen := [][2]int64{}
	options := &quire.SnapshotOptions{Progress: func(done, total int64) { seen = append(seen, [2]int64{done, total}) }}
	must(s.Save(t.Context(), path, options))
	check(t, "the last progress", last(seen)[0], last(seen)[1])
	info := try(quire.DescribeSnapshot(path))
	check(t, "its tokens", [2]int64{info.Tokens, info.Pending}, [2]int64{300, 100})
	check(t, "its strategy", info.Origin.Strategy, try(s.Strategy()))
	check(t, "its type", info.Origin.KVType, quire.TypeF32)
	check(t, "its model", info.Origin.Model, try(sharedModel().Metadata("identity")))
	must(quire.VerifySnapshot(t.Context(), path, options))
	answer := try(s.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 12, Flags: quire.StreamIgnoreEOS}))
	loaded := try(sharedModel().LoadSession(path, &quire.SessionOptions{Flags: quire.SessionNoPrefixReuse}))
	defer loaded.Close()
	check(t, "the answer", try(loaded.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 12, Flags: quire.StreamIgnoreEOS})), answer)
	check(t, "that the file was read", try(loaded.TierStats(quire.TierSnapshot)).BytesRead > 0, true)
	_, err := sharedModel().LoadSession(path, &quire.SessionOptions{Strategy: "full"})
	fails(t, err, quire.ErrInvalidArgument)
	ctx, cancel := context.WithCancel(t.Context())
	fails(t, s.Save(ctx, path+"2", &quire.SnapshotOptions{Progress: func(int64, int64) { cancel() }}), quire.ErrCancelled)
	data := readFile(path)
	data[len(data)/2] ^= 1
	must(os.WriteFile(path+"3", data, 0o600))
	fails(t, quire.VerifySnapshot(t.Context(), path+"3", nil), quire.ErrBadFile)
}

// TestSnapshotsInMemory are the same bytes, and are read when Go has let go of all but a fork.
func TestSnapshotsInMemory(t *testing.T) {
	s := session(t, quire.SessionOptions{Strategy: "dca(kv_chunk=16)", Flags: quire.SessionNoPrefixReuse})
	must(s.FeedTokens(someIDs(300)))
	must(s.Prefill(t.Context(), 0))
	path, memory := filepath.Join(t.TempDir(), "saved.quire"), &bytes.Buffer{}
	must(s.Save(t.Context(), path, nil))
	buffered := bufio.NewWriter(memory)
	must(s.SaveTo(t.Context(), buffered, nil))
	check(t, "what the buffer keeps", buffered.Buffered(), 0)
	check(t, "that the bytes are the file's", bytes.Equal(memory.Bytes(), readFile(path)), true)
	size := int64(memory.Len())
	same(t, "what it says", try(quire.DescribeSnapshotFrom(bytes.NewReader(memory.Bytes()), size)), try(quire.DescribeSnapshot(path)))
	must(quire.VerifySnapshotFrom(t.Context(), bytes.NewReader(memory.Bytes()), size, nil))
	options := quire.StreamOptions{MaxTokens: 12, Flags: quire.StreamIgnoreEOS}
	answer := try(s.Answer(t.Context(), &options))
	fork := func() *quire.Session {
		loaded := try(sharedModel().LoadSessionFrom(bytes.NewReader(memory.Bytes()), size, nil))
		return try(loaded.Fork())
	}()
	for range 3 {
		collect()
	}
	check(t, "the fork's answer", try(fork.Answer(t.Context(), &options)), answer)
	must(fork.Close())
}

func TestStores(t *testing.T) {
	tokens, options := someIDs(400), &quire.SessionOptions{Strategy: "dca", KVType: quire.TypeF32, PrefillBlock: 64}
	folder := filepath.Join(t.TempDir(), "store")
	_, err := quire.OpenStore(folder, &quire.StoreOptions{Flags: quire.StoreMustExist})
	fails(t, err, quire.ErrNotFound)
	store := try(quire.OpenStore(folder, &quire.StoreOptions{BudgetBytes: 10_000_000}))
	check(t, "the empty store", try(store.Find(sharedModel(), options, tokens)), quire.StoreMatch{Reason: "the store is empty"})
	_, _, err = store.Load(sharedModel(), options, tokens)
	fails(t, err, quire.ErrNotFound)
	s := session(t, *options)
	must(s.FeedTokens(tokens[:300]))
	must(s.Prefill(t.Context(), 0))
	put := try(store.Put(t.Context(), s, "Größe", nil))
	check(t, "what was put", put.Tokens, 300)
	check(t, "what is found", try(store.Find(sharedModel(), options, tokens)), put)
	loaded, match, err := store.Load(sharedModel(), options, tokens)
	must(err)
	check(t, "what was loaded", match, put)
	described := try(store.Describe())
	check(t, "the number of entries", len(described.Entries), 1)
	entry := described.Entries[0]
	check(t, "the title", entry.Title, "Größe")
	check(t, "that it is in use", entry.InUse, true)
	must(store.Verify(t.Context(), put.Name, nil))
	must(store.Remove(put.Name))
	fails(t, store.Remove("../store.lock"), quire.ErrInvalidArgument)
	same(t, "the loaded tokens", try(loaded.Tokens()), tokens[:300])
	must(loaded.Close())
	must(store.Close())
	_, err = store.Describe()
	fails(t, err, quire.ErrClosed)
	must(s.Close())
	_, err = try(quire.OpenStore(folder, nil)).Put(t.Context(), s, "", nil)
	fails(t, err, quire.ErrClosed)
}
