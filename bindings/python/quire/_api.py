"""The five nouns of quire.h as classes. Every method is one call; quire.h is the manual of what it does."""

import atexit
import contextlib
import ctypes
import itertools
import json
import os
import weakref
from ctypes import byref, c_float, c_int32, c_int64, c_size_t, c_void_p
from typing import NamedTuple, Optional

from . import _ffi, _snapshot_files
from ._library import lib

KV_TYPES = {"default": 0, "f32": 1, "f16": 2, "bf16": 3}
KV_OLD_TYPES = {"default": 0, "int8": 12, "int4": 13}
TYPES = {**KV_TYPES, "q8_0": 4, "q4_0": 5, "q4_1": 6, "q5_0": 7, "q5_1": 8, "q4_k": 9, "q5_k": 10, "q6_k": 11}
LOADS = {"default": 0, "mmap": 1, "read": 2}
DEVICE_KINDS = {1: "cpu", 2: "cuda"}
OVERFLOWS = {"default": 0, "error": 1, "stop": 2, "extrapolate": 3}
LOG_LEVELS = {"default": 0, "error": 1, "warning": 2, "info": 3, "debug": 4}
EVENTS = {1: "prefill", 2: "token", 3: "warning", 4: "end", 5: "notice"}
FINISHES = {0: "", 1: "max_tokens", 2: "eos", 3: "stop_id", 4: "stop_string", 5: "reach", 6: "cancelled",
            7: "deadline"}
REUSE_MISSES = {0: "complete", 1: "unknown", 2: "off", 3: "strategy", 4: "stream", 5: "positions", 6: "memory", 7: "approximate"}
EDIT_REUSES = {"exact": 0, "approximate": 1}
MESSAGES = {0: "", 1: "adapter_base", 2: "untrained_positions", 101: "auto_choice"}
KV_KINDS = {"text": 0, "condensed": 1}  # of keys and values
TIERS = {"device": 1, "host": 2, "compressed": 3, "file": 4, "snapshot": 5}
_BUDGETS = {f"kv_{tier}_budget_bytes" for tier in TIERS if tier != "snapshot"}
SAMPLERS = {"temperature": 1, "top_k": 2, "top_p": 3, "min_p": 4, "typical": 5, "penalties": 6, "dry": 7}
_END, _TIMEOUT, _CLOSED = 1, 2, -9
_POLL_MS = 200  # how long Python's own signal handlers may have to wait


class QuireError(Exception):
    """A failed call: `status` ("BAD_FILE", ...), `code`, `message`, `offset` (-1: none), `os_error` (errno or 0)."""

    def __init__(self, code, message, offset=-1, os_error=0):
        self.code, self.message, self.offset, self.os_error = code, message, offset, os_error
        self.status = lib.quire_get_status_name(code).decode()
        super().__init__(f"{self.status}: {message}")


class Event(NamedTuple):
    """What a stream reports. Which fields mean something depends on the kind: see quire_event in quire.h."""

    kind: str  # "prefill", "token", "warning", "end", "notice"
    text: str
    token: int
    n_tokens: int
    logprob: float
    total: int
    reused: int
    done: int
    n_per_second: float
    finish_reason: str
    stop_index: int
    top_logprobs: list  # (token, logprob), the most probable first
    message: str  # of a warning or notice, for a person; `text` is the answer's alone
    code: str  # of the message: a value of MESSAGES
    reuse_miss: str  # a value of REUSE_MISSES
    moved: int


class Edited(NamedTuple):
    """What Session.edit came to, in tokens; those that are neither kept nor moved will be computed."""

    n_tokens: int
    n_kept: int
    n_moved: int


def _call(function, *arguments):
    """Calls a function that takes a quire_error; raises on failure, returns the (positive) status."""
    error = _ffi.Error()
    status = function(*arguments, byref(error))
    if status < 0:
        raise QuireError(status, error.message.decode(errors="replace"), error.offset, error.os_error)
    return status


def _options(cls, **fields):
    return cls(struct_size=ctypes.sizeof(cls), **fields)


def _choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return choices[value]


def _text(function, *arguments):
    """The result of a `buf, cap, *needed` function, as bytes."""
    needed = c_size_t()
    _call(function, *arguments, None, 0, byref(needed))
    buffer = ctypes.create_string_buffer(max(needed.value, 1))
    _call(function, *arguments, buffer, needed.value, byref(needed))
    return buffer.raw[:needed.value]


def _ids(ids):
    ids = list(ids)
    return (c_int32 * len(ids))(*ids), len(ids)


def _texts(strings):
    data = [text.encode() for text in strings]
    return (_ffi.Text * len(data))(*[(text, len(text)) for text in data])


def _path(path):
    path = os.fspath(path)
    return path if isinstance(path, bytes) else path.encode()


def _progress(progress):
    """progress(done, total) as C calls it; None: NULL. The caller keeps the result for as long as C may call it."""
    return _ffi.ProgressCallback((lambda _, done, total: progress(done, total)) if progress else 0)


def _pairs(items):
    """Adapters or their paths, each alone or with a scale: (item, scale)."""
    return [item if isinstance(item, tuple) else (item, 1.0) for item in items]


