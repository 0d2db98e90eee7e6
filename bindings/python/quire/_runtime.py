"""Runtimes: threads, memory, devices and the log."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import weakref
from ctypes import byref, c_int32, c_int64
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Tuple, Union

from . import _ffi
from ._arguments import MODEL_OPTIONS, _model_options, _session_options
from ._calls import QuireError, _Handle, _call, _choice, _fields, _options, _path, _text
from ._library import lib
from ._model import Model, Tokenizer
from ._names import DEVICE_KINDS, LOG_LEVEL_NAMES, LOG_LEVELS
from ._types import Budgets, Info, Infos, Path, PlanOptions, Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._calls import Cancel

# A thread of the library that enters Python while the interpreter shuts down would be killed inside C++ frames. So the
# function that C calls is never freed, and the threads are joined before the shutdown.
_logs: Dict[int, Callable[[str, str], object]] = {}  # of the living Runtimes
_log_keys = itertools.count(1)
_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _log_of(key: int, level: int, message: Any, length: int) -> None:
    if log := _logs.get(key):
        log(LOG_LEVEL_NAMES[level], message[:length].decode(errors="replace"))


_log = _ffi.LogCallback(_log_of)


@atexit.register
def _close_runtimes() -> None:
    for runtime in list(_runtimes):
        with contextlib.suppress(QuireError):
            runtime.close()


class Runtime(_Handle):
    """Threads and memory. log: called as log(level, message), such as log("info", "loaded ..."), on any thread; it must not call Quire. kept_log_lines: how many
    lines of the log are kept for take_log_line(). budgets:
    kv_device_budget_bytes, kv_host_budget_bytes, kv_compressed_budget_bytes and kv_file_budget_bytes, of the KV caches of
    all sessions together. prefix_cache_bytes: most bytes that are kept of released sessions, for the next one whose
    text begins as one of theirs."""

    _release = "quire_runtime_release"

    def __init__(self, threads: int = 0, io_threads: int = 0, log: Optional[Callable[[str, str], object]] = None,
                 log_level: str = "default", kept_log_lines: int = 0, prefix_cache_bytes: int = 0, **budgets: Unpack[Budgets]) -> None:
        options = _options(_ffi.RuntimeOptions, n_threads=threads, n_io_threads=io_threads, n_kept_log_lines=kept_log_lines,
                           prefix_cache_bytes=prefix_cache_bytes, **budgets,
                           log_level=_choice("log_level", log_level, LOG_LEVELS))
        if log is not None:
            key = next(_log_keys)
            _logs[key] = log
            options.log, options.log_user_data = _log, key
            weakref.finalize(self, _logs.pop, key).atexit = False
        self._own(None, lib.quire_runtime_create, byref(options))
        _runtimes.add(self)

    def load(self, path: Path, weight_type: str = "default", load: str = "default", cancel: Optional[Cancel] = None,
             progress: Optional[Progress] = None, merge: Sequence[Union[Path, Tuple[Path, float]]] = (),
             beacon: Optional[Path] = None, device: str = "auto", activations: str = "default",
             packed_directory: Optional[Path] = None) -> Model:
        """Loads a model: a Hugging Face directory, or a GGUF file. device: the name of one of devices(). progress:
        called as progress(done_bytes, total_bytes) on this thread; what it raises, and Ctrl-C, end the loading (and
        trigger `cancel`, if there is one). merge: adapter directories, each as a path or (path,
        scale), to be merged into the weights. beacon: the directory of an Activation Beacon plug-in. activations: what
        rows may be rounded to for weights of few bits, "int8" (the default), "bf16", or "f32": exact and slower. load:
        "mmap" maps the files, and a file that shrinks then kills the process; "read" (the default) reads them.
        packed_directory: keeps weights as the CPU multiplies with them: the first load writes a file there, and later ones
        map it (deleting it is safe, shortening it kills the process)."""
        return Model(self, path, weight_type, load, cancel, progress, merge, beacon, device, activations, packed_directory)

    def devices(self) -> Infos:
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
    def stats(self) -> Info:
        """quire_runtime_stats as a dict."""
        stats = _options(_ffi.RuntimeStats)
        _call(lib.quire_runtime_get_stats, self._handle, byref(stats))
        return _fields(stats)

    def take_log_line(self) -> Optional[Tuple[str, str, int]]:
        """The level and text of the oldest line of the log that was kept (kept_log_lines) and not taken yet, and how many lines
        were lost before it for want of room; None: there is no line."""
        level, n_lost = c_int32(), c_int64()
        text = _text(lib.quire_runtime_take_log_line, self._handle, byref(level), byref(n_lost))
        return (LOG_LEVEL_NAMES[level.value], text.decode(), n_lost.value) if level.value else None

    def tokenizer(self, path: Path) -> Tokenizer:
        """The tokenizer of a model directory, a tokenizer.model, a tokenizer.json or a GGUF file; no weights."""
        return Tokenizer(self, path)

    def plan_memory(self, path: Path, n_tokens: int, strategy: str = "full", **options: Unpack[PlanOptions]) -> Info:
        """quire_memory_plan as a dict: what the model and a session of n_tokens would take. options: of both."""
        plan = _options(_ffi.MemoryPlan)
        _call(lib.quire_runtime_plan_memory, *self._planned(path, strategy, **options), n_tokens, byref(plan))
        return _fields(plan)

    def check(self, path: Path, strategy: str = "full", **options: Unpack[PlanOptions]) -> None:
        """Raises what such a Session would raise for the model in `path`; loads nothing. options: of both."""
        _call(lib.quire_runtime_check_session, *self._planned(path, strategy, **options))

    def describe_strategy(self, path: Path, strategy: str = "auto", **options: Unpack[PlanOptions]) -> str:
        """The canonical strategy that such a Session would have; loads nothing. options: of model and session."""
        return _text(lib.quire_runtime_describe_strategy, *self._planned(path, strategy, **options)).decode()

    def _planned(self, path: Path, strategy: str, **options: Any) -> Tuple[Any, ...]:
        model = _model_options(**{name: options.pop(name) for name in MODEL_OPTIONS if name in options})
        path = _path(path)
        return self._handle, path, len(path), byref(model), byref(_session_options(strategy, **options))

    def close(self) -> None:
        """Stops everything that runs on this runtime and waits for it."""
        self._stop(lib.quire_runtime_close)
