"""Snapshots in Python's binary file objects: what quire_snapshot_writer and quire_snapshot_reader call.

The functions that C calls are never freed, and find their object by a number: a thread of the library may still read
for a session that Python has let go of.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import weakref
from typing import Any, Callable, Dict, Optional

from . import _ffi
from ._calls import _Interruptible, _entry

_keys = itertools.count(1)
_open: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_readers: Dict[int, Reader] = {}  # by key: readers of sessions, until no session of the library reads from them any more


@_entry
def _answer(key: int, error: Any, use: Callable[[Any], int]) -> int:
    """use(object), whose exception becomes what C is told."""
    target = None
    try:
        target = _open.get(key)
        return -1 if target is None or target.calling.raised is not None else use(target)
    except BaseException as exception:  # nothing may pass through C
        if target is None:
            return -1
        target.exception = exception
        try:
            error.contents.os_error = getattr(exception, "errno", None) or 0
            error.contents.message = f"{type(exception).__name__}: {exception}".encode(errors="replace")[:511]
        except Exception:
            pass  # a message is not worth more
        return -1


@_entry
def _write_to(key: int, data: Any, n: int, error: Any) -> int:
    return _answer(key, error, lambda target: int(target.write(ctypes.string_at(data, n))))


@_entry
def _commit_to(key: int, error: Any) -> int:
    return _answer(key, error, lambda target: int(target.commit()))


@_entry
def _read_from(key: int, offset: int, buffer: Any, n: int, error: Any) -> int:
    return _answer(key, error, lambda target: int(target.read(offset, buffer, n)))


def _forget(key: int) -> None:
    _readers.pop(key, None)


_write, _commit = _ffi.WriteCallback(_write_to), _ffi.CommitCallback(_commit_to)
_read, _destroy = _ffi.ReadCallback(_read_from), _ffi.DestroyCallback(_forget)


class _Target:
    def __init__(self, file: Any) -> None:
        self.file = file
        self.exception: Optional[BaseException] = None  # the last one that C was told of
        self.calling = _Interruptible()  # while the call runs that this object was made for
        self.key = next(_keys)
        _open[self.key] = self

    def raising(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """call(*arguments); an error of it names the exception of the file object as its cause. Ctrl-C stays what it is."""
        with self.calling:
            try:
                return call(*arguments)
            except Exception as error:
                if self.exception is None:
                    raise
                if not isinstance(self.exception, Exception):
                    raise self.exception
                raise error from self.exception


class Writer(_Target):
    def write(self, data: bytes) -> int:
        n: Optional[int] = self.file.write(data)
        if n is None:
            raise TypeError("write() returned None; expected the number of bytes, as io.RawIOBase has it")
        return n

    def commit(self) -> int:
        flush = getattr(self.file, "flush", None)
        if flush is not None:
            flush()
        return 0

    def struct(self) -> Any:
        return _ffi.SnapshotWriter(struct_size=ctypes.sizeof(_ffi.SnapshotWriter), write=_write, commit=_commit,
                                   user_data=self.key)


class Reader(_Target):
    """The whole file object, from its first byte on. Calls of it are made one at a time."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.lock = threading.Lock()
        self.size = file.seek(0, os.SEEK_END)

    def read(self, offset: int, buffer: Any, n: int) -> int:
        with self.lock:
            self.file.seek(offset)
            data = self.file.read(n)
        if data is None or len(data) > n:
            raise ValueError(f"read({n}) returned {'None' if data is None else f'{len(data)} bytes'}")
        ctypes.memmove(buffer, bytes(data), len(data))
        return len(data)

    def load(self, function: Callable[..., Any], *arguments: Any) -> None:
        """function(*arguments), which loads a session that may read from here longer than Python knows it: others may
        have taken over chunks of it."""
        _readers[self.key] = self
        try:
            self.raising(function, *arguments)
        except BaseException:
            _readers.pop(self.key, None)
            raise

    def struct(self) -> Any:
        return _ffi.SnapshotReader(struct_size=ctypes.sizeof(_ffi.SnapshotReader), n_bytes=self.size, read=_read,
                                   destroy=_destroy, user_data=self.key)