def _rows(array, kind, n_rows, n_columns):
    """A ctypes array as a two-dimensional memoryview, which numpy.asarray takes without a copy."""
    return memoryview(array).cast("B").cast(kind, (n_rows, n_columns))


def _dicts(array):
    return [{name: getattr(item, name) for name, _ in item._fields_} for item in array]


def _fields(struct):
    return {name: getattr(struct, name) for name, _ in struct._fields_[2:]}


class _Handle:
    """Owns one reference, dropped when the object is collected. Objects keep their parents alive."""

    _release = None  # the name of the C function

    def _own(self, parent, function, *arguments):
        out = c_void_p()
        _call(function, *arguments, byref(out))
        self._parent = parent
        self._pointer = out
        self._finalizer = weakref.finalize(self, getattr(lib, self._release), out)
        self._finalizer.atexit = False  # see _close_runtimes

    @property
    def _handle(self):
        if not self._finalizer.alive:
            raise QuireError(_CLOSED, f"this {type(self).__name__} was closed")
        return self._pointer

    def close(self):
        """Drops the reference now. A second close does nothing."""
        self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


# A thread of the library that enters Python while the interpreter shuts down would be killed inside C++ frames. So the
# function that C calls is never freed, and the threads are joined before the shutdown.
_logs = {}  # of the living Runtimes
_log_keys = itertools.count(1)
_runtimes = weakref.WeakSet()


@_ffi.LogCallback
def _log(key, level, message, length):
    if log := _logs.get(key):
        log(level, message[:length].decode(errors="replace"))


@atexit.register
def _close_runtimes():
    for runtime in list(_runtimes):
        with contextlib.suppress(QuireError):
            runtime.close()


class Runtime(_Handle):
    """Threads and memory. log: called as log(level, message) on any thread; it must not call Quire.
    prefix_cache_bytes: most bytes that are kept of released sessions, for the next one whose text begins as one of
    theirs."""

    _release = "quire_runtime_release"

    def __init__(self, threads=0, io_threads=0, log=None, log_level="default", prefix_cache_bytes=0):
        options = _options(_ffi.RuntimeOptions, n_threads=threads, n_io_threads=io_threads,
                           prefix_cache_bytes=prefix_cache_bytes,
                           log_level=_choice("log_level", log_level, LOG_LEVELS))
        if log is not None:
            key = next(_log_keys)
            _logs[key] = log
            options.log, options.log_user_data = _log, key
            weakref.finalize(self, _logs.pop, key).atexit = False
        self._own(None, lib.quire_runtime_create, byref(options))
        _runtimes.add(self)

    def load(self, path, weight_type="default", load="default", cancel=None, progress=None, merge=(),
             beacon=None, device="auto"):
        """Loads a model: a Hugging Face directory, or a GGUF file. device: the name of one of devices(). progress:
        called as progress(done_bytes, total_bytes) on this thread. merge: adapter directories, each as a path or (path,
        scale), to be merged into the weights. beacon: the directory of an Activation Beacon plug-in. load:
        "mmap" maps the files, and a file that shrinks then kills the process; "read" (the default) reads
        them."""
        return Model(self, path, weight_type, load, cancel, progress, merge, beacon, device)

    def devices(self):
        """What models can run on: quire_device_info as dicts, `kind` by name and `usable` as a bool."""
        count, found = c_int32(), []
        _call(lib.quire_runtime_get_device_count, self._handle, byref(count))
        for index in range(count.value):
            info = _options(_ffi.DeviceInfo)
            _call(lib.quire_runtime_get_device_info, self._handle, index, byref(info))
            found.append({"name": info.name.decode(), "kind": DEVICE_KINDS.get(info.kind, "unknown"),
                          "description": info.description.decode(), "usable": bool(info.flags & 1),
                          "obstacle": info.obstacle.decode(), "memory_bytes": info.memory_bytes,
                          "free_bytes": info.free_bytes})
        return found

    @property
    def stats(self):
        """quire_runtime_stats as a dict."""
        stats = _options(_ffi.RuntimeStats)
        _call(lib.quire_runtime_get_stats, self._handle, byref(stats))
        return _fields(stats)

    def tokenizer(self, path):
        """The tokenizer of a model directory, a tokenizer.model, a tokenizer.json or a GGUF file; no weights."""
        return Tokenizer(self, path)

    def plan_memory(self, path, n_tokens, strategy="full", weight_type="default", load="default", **options):
        """quire_memory_plan as a dict: what the model and a session of n_tokens would take. options: Session's."""
        plan = _options(_ffi.MemoryPlan)
        _call(lib.quire_runtime_plan_memory, *self._planned(path, strategy, weight_type, load, **options), n_tokens,
              byref(plan))
        return _fields(plan)

    def check(self, path, strategy="full", **options):
        """Raises what a Session(model, strategy, **options) would raise for the model in `path`; loads nothing."""
        _call(lib.quire_runtime_check_session, *self._planned(path, strategy, **options))

    def describe_strategy(self, path, strategy="auto", **options):
        """The canonical strategy that such a session would have; loads nothing."""
        return _text(lib.quire_runtime_describe_strategy, *self._planned(path, strategy, **options)).decode()

    def _planned(self, path, strategy, weight_type="default", load="default", **options):
        model = _options(_ffi.ModelOptions, load=_choice("load", load, LOADS),
                         weight_type=_choice("weight_type", weight_type, TYPES))
        path = _path(path)
        return self._handle, path, len(path), byref(model), byref(_session_options(strategy, **options))

    def close(self):
        """Stops everything that runs on this runtime and waits for it."""
        _call(lib.quire_runtime_close, self._handle)


