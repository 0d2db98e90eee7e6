"""How C is called: arguments, results and errors, and objects that own a handle."""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import struct
import weakref
from ctypes import byref, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple, TypeVar

from . import _ffi
from ._library import lib
from ._types import Info, Infos, Progress

_CLOSED = -9
_CODES = {c_int32: "i", c_uint32: "I", c_int64: "q", c_size_t: "N", c_float: "f", c_double: "d"}
_Self = TypeVar("_Self", bound="_Handle")
_Function = TypeVar("_Function", bound=Any)


class QuireError(Exception):
    """A failed call: `status` ("BAD_FILE", ...), `code`, `message`, `offset` (-1: none), `os_error` (errno or 0)."""

    def __init__(self, code: int, message: str, offset: int = -1, os_error: int = 0) -> None:
        self.code, self.message, self.offset, self.os_error = code, message, offset, os_error
        self.status = lib.quire_get_status_name(code).decode()
        super().__init__(f"{self.status}: {message}")

    def __reduce__(self) -> Tuple[Any, ...]:  # from the process of a worker to that which waits for it
        return type(self), (self.code, self.message, self.offset, self.os_error)


def _ask(function: Any, *arguments: Any) -> int:
    """Calls a function that cannot fail."""
    try:
        answer: int = function(*arguments)
        return answer
    except ctypes.ArgumentError as wrong:  # which has no cause, but says what it was
        raise (OverflowError if "OverflowError" in str(wrong) else TypeError)(str(wrong)) from None


def _call(function: Any, *arguments: Any) -> int:
    """Calls a function that takes a quire_error; raises on failure, returns the (positive) status."""
    error = _ffi.Error()
    status = _ask(function, *arguments, byref(error))
    if status < 0:
        raise _failure(status, error)
    return status


def _failure(status: int, error: Any) -> QuireError:
    return QuireError(status, error.message.decode(errors="replace"), error.offset, error.os_error)


def _options(cls: Any, **fields: Any) -> Any:
    """A struct of quire.h with these fields; a field that it does not have is a TypeError (ctypes would take it)."""
    if unknown := set(fields) - {name for name, *_ in cls._fields_}:
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
    return cls(struct_size=ctypes.sizeof(cls), **fields)


def _choice(name: str, value: str, choices: Dict[str, int]) -> int:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return choices[value]


def _layout(cls: Any, *names: str) -> struct.Struct:
    """How the struct module reads these fields of such a struct, all at once. No struct has gaps (ABI.md)."""
    return struct.Struct("".join(_CODES[kind] if name in names else f"{ctypes.sizeof(kind)}x" for name, kind in cls._fields_))


def _text(function: Any, *arguments: Any) -> bytes:
    """The result of a `buf, cap, *needed` function, as bytes. It may change between the question for its length and itself."""
    needed = c_size_t()
    while True:
        _call(function, *arguments, None, 0, byref(needed))
        buffer = ctypes.create_string_buffer(max(needed.value, 1))
        try:
            _call(function, *arguments, buffer, needed.value, byref(needed))
        except QuireError as error:
            if error.code == _ffi.ERROR_BUFFER_TOO_SMALL:
                continue
            raise
        return buffer.raw[:needed.value]


def _encoded(likely: int, function: Any, *arguments: Any) -> List[int]:
    """The ids that such a function gives, which tokenizes anew at each call: only where they are more than `likely` is
    there a second one."""
    needed = c_size_t(likely)
    while True:
        array = (c_int32 * needed.value)()
        try:
            _call(function, *arguments, array, len(array), byref(needed))
        except QuireError as error:
            if error.code == _ffi.ERROR_BUFFER_TOO_SMALL:
                continue
            raise
        ids: List[int] = array[:needed.value]
        return ids


def _info(function: Any, *arguments: Any) -> Info:
    """Such a result that is a JSON object."""
    info: Info = json.loads(_text(function, *arguments))
    return info


def _ids(ids: Iterable[int]) -> Tuple[Any, int]:
    return _numbers("i", c_int32, ids)


def _numbers(code: str, kind: Any, numbers: Iterable[int]) -> Tuple[Any, int]:
    """An array of C; `code` is the kind's in the module array, which refuses what does not fit."""
    found = array.array(code, list(numbers))
    return (kind * len(found)).from_buffer(found), len(found)


def _array(cls: Any, rows: Iterable[Tuple[Any, ...]]) -> Any:
    """An array of structs, whose fields are the rows'."""
    structs = [cls(*row) for row in rows]
    return (cls * len(structs))(*structs)


def _texts(strings: Iterable[str]) -> Any:
    return _array(_ffi.Text, [(text, len(text)) for text in map(str.encode, strings)])


def _path(path: Any) -> bytes:
    return os.fsencode(path)


def _pairs(items: Iterable[Any]) -> List[Tuple[Any, float]]:
    """Adapters or their paths, each alone or with a scale: (item, scale)."""
    return [item if isinstance(item, tuple) else (item, 1.0) for item in items]


def _rows(floats: Any, kind: Any, n_rows: int, n_columns: int) -> memoryview:
    """A ctypes array as a two-dimensional memoryview, which numpy.asarray takes without a copy."""
    return memoryview(floats).cast("B").cast(kind, (n_rows, n_columns))


