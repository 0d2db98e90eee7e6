"""Sessions: texts that a model has read."""

from __future__ import annotations

from ctypes import byref, c_float, c_int32, c_int64, c_size_t
from typing import TYPE_CHECKING, Any, BinaryIO, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union, cast

from . import _ffi, _snapshot_files
from ._arguments import _chat, _is_text, _session_options, _utf8
from ._calls import _Handle, _Watched, _array, _call, _choice, _dicts, _fields, _ids, _numbers, _options, _path, _rows, _text
from ._library import lib
from ._names import EDIT_REUSES, TIERS
from ._stream import Stream
from ._types import ChatOptions, File, Info, Infos, Labels, Messages, Progress, SessionOptions, StreamOptions, Text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._calls import Cancel
    from ._model import Model


class Edited(NamedTuple):
    """What Session.edit came to, in tokens; those that are neither kept nor moved will be computed."""

    n_tokens: int
    n_kept: int
    n_moved: int


class Session(_Handle):
    """A text and its KV cache."""

    _release = "quire_session_release"

    def __init__(self, model: Model, strategy: Optional[str] = "full", snapshot: Optional[File] = None,
                 forked_from: Optional[Session] = None, stored: Optional[Tuple[Any, Any, int, Any]] = None,
                 **options: Unpack[SessionOptions]) -> None:
        """snapshot: what to load it from (Model.load_session); forked_from: see fork(); stored: see Store.load.
        options: kv_type, kv_old_type (int8, int4) and old_after (tokens), overflow, expected_tokens, prefill_block,
        kv_host_budget_bytes, kv_compressed_budget_bytes, kv_file_budget_bytes, kv_file_directory and the other fields
        of quire_session_options. adapters: each an Adapter or (Adapter, scale). prefix_reuse: False for
        QUIRE_SESSION_NO_PREFIX_REUSE. keep_behind_windows: True for QUIRE_SESSION_KEEP_BEHIND_WINDOWS."""
        struct = byref(_session_options(strategy, **options))
        self._reader = None  # what it reads keys and values from, where that is a file object
        if forked_from is not None:
            self._own(model, lib.quire_session_fork, forked_from._handle)
            self._reader = forked_from._reader
        elif stored is not None:
            store, ids, n_ids, match = stored
            self._own(model, lib.quire_store_load, store, model._handle, struct, ids, n_ids, byref(match))
        elif hasattr(snapshot, "read"):
            self._reader = _snapshot_files.Reader(snapshot)
            self._reader.load(self._own, model, lib.quire_session_load_from, model._handle,
                              byref(self._reader.struct()), struct)
        elif snapshot is None:
            self._own(model, lib.quire_session_create, model._handle, struct)
        else:
            path = _path(snapshot)
            self._own(model, lib.quire_session_load, model._handle, path, len(path), struct)
        self._vocab_size = model._vocab_size

    def feed(self, text: Text, parse_special: bool = False, bos: bool = True, labels: Labels = ()) -> None:
        """Queues one segment of text (a str, or its UTF-8 as a bytes-like object). labels: (begin, end, id), in bytes of
        it."""
        data = _utf8(text)
        flags = parse_special * 1 | (not bos) * 2
        if labels:
            array = _array(_ffi.Label, labels)
            _call(lib.quire_session_feed_labelled, self._handle, data, len(data), flags, array, len(array))
        else:
            _call(lib.quire_session_feed_text, self._handle, data, len(data), flags)

    def edit(self, text: Union[Text, Iterable[int]], reuse: str = "exact", reread: int = 0,
             parse_special: bool = False, bos: bool = True, labels: Labels = ()) -> Edited:
        """The session's text becomes this one (a text as of feed(), fed at once; or a list of token ids), and what
        was computed before the first difference stays. reuse="approximate": later chunks are taken over too, but for the
        first `reread` tokens of each run that is in both texts. Returns an Edited."""
        array = _array(_ffi.Label, labels)
        options = _options(_ffi.EditOptions, flags=parse_special * 1 | (not bos) * 2,
                           reuse=_choice("reuse", reuse, EDIT_REUSES), reread_tokens=reread,
                           labels=array if len(array) else None, n_labels=len(array))
        result = _options(_ffi.EditResult)
        if _is_text(text):
            data = _utf8(text)
            _call(lib.quire_session_edit_text, self._handle, data, len(data), byref(options), byref(result))
        else:
            ids, n_ids = _ids(cast("Iterable[int]", text))
            _call(lib.quire_session_edit_tokens, self._handle, ids, n_ids, byref(options), byref(result))
        return Edited(result.n_tokens, result.n_kept, result.n_moved)

    def label_attention(self) -> Infos:
        """Where the last answer looked: a dict for each label (id, first_token, n_tokens, share)."""
        needed = c_size_t()
        _call(lib.quire_session_get_label_attention, self._handle, None, 0, byref(needed))
        array = (_ffi.LabelAttention * needed.value)()
        _call(lib.quire_session_get_label_attention, self._handle, array, len(array), byref(needed))
        return _dicts(array)

    def passages(self, first_token: int = -1, n_tokens: int = 0, most: int = 5) -> Infos:
        """What the last answer, or some of its tokens, looked at most: a dict for each passage (first_token, n_tokens,
        feed, begin, end, label, label_id, share); needs a stream with cite=True."""
        needed = c_size_t()
        _call(lib.quire_session_get_passages, self._handle, first_token, n_tokens, most, None, 0, byref(needed))
        array = (_ffi.Passage * needed.value)()
        _call(lib.quire_session_get_passages, self._handle, first_token, n_tokens, most, array, len(array),
              byref(needed))
        return _dicts(array)

    def label_shares(self, first_token: int = -1, n_tokens: int = 0) -> Infos:
        """The same by label: a dict for each (id, first_token, n_tokens, share)."""
        needed = c_size_t()
        _call(lib.quire_session_get_label_shares, self._handle, first_token, n_tokens, None, 0, byref(needed))
        array = (_ffi.LabelAttention * needed.value)()
        _call(lib.quire_session_get_label_shares, self._handle, first_token, n_tokens, array, len(array),
              byref(needed))
        return _dicts(array)

    def feed_messages(self, messages: Messages, **options: Unpack[ChatOptions]) -> None:
        """(role, text) messages, as Tokenizer.render_chat takes them; behind an answer they end its turn first."""
        _call(lib.quire_session_feed_messages, self._handle, *_chat(messages, **options))

    def feed_tokens(self, ids: Iterable[int], positions: Optional[Iterable[int]] = None) -> None:
        """positions: strictly increasing, one for each id; None: each token follows the one before."""
        ids, n_ids = _ids(ids)
        if positions is None:
            _call(lib.quire_session_feed_tokens, self._handle, ids, n_ids)
            return
        places, n_places = _numbers("q", c_int64, positions)
        if n_places != n_ids:
            raise ValueError(f"{n_places} positions for {n_ids} ids")
        _call(lib.quire_session_feed_positions, self._handle, ids, places, n_ids)

    def discard_pending(self) -> None:
        _call(lib.quire_session_discard_pending, self._handle)

    def reset(self) -> None:
        _call(lib.quire_session_reset, self._handle)

    def truncate(self, n_tokens: int) -> None:
        """Forgets the tokens from the n_tokens-th on."""
        _call(lib.quire_session_truncate, self._handle, n_tokens)

    def save(self, file: File, progress: Optional[Progress] = None, cancel: Optional[Cancel] = None,
             whole: bool = False) -> None:
        """Writes the session to a file, for Model.load_session: to a path, where it appears whole or not at all, or to
        a binary file object, which a save that fails leaves with a part. Where the path has what the session was loaded
        from or saved to before, only what is new is written, unless whole=True. progress and cancel: as in
        Runtime.load."""
        with _Watched(progress, cancel) as watched:
            options = byref(_options(_ffi.SnapshotOptions, flags=_ffi.SNAPSHOT_WHOLE if whole else 0, **watched))
            if hasattr(file, "write"):
                writer = _snapshot_files.Writer(file)
                writer.raising(_call, lib.quire_session_save_to, self._handle, byref(writer.struct()), options)
            else:
                path = _path(file)
                _call(lib.quire_session_save, self._handle, path, len(path), options)

    def fork(self) -> Session:
        """Another session that stands where this one does, and shares with it what both hold."""
        return Session(self._parent, forked_from=self)

    @property
    def tokens(self) -> List[int]:
        """The ids of all tokens, pending ones last."""
        needed = c_size_t()
        _call(lib.quire_session_get_tokens, self._handle, None, 0, byref(needed))
        ids = (c_int32 * needed.value)()
        _call(lib.quire_session_get_tokens, self._handle, ids, len(ids), byref(needed))
        return list(ids)

    def stream(self, max_tokens: int = 0, **options: Unpack[StreamOptions]) -> Stream:
        """Starts to process what was fed and then to generate: a Stream of events."""
        return Stream(self, max_tokens, **options)

    def generate(self, max_tokens: int, **options: Unpack[StreamOptions]) -> Iterator[str]:
        """The same as pieces of text; leaving the loop early closes the stream."""
        with self.stream(max_tokens, **options) as stream:
            for event in stream:
                if event.text:
                    yield event.text

    def prefill(self, score: bool = False, keep_logits: bool = False, keep_hidden: bool = False) -> None:
        """Processes what was fed and generates nothing."""
        with self.stream(0, score=score, keep_logits=keep_logits, keep_hidden=keep_hidden) as stream:
            for _ in stream:
                pass

    @property
    def n_tokens(self) -> int:
        return self._count()[0]

    @property
    def n_pending(self) -> int:
        return self._count()[1]

    def _count(self) -> Tuple[int, int]:
        tokens, pending = c_int64(), c_int64()
        _call(lib.quire_session_get_token_counts, self._handle, byref(tokens), byref(pending))
        return tokens.value, pending.value

    def logits(self, first_token: int = -1, n_rows: int = 1) -> memoryview:
        """Raw logits as a memoryview of shape (n_rows, vocab_size): numpy.asarray(session.logits())."""
        array = (c_float * (n_rows * self._vocab_size))()
        _call(lib.quire_session_get_logits, self._handle, first_token, n_rows, array, len(array), None)
        return _rows(array, "f", n_rows, self._vocab_size)

    def hidden_states(self, first_token: int, n_rows: int = 1) -> memoryview:
        """Last hidden states (embeddings) as a memoryview of shape (n_rows, hidden_size); needs a stream with
        keep_hidden=True."""
        needed = c_size_t()
        _call(lib.quire_session_get_hidden_states, self._handle, first_token, n_rows, None, 0, byref(needed))
        array = (c_float * needed.value)()
        _call(lib.quire_session_get_hidden_states, self._handle, first_token, n_rows, array, len(array), None)
        return _rows(array, "f", n_rows, needed.value // n_rows)

    def scores(self, first_token: int, n: int) -> List[float]:
        """log p of n tokens, as a list; needs a stream with score=True."""
        array = (c_float * n)()
        _call(lib.quire_session_get_scores, self._handle, first_token, n, array, n, None)
        return list(array)

    @property
    def stats(self) -> Info:
        """quire_session_stats as a dict."""
        stats = _options(_ffi.SessionStats)
        _call(lib.quire_session_get_stats, self._handle, byref(stats))
        return _fields(stats)

    def tier(self, name: str) -> Info:
        """quire_tier_stats of "device", "host", "compressed", "file" or "snapshot", as a dict."""
        stats = _options(_ffi.TierStats)
        _call(lib.quire_session_get_tier_stats, self._handle, _choice("name", name, TIERS), byref(stats))
        return {key: value for key, value in _fields(stats).items() if key not in ("tier", "reserved")}

    @property
    def strategy(self) -> str:
        return _text(lib.quire_session_get_strategy, self._handle).decode()

    @property
    def fingerprint(self) -> str:
        """Names all that keys and values depend on beside the tokens."""
        return _text(lib.quire_session_get_fingerprint, self._handle).decode()

    def fill_random(self, n_tokens: int, seed: int = 0) -> None:
        """For benchmarks alone: the empty session becomes one of n_tokens random tokens, which are not computed."""
        _call(lib.quire_session_fill_random, self._handle, n_tokens, seed)

    @property
    def probes(self) -> Info:
        """For tests of cancelling: quire_session_probes as a dict."""
        probes = _options(_ffi.SessionProbes)
        _call(lib.quire_session_get_probes, self._handle, byref(probes))
        return _fields(probes)

    def close(self) -> None:
        """Ends an open stream, waits, and frees the KV cache."""
        self._stop(lib.quire_session_close)