class Cancel(_Handle):
    """Stops a long load: trigger() from any thread."""

    _release = "quire_cancel_release"

    def __init__(self):
        self._own(None, lib.quire_cancel_create)

    def trigger(self):
        lib.quire_cancel_trigger(self._handle)


class Model(_Handle):
    _release = "quire_model_release"

    def __init__(self, runtime, path, weight_type="default", load="default", cancel=None, progress=None, merge=(),
                 beacon=None, device="auto"):
        report = _progress(progress)
        merge = [(_path(source), scale) for source, scale in _pairs(merge)]
        sources = (_ffi.AdapterSource * len(merge))(*[(source, len(source), scale) for source, scale in merge])
        device = device.encode()
        beacon = _path(beacon) if beacon is not None else None
        options = _options(_ffi.ModelOptions, load=_choice("load", load, LOADS),
                           weight_type=_choice("weight_type", weight_type, TYPES), beacon_path=beacon,
                           beacon_path_len=len(beacon or b""), device=device,
                           device_len=len(device), cancel=cancel._handle if cancel else None, progress=report,
                           merge=sources if len(sources) else None, n_merge=len(sources))
        path = _path(path)
        self._own(runtime, lib.quire_model_load, runtime._handle, path, len(path), byref(options))

    @property
    def info(self):
        """quire_model_info as a dict; weight_type by name."""
        info = _options(_ffi.ModelInfo)
        _call(lib.quire_model_get_info, self._handle, byref(info))
        names = {number: name for name, number in TYPES.items()}
        return {**_fields(info), "weight_type": names.get(info.weight_type, "unknown")}

    def check(self, strategy="full", **options):
        """Raises what Session(model, strategy, **options) would raise, and makes nothing."""
        _call(lib.quire_model_check_session, self._handle, byref(_session_options(strategy, **options)))

    def estimate(self, n_tokens, strategy="full", **options):
        """quire_rate_estimate as a dict: how long such a Session would take to read n_tokens tokens and to answer."""
        estimate = _options(_ffi.RateEstimate)
        _call(lib.quire_model_estimate_rates, self._handle, byref(_session_options(strategy, **options)), n_tokens,
              byref(estimate))
        return _fields(estimate)

    def metadata(self, key):
        return _text(lib.quire_model_get_metadata, self._handle, key.encode(), len(key.encode())).decode()

    @property
    def tokenizer(self):
        return Tokenizer(self)

    def load_adapter(self, path, progress=None, cancel=None):
        """Loads a PEFT LoRA directory for sessions of this model. progress and cancel: as in Runtime.load."""
        return Adapter(self, path, progress, cancel)

    def session(self, strategy="full", **options):
        return Session(self, strategy, **options)

    def load_session(self, file, strategy=None, **options):
        """A session that goes on where one was saved; options as of session(), the saved session's where not given.
        file: a path, or a binary file object that can seek. Such an object belongs to the session, which reads all of
        it whenever it needs a part, on threads of the runtime, as long as the session or a fork of it lives."""
        return Session(self, strategy, snapshot=file, **options)

    def describe_strategy(self, strategy="auto", **options):
        """The canonical strategy that session(strategy, **options) would have, without creating it."""
        return _text(lib.quire_model_describe_strategy, self._handle,
                     byref(_session_options(strategy, **options))).decode()


class Adapter(_Handle):
    """A LoRA adapter of one model, for Session(adapters=[...])."""

    _release = "quire_adapter_release"
    FLAGS = {"replaces_embedding": 1, "replaces_lm_head": 2, "replaces_norms": 4, "changes_queries_or_keys": 8}

    def __init__(self, model, path, progress=None, cancel=None):
        path, report = _path(path), _progress(progress)
        options = _options(_ffi.AdapterOptions, cancel=cancel._handle if cancel else None, progress=report)
        self._own(model, lib.quire_adapter_load, model._handle, path, len(path), byref(options))

    @property
    def info(self):
        """quire_adapter_info as a dict; each flag as a bool."""
        info = _options(_ffi.AdapterInfo)
        _call(lib.quire_adapter_get_info, self._handle, byref(info))
        return {**_fields(info), **{name: bool(info.flags & bit) for name, bit in self.FLAGS.items()}}

    def metadata(self, key):
        """ "identity" or "base_model"."""
        return _text(lib.quire_adapter_get_metadata, self._handle, key.encode(), len(key.encode())).decode()