def _dicts(structs: Any) -> Infos:
    return [{name: getattr(item, name) for name, _ in item._fields_} for item in structs]


def _fields(struct: Any) -> Dict[str, Any]:
    return {name: getattr(struct, name) for name, _ in struct._fields_[2:]}


class _Process:
    """Which process this is: a question for each token, for which the system would take too long."""

    number = os.getpid()

    @classmethod
    def renew(cls) -> None:
        cls.number = os.getpid()


os.register_at_fork(after_in_child=_Process.renew)


class _Reference(c_void_p):
    """One reference, dropped when neither its owner nor a call has this object any more."""

    def __init__(self) -> None:
        super().__init__()
        self.process = _Process.number

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked process: it has none of the library's threads, and perhaps locks that they held."""
        return self.process != _Process.number


def _drop(release: Any, pointer: Optional[int], process: int) -> None:
    if process == _Process.number:
        release(pointer)


class _Handle:
    """Owns one reference until it is closed or collected. Objects keep their parents alive."""

    _release = ""  # the name of the C function

    def _own(self, parent: Any, function: Any, *arguments: Any) -> None:
        out = _Reference()
        _call(function, *arguments, byref(out))
        self._parent = parent
        self._pointer: Optional[_Reference] = out
        self._finalizer = weakref.finalize(out, _drop, getattr(lib, self._release), out.value, out.process)
        self._finalizer.atexit = False  # see _close_runtimes

    @property
    def _handle(self) -> _Reference:
        """For a call, which keeps it: another thread may close this object before C has begun."""
        pointer = self._pointer
        if pointer is None or pointer.is_foreign:
            raise QuireError(_CLOSED, f"this {type(self).__name__} was closed" if pointer is None else
                             f"this {type(self).__name__} belongs to the process that this one was forked from")
        return pointer

    def _stop(self, close: Any) -> None:
        """Calls the function of C that waits until nothing runs. A forked process leaves `with` without it."""
        if self._pointer is not None and not self._pointer.is_foreign:
            _call(close, self._pointer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy would not own the reference, and no other process has what it refers to."""
        raise TypeError(f"a {type(self).__name__} cannot be copied, pickled or sent to another process")

    def close(self) -> None:
        """Drops the reference; calls that run keep theirs. A second close does nothing."""
        self._pointer = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class Cancel(_Handle):
    """Stops a long call, such as a load: trigger() from any thread."""

    _release = "quire_cancel_release"

    def __init__(self) -> None:
        self._own(None, lib.quire_cancel_create)

    def trigger(self) -> None:
        lib.quire_cancel_trigger(self._handle)


_called_by_c: Set[Any] = set()  # the code of functions


def _entry(function: _Function) -> _Function:
    """A function that C calls. What leaves it is lost."""
    _called_by_c.add(function.__code__)
    return function


class _Interruptible:
    """`with` around a call that calls functions of Python's. What the handler of Ctrl-C raises stops the call and is raised
    when it has returned, for Python may run the handler before the first line of a function that C calls."""

    def __init__(self) -> None:
        self.raised: Optional[BaseException] = None
        self._handler: Any = None

    def __enter__(self) -> Any:
        self._handler = signal.getsignal(signal.SIGINT)
        if callable(self._handler):
            try:
                signal.signal(signal.SIGINT, self._interrupt)
            except ValueError:
                pass  # on another thread than the main one, which alone runs handlers
        return self

    def _interrupt(self, number: int, frame: Any) -> None:
        try:
            self._handler(number, frame)
        except BaseException as exception:
            self._keep(exception)
            if frame is not None and frame.f_code not in _called_by_c:
                raise  # out of the user's function, which may be waiting

    def _keep(self, exception: BaseException) -> None:
        self.raised = exception

    def __exit__(self, *exception: Any) -> None:
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, self._handler)
        # Its traceback leads to the call's arguments, and these to this object through some of ctypes that the garbage
        # collector knows nothing of: a cycle would stay, with what the call made where the last report raised.
        raised, self.raised = self.raised, None
        if raised is None:
            return
        try:
            raise raised
        finally:
            del raised


class _Watched(_Interruptible):
    """A long call that reports its progress and can be stopped. What progress(done, total) raises, and Ctrl-C, stop it;
    `with` then raises that instead of what the call came to."""

    def __init__(self, progress: Optional[Progress], cancel: Optional[Cancel]) -> None:
        super().__init__()
        self._progress = progress
        self._cancel = (Cancel() if cancel is None else cancel)._handle

    def __enter__(self) -> Dict[str, Any]:
        """Fields of the call's options."""
        fields = {"cancel": self._cancel, "progress": _ffi.ProgressCallback(self._report)}
        super().__enter__()
        return fields

    @_entry
    def _report(self, _: object, done: int, total: int) -> None:
        try:
            if self._progress is not None and self.raised is None:
                self._progress(done, total)
        except BaseException as exception:  # nothing may pass through C
            self._keep(exception)

    def _keep(self, exception: BaseException) -> None:
        super()._keep(exception)
        lib.quire_cancel_trigger(self._cancel)


def version() -> str:
    """The loaded library's version, "0.1.0"."""
    text: bytes = lib.quire_get_version_string()
    return text.decode()