class Tokenizer(_Handle):
    """Of a Model; or, of a Runtime and a path, one alone (Runtime.tokenizer)."""

    _release = "quire_tokenizer_release"

    def __init__(self, parent, path=None):
        if path is None:
            self._own(parent, lib.quire_model_get_tokenizer, parent._handle)
        else:
            path = _path(path)
            self._own(parent, lib.quire_tokenizer_load, parent._handle, path, len(path))

    def encode(self, text, parse_special=False, bos=True, continued=False):
        data = text.encode()
        flags = parse_special * 1 | (not bos) * 2 | continued * 4
        needed = c_size_t()
        _call(lib.quire_tokenizer_encode, self._handle, data, len(data), flags, None, 0, byref(needed))
        ids = (c_int32 * needed.value)()
        _call(lib.quire_tokenizer_encode, self._handle, data, len(data), flags, ids, needed.value, byref(needed))
        return list(ids)

    def decode(self, ids, special=False):
        return _text(lib.quire_tokenizer_decode, self._handle, *_ids(ids), int(special)).decode()

    @property
    def chat_template(self):
        """The name of the checkpoint's own chat template."""
        return _text(lib.quire_tokenizer_get_chat_template, self._handle).decode()

    def render_chat(self, messages, **options):
        """(role, text) messages as one text. options: template (a name), date ("2025-06-30"), answer=False (do not
        begin one), thinking=False."""
        return _text(lib.quire_tokenizer_render_chat, self._handle, *_chat(messages, **options)).decode()

    def encode_chat(self, messages, **options):
        """The same as ids."""
        arguments, needed = _chat(messages, **options), c_size_t()
        _call(lib.quire_tokenizer_encode_chat, self._handle, *arguments, None, 0, byref(needed))
        ids = (c_int32 * needed.value)()
        _call(lib.quire_tokenizer_encode_chat, self._handle, *arguments, ids, len(ids), byref(needed))
        return list(ids)

    def token_bytes(self, token):
        return _text(lib.quire_tokenizer_get_token_bytes, self._handle, token)

    def is_eos(self, token):
        return bool(lib.quire_tokenizer_is_eos(self._handle, token))

    @property
    def bos(self):
        """Beginning-of-sequence id, or None."""
        bos = lib.quire_tokenizer_get_bos(self._handle)
        return None if bos < 0 else bos

    @property
    def vocab_size(self):
        return lib.quire_tokenizer_get_vocab_size(self._handle)


def _chat(messages, template=None, date=None, answer=True, thinking=True):
    """messages: (role, text) each. The arguments that the functions on conversations share."""
    data = [(role.encode(), text.encode()) for role, text in messages]
    array = (_ffi.Message * len(data))(*[(role, len(role), text, len(text)) for role, text in data])
    template, date = (value if value is None else value.encode() for value in (template, date))
    options = _options(_ffi.ChatOptions, flags=(0 if answer else 1) | (0 if thinking else 2), template_name=template,
                       template_name_len=len(template or b""), date=date, date_len=len(date or b""))
    return array, len(data), byref(options)


def _session_options(strategy="full", kv_type="default", kv_old_type="default", old_after=None, overflow="default", expected_tokens=0, prefill_block=0,
                     kv_file_directory="", adapters=(), prefix_reuse=True, **budgets):
    used = (_ffi.SessionAdapter * len(adapters))(
        *[_ffi.SessionAdapter(adapter=adapter._handle, scale=scale) for adapter, scale in _pairs(adapters)])
    if unknown := set(budgets) - _BUDGETS:
        raise TypeError(f"a session has no option {', '.join(sorted(unknown))}")
    text, directory = (strategy or "").encode(), os.fsencode(kv_file_directory)
    return _options(
        _ffi.SessionOptions, flags=0 if prefix_reuse else 1, strategy=None if strategy is None else text, strategy_len=len(text), kv_type=_choice("kv_type", kv_type, KV_TYPES),
        kv_old_type=_choice("kv_old_type", kv_old_type, KV_OLD_TYPES), old_after={None: 0, 0: -1}.get(old_after, old_after),
        overflow=_choice("overflow", overflow, OVERFLOWS), expected_tokens=expected_tokens,
        prefill_block=prefill_block, kv_file_directory=directory or None, kv_file_directory_len=len(directory),
        **budgets,
        adapters=used if len(used) else None, n_adapters=len(used))


class Session(_Handle):
    """A text and its KV cache."""

    _release = "quire_session_release"

    def __init__(self, model, strategy="full", snapshot=None, forked_from=None, stored=None, **options):
        """snapshot: what to load it from (Model.load_session); forked_from: see fork(); stored: see Store.load. options: kv_type, kv_old_type (int8, int4) and old_after (tokens), overflow, expected_tokens, prefill_block, kv_host_budget_bytes, kv_compressed_budget_bytes, kv_file_budget_bytes,
        kv_file_directory and the other fields of quire_session_options. adapters: each an Adapter or (Adapter,
        scale). prefix_reuse: False for QUIRE_SESSION_NO_PREFIX_REUSE."""
        options = _session_options(strategy, **options)
        self._reader = None  # what it reads keys and values from, where that is a file object
        if forked_from is not None:
            self._own(model, lib.quire_session_fork, forked_from._handle)
            self._reader = forked_from._reader
        elif stored is not None:
            store, ids, n_ids, match = stored
            self._own(model, lib.quire_store_load, store, model._handle, byref(options), ids, n_ids, byref(match))
        elif hasattr(snapshot, "read"):
            self._reader = _snapshot_files.Reader(snapshot)
            self._reader.load(self._own, model, lib.quire_session_load_from, model._handle,
                              byref(self._reader.struct()), byref(options))
        elif snapshot is None:
            self._own(model, lib.quire_session_create, model._handle, byref(options))
        else:
            path = _path(snapshot)
            self._own(model, lib.quire_session_load, model._handle, path, len(path), byref(options))
        self._vocab_size = model.info["vocab_size"]

    def feed(self, text, parse_special=False, bos=True, labels=()):
        """Queues one segment of text (a str, or its UTF-8 bytes). labels: (begin, end, id), in bytes of it."""
        data = text if isinstance(text, bytes) else text.encode()
        array = (_ffi.Label * len(labels))(*labels)
        _call(lib.quire_session_feed_labelled, self._handle, data, len(data), parse_special * 1 | (not bos) * 2,
              array if len(array) else None, len(array))

    def edit(self, text, reuse="exact", reread=0, parse_special=False, bos=True, labels=()):
        """The session's text becomes this one (a str, or its UTF-8 bytes, fed at once; or a list of token ids), and what
        was computed before the first difference stays. reuse="approximate": later chunks are taken over too, but for the
        first `reread` tokens of each run that is in both texts. Returns an Edited."""
        array = (_ffi.Label * len(labels))(*labels)
        options = _options(_ffi.EditOptions, flags=parse_special * 1 | (not bos) * 2,
                           reuse=_choice("reuse", reuse, EDIT_REUSES), reread_tokens=reread,
                           labels=array if len(array) else None, n_labels=len(array))
        result = _options(_ffi.EditResult)
        if isinstance(text, (str, bytes)):
            data = text if isinstance(text, bytes) else text.encode()
            _call(lib.quire_session_edit_text, self._handle, data, len(data), byref(options), byref(result))
        else:
            ids, n_ids = _ids(text)
            _call(lib.quire_session_edit_tokens, self._handle, ids, n_ids, byref(options), byref(result))
        return Edited(result.n_tokens, result.n_kept, result.n_moved)

    def label_attention(self):
        """Where the last answer looked: a dict for each label (id, first_token, n_tokens, share)."""
        needed = c_size_t()
        _call(lib.quire_session_get_label_attention, self._handle, None, 0, byref(needed))
        array = (_ffi.LabelAttention * needed.value)()
        _call(lib.quire_session_get_label_attention, self._handle, array, len(array), byref(needed))
        return _dicts(array)

    def passages(self, first_token=-1, n_tokens=0, most=5):
        """What the last answer, or some of its tokens, looked at most: a dict for each passage (first_token, n_tokens,
        feed, begin, end, label, label_id, share); needs a stream with cite=True."""
        needed = c_size_t()
        _call(lib.quire_session_get_passages, self._handle, first_token, n_tokens, most, None, 0, byref(needed))
        array = (_ffi.Passage * needed.value)()
        _call(lib.quire_session_get_passages, self._handle, first_token, n_tokens, most, array, len(array),
              byref(needed))
        return _dicts(array)

    def label_shares(self, first_token=-1, n_tokens=0):
        """The same by label: a dict for each (id, first_token, n_tokens, share)."""
        needed = c_size_t()
        _call(lib.quire_session_get_label_shares, self._handle, first_token, n_tokens, None, 0, byref(needed))
        array = (_ffi.LabelAttention * needed.value)()
        _call(lib.quire_session_get_label_shares, self._handle, first_token, n_tokens, array, len(array),
              byref(needed))
        return _dicts(array)

    def feed_messages(self, messages, **options):
        """(role, text) messages, as Tokenizer.render_chat takes them; behind an answer they end its turn first."""
        _call(lib.quire_session_feed_messages, self._handle, *_chat(messages, **options))

    def feed_tokens(self, ids, positions=None):
        """positions: strictly increasing, one for each id; None: each token follows the one before."""
        ids, n_ids = _ids(ids)
        if positions is None:
            _call(lib.quire_session_feed_tokens, self._handle, ids, n_ids)
            return
        positions = list(positions)
        if len(positions) != n_ids:
            raise ValueError(f"{len(positions)} positions for {n_ids} ids")
        _call(lib.quire_session_feed_positions, self._handle, ids, (c_int64 * n_ids)(*positions), n_ids)

    def discard_pending(self):
        _call(lib.quire_session_discard_pending, self._handle)

    def reset(self):
        _call(lib.quire_session_reset, self._handle)

    def truncate(self, n_tokens):
        """Forgets the tokens from the n_tokens-th on."""
        _call(lib.quire_session_truncate, self._handle, n_tokens)

    def save(self, file, progress=None, cancel=None):
        """Writes the session to a file, for Model.load_session: to a path, where it appears whole or not at all, or to
        a binary file object, which a save that fails leaves with a part. progress and cancel: as in Runtime.load."""
        report = _progress(progress)
        options = byref(_snapshot_options(report, cancel))
        if hasattr(file, "write"):
            writer = _snapshot_files.Writer(file)
            writer.raising(_call, lib.quire_session_save_to, self._handle, byref(writer.struct()), options)
        else:
            path = _path(file)
            _call(lib.quire_session_save, self._handle, path, len(path), options)

    def fork(self):
        """Another session that stands where this one does, and shares with it what both hold."""
        return Session(self._parent, forked_from=self)

    @property
    def tokens(self):
        """The ids of all tokens, pending ones last."""
        needed = c_size_t()
        _call(lib.quire_session_get_tokens, self._handle, None, 0, byref(needed))
        ids = (c_int32 * needed.value)()
        _call(lib.quire_session_get_tokens, self._handle, ids, len(ids), byref(needed))
        return list(ids)

    def stream(self, max_tokens=0, **options):
        """Starts to process what was fed and then to generate: a Stream of events."""
        return Stream(self, max_tokens, **options)

    def generate(self, max_tokens, **options):
        """The same as pieces of text; leaving the loop early closes the stream."""
        with self.stream(max_tokens, **options) as stream:
            for event in stream:
                if event.text:
                    yield event.text

    def prefill(self, score=False, keep_logits=False, keep_hidden=False):
        """Processes what was fed and generates nothing."""
        with self.stream(0, score=score, keep_logits=keep_logits, keep_hidden=keep_hidden) as stream:
            for _ in stream:
                pass

    @property
    def n_tokens(self):
        return self._count()[0]

    @property
    def n_pending(self):
        return self._count()[1]

    def _count(self):
        tokens, pending = c_int64(), c_int64()
        _call(lib.quire_session_get_token_counts, self._handle, byref(tokens), byref(pending))
        return tokens.value, pending.value

    def logits(self, first_token=-1, n_rows=1):
        """Raw logits as a memoryview of shape (n_rows, vocab_size): numpy.asarray(session.logits())."""
        array = (c_float * (n_rows * self._vocab_size))()
        _call(lib.quire_session_get_logits, self._handle, first_token, n_rows, array, len(array), None)
        return _rows(array, "f", n_rows, self._vocab_size)

    def hidden_states(self, first_token, n_rows=1):
        """Last hidden states (embeddings) as a memoryview of shape (n_rows, hidden_size); needs a stream with
        keep_hidden=True."""
        needed = c_size_t()
        _call(lib.quire_session_get_hidden_states, self._handle, first_token, n_rows, None, 0, byref(needed))
        array = (c_float * needed.value)()
        _call(lib.quire_session_get_hidden_states, self._handle, first_token, n_rows, array, len(array), None)
        return _rows(array, "f", n_rows, needed.value // n_rows)

    def scores(self, first_token, n):
        """log p of n tokens, as a list; needs a stream with score=True."""
        array = (c_float * n)()
        _call(lib.quire_session_get_scores, self._handle, first_token, n, array, n, None)
        return list(array)

    @property
    def stats(self):
        """quire_session_stats as a dict."""
        stats = _options(_ffi.SessionStats)
        _call(lib.quire_session_get_stats, self._handle, byref(stats))
        return _fields(stats)

    def tier(self, name):
        """quire_tier_stats of "device", "host", "compressed", "file" or "snapshot", as a dict."""
        stats = _options(_ffi.TierStats)
        _call(lib.quire_session_get_tier_stats, self._handle, _choice("name", name, TIERS), byref(stats))
        return {key: value for key, value in _fields(stats).items() if key not in ("tier", "reserved")}

    @property
    def strategy(self):
        return _text(lib.quire_session_get_strategy, self._handle).decode()

    @property
    def fingerprint(self):
        """Names all that keys and values depend on beside the tokens."""
        return _text(lib.quire_session_get_fingerprint, self._handle).decode()

    def close(self):
        """Ends an open stream, waits, and frees the KV cache."""
        _call(lib.quire_session_close, self._handle)


class Store(_Handle):
    """A directory of documents that were read, which processes share. Any thread may use it."""

    _release = "quire_store_release"

    def __init__(self, path, budget_bytes=0, must_exist=False):
        """The directory is made where it is missing, unless it must_exist. budget_bytes: of all entries together; 0: no
        limit."""
        options = _options(_ffi.StoreOptions, flags=_ffi.STORE_MUST_EXIST if must_exist else 0,
                           budget_bytes=budget_bytes)
        path = _path(path)
        self._own(None, lib.quire_store_open, path, len(path), byref(options))

    def put(self, session, title="", progress=None, cancel=None):
        """Puts what the session has read there; a dict of the entry's "name" and its "n_tokens". progress and cancel:
        as in Runtime.load."""
        report = _progress(progress)
        match = _options(_ffi.StoreMatch)
        title = title.encode()
        _call(lib.quire_store_put, self._handle, session._handle, title, len(title),
              byref(_snapshot_options(report, cancel)), byref(match))
        return {"name": match.name.decode(), "n_tokens": match.n_tokens}

    def find(self, model, ids, strategy="full", **options):
        """How much of a text is there for a session of these options: a dict of the entry's "name" ("": none), how many
        of the first tokens it has ("n_tokens"), how many of those need not be read again ("n_computed"), and why there
        are none ("reason")."""
        match = _options(_ffi.StoreMatch)
        ids, n_ids = _ids(ids)
        _call(lib.quire_store_find, self._handle, model._handle, byref(_session_options(strategy, **options)), ids, n_ids,
              byref(match))
        return {"name": match.name.decode(), "n_tokens": match.n_tokens, "n_computed": match.n_computed,
                "reason": match.reason.decode()}

    def load(self, model, ids, strategy="full", **options):
        """A session that holds as many of the first tokens as are there (session.n_tokens); feed it the others. Raises
        QuireError NOT_FOUND, which says why, where there are none."""
        ids, n_ids = _ids(ids)
        return Session(model, strategy, stored=(self._handle, ids, n_ids, _options(_ffi.StoreMatch)), **options)

    def remove(self, name):
        """Removes an entry; sessions that have it open go on."""
        name = name.encode()
        _call(lib.quire_store_remove, self._handle, name, len(name))

    def verify(self, name, progress=None, cancel=None):
        """As verify_snapshot, for an entry."""
        report = _progress(progress)
        name = name.encode()
        _call(lib.quire_store_verify, self._handle, name, len(name), byref(_snapshot_options(report, cancel)))

    def describe(self):
        """What is in the store: a dict (quire_store_describe in quire.h)."""
        while True:  # it may grow between the question for its length and that for its text
            try:
                return json.loads(_text(lib.quire_store_describe, self._handle))
            except QuireError as error:
                if error.status != "BUFFER_TOO_SMALL":
                    raise


class Stream(_Handle):
    """An iterator of events. Ctrl-C interrupts the wait; cancel() and close() may come from any thread."""

    _release = "quire_stream_release"

    def __init__(self, session, max_tokens=0, temperature=0.0, top_k=0, top_p=0.0, min_p=0.0, seed=0, stop_ids=(),
                 stop=(), score=False, keep_logits=False, ignore_eos=False, samplers=(), logit_bias=None,
                 dry_breakers=None, min_tokens=0, deadline=0.0, top_logprobs=0, max_undelivered=0,
                 constrain=False, keep_hidden=False, cite=False, cite_end=0):
        """samplers: a chain of (kind, fields), such as ("penalties", dict(a=1.1, n=64)); see quire_sampler. logit_bias:
        {token: bias}. dry_breakers: None for the usual ones. deadline: seconds. cite: for Session.passages, of the
        tokens before cite_end (0: all but the last 64 before the answer)."""
        ids, n_ids = _ids(stop_ids)
        chain = (_ffi.Sampler * len(samplers))(
            *[_ffi.Sampler(kind=_choice("sampler", kind, SAMPLERS), **fields) for kind, fields in samplers])
        biases = (_ffi.LogitBias * len(logit_bias or {}))(*(logit_bias or {}).items())
        stops, breakers = _texts([stop] if isinstance(stop, str) else stop), _texts(dry_breakers or ())
        options = _options(
            _ffi.StreamOptions, max_tokens=max_tokens,
            flags=score * 1 | keep_logits * 2 | ignore_eos * 4 | constrain * 8 | keep_hidden * 16 | cite * 32,
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop_ids=ids if n_ids else None,
            n_stop_ids=n_ids, stop_strings=stops if len(stops) else None, n_stop_strings=len(stops),
            samplers=chain if len(chain) else None, n_samplers=len(chain),
            logit_bias=biases if len(biases) else None, n_logit_bias=len(biases),
            dry_breakers=None if dry_breakers is None else breakers, n_dry_breakers=len(breakers),
            min_tokens=min_tokens, deadline_ms=round(deadline * 1000), n_top_logprobs=top_logprobs,
            max_undelivered=max_undelivered, cite_end=cite_end)
        self._vocab_size = session._vocab_size
        self._own(session, lib.quire_stream_open, session._handle, byref(options))

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event; None if none came within `timeout` seconds; StopIteration after the end."""
        event = _options(_ffi.Event)
        milliseconds = _POLL_MS if timeout is None else min(int(timeout * 1000), 2**31 - 1)
        while True:
            status = _call(lib.quire_stream_next, self._handle, milliseconds, byref(event))
            if status == _END:
                raise StopIteration
            if status != _TIMEOUT:
                break
            if timeout is not None:
                return None
        text = event.text[:event.text_len].decode() if event.text_len else ""
        return Event(EVENTS.get(event.kind, str(event.kind)), text, event.token, event.n_tokens, event.logprob,
                     event.total, event.reused, event.done, event.n_per_second,
                     FINISHES.get(event.finish_reason, str(event.finish_reason)), event.stop_index,
                     [(t.token, t.logprob) for t in event.top_logprobs[:event.n_top_logprobs]],
                     event.message[:event.message_len].decode() if event.message_len else "",
                     MESSAGES.get(event.code, str(event.code)),
                     REUSE_MISSES.get(event.reuse_miss, str(event.reuse_miss)), event.moved)

    def __iter__(self):
        return self

    def __next__(self):
        return self.next()

    def add_stop(self, stop=(), stop_ids=()):
        """More strings and ids that end the answer, for all tokens not delivered yet."""
        ids, n_ids = _ids(stop_ids)
        texts = _texts([stop] if isinstance(stop, str) else stop)
        _call(lib.quire_stream_add_stop_ids, self._handle, ids, n_ids)
        _call(lib.quire_stream_add_stop_strings, self._handle, texts if len(texts) else None, len(texts))

    def allow(self, ids=None):
        """With constrain=True: the ids that may come next; None: any. Before the first token and after each one."""
        if ids is None:
            _call(lib.quire_stream_allow, self._handle, None, 0)
            return
        words = (ctypes.c_uint32 * ((self._vocab_size + 31) // 32))()
        for token in ids:
            words[token // 32] |= 1 << token % 32
        _call(lib.quire_stream_allow, self._handle, words, len(words))

    def cancel(self):
        _call(lib.quire_stream_cancel, self._handle)

    def close(self):
        """Stops the stream and waits until nothing works for it."""
        _call(lib.quire_stream_close, self._handle)

    def wait_handle(self):
        """A file descriptor that is readable while an event waits (for select, asyncio); only poll it."""
        handle, kind = c_int64(), c_int32()
        _call(lib.quire_stream_get_wait_handle, self._handle, byref(handle), byref(kind))
        return handle.value


def version():
    """The loaded library's version, "0.1.0"."""
    return lib.quire_get_version_string().decode()


def _strategy_options(expression, train_len, n_heads, expected_tokens):
    text = expression.encode()
    return _options(_ffi.StrategyOptions, strategy=text, strategy_len=len(text), train_len=train_len,
                    expected_tokens=expected_tokens, n_heads=n_heads)


def strategy_describe(expression, train_len, n_heads=0, expected_tokens=0):
    """The expression in canonical form, every default written out."""
    return _text(lib.quire_strategy_describe,
                 byref(_strategy_options(expression, train_len, n_heads, expected_tokens))).decode()


def chat_templates():
    """The known chat templates: a list of dicts with "name" and "description"."""
    return json.loads(_text(lib.quire_chat_get_list))["templates"]


def describe_files(path):
    """What the files of a model hold, without loading it: see quire_model_describe_files in quire.h."""
    path = _path(path)
    return json.loads(_text(lib.quire_model_describe_files, path, len(path)))


def quantizations():
    """The names of the recipes that quantize() knows."""
    return lib.quire_get_quantizations().decode().split(", ")


def quantize(path, out, recipe="q4_k_m", threads=0, progress=None, cancel=None):
    """Writes a model as a GGUF file. progress and cancel: as in Runtime.load."""
    report = _progress(progress)
    path, out, recipe = _path(path), _path(out), recipe.encode()
    options = _options(_ffi.QuantizeOptions, n_threads=threads, recipe=recipe, recipe_len=len(recipe),
                       cancel=cancel._handle if cancel else None, progress=report)
    _call(lib.quire_model_quantize, path, len(path), out, len(out), byref(options))


def _snapshot_options(report, cancel):
    return _options(_ffi.SnapshotOptions, cancel=cancel._handle if cancel else None, progress=report)


def describe_snapshot(file):
    """What a snapshot says of itself: a dict (quire_snapshot_describe in quire.h). file: as in Model.load_session."""
    if hasattr(file, "read"):
        reader = _snapshot_files.Reader(file)
        text = reader.raising(_text, lib.quire_snapshot_describe_from, byref(reader.struct()))
    else:
        path = _path(file)
        text = _text(lib.quire_snapshot_describe, path, len(path))
    return json.loads(text)


def verify_snapshot(file, progress=None, cancel=None):
    """Reads all of a snapshot; an error says what is damaged. file: as in Model.load_session. progress and cancel: as
    in Runtime.load."""
    report = _progress(progress)
    options = byref(_snapshot_options(report, cancel))
    if hasattr(file, "read"):
        reader = _snapshot_files.Reader(file)
        reader.raising(_call, lib.quire_snapshot_verify_from, byref(reader.struct()), options)
    else:
        path = _path(file)
        _call(lib.quire_snapshot_verify, path, len(path), options)


def strategies(train_len, n_heads=0, expected_tokens=0):
    """What expressions may be made of, for settings dialogs: a list of dicts (quire_strategy_get_list in quire.h)."""
    options = _options(_ffi.StrategyOptions, train_len=train_len, n_heads=n_heads, expected_tokens=expected_tokens)
    return json.loads(_text(lib.quire_strategy_get_list, byref(options)))["terms"]


def strategy_positions(expression, train_len, n_keys, first_query=0, n_queries=None, head=0, n_heads=0, queries="text",
                       keys="text", expected_tokens=0):
    """The relative-position matrix (NaN: invisible) as a memoryview of shape (n_queries, n_keys). queries, keys: "text"
    or "condensed" (the entries that beacon condenses text into). n_queries=None: n_keys - first_query."""
    n_queries = n_keys - first_query if n_queries is None else n_queries
    options = _strategy_options(expression, train_len, n_heads, expected_tokens)
    view = _options(_ffi.PositionView, head=head, query_kind=_choice("queries", queries, KV_KINDS),
                    key_kind=_choice("keys", keys, KV_KINDS), first_query=first_query, n_queries=n_queries, n_keys=n_keys)
    matrix = (ctypes.c_double * (n_queries * n_keys))()
    _call(lib.quire_strategy_get_positions, byref(options), byref(view), matrix, len(matrix), None)
    return _rows(matrix, "d", n_queries, n_keys)
