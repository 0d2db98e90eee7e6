"""Finds and opens libquire."""

from __future__ import annotations

import ctypes
import ctypes.util
import operator
import os
import pathlib
from typing import Any

from . import _ffi


def _find() -> str:
    """The library's path: $QUIRE_LIBRARY, beside this package, or what the system finds."""
    if path := os.environ.get("QUIRE_LIBRARY"):
        return path
    for name in ("libquire.so.0", "libquire.so"):
        if (path := pathlib.Path(__file__).parent / name).exists():
            return str(path)
    return ctypes.util.find_library("quire") or "libquire.so.0"


def _checked(kind: Any, lowest: int, highest: int) -> Any:
    """An integer argument; ctypes itself takes the lower bits of any number."""

    def from_param(value: Any) -> Any:
        if not lowest <= (number := operator.index(value)) <= highest:
            raise OverflowError(f"{number} is out of range")
        return kind(number)

    return type(kind.__name__, (), {"from_param": staticmethod(from_param)})


_INTEGERS = {kind: _checked(kind, *limits) for kind, limits in {
    ctypes.c_int32: (-2**31, 2**31 - 1), ctypes.c_uint32: (0, 2**32 - 1), ctypes.c_int64: (-2**63, 2**63 - 1),
    ctypes.c_uint64: (0, 2**64 - 1), ctypes.c_size_t: (0, 2**(8 * ctypes.sizeof(ctypes.c_size_t)) - 1)}.items()}


def _has_abi_of(wanted: int, found: int) -> bool:
    """Whether a library has all that a version promises. Until 1.0 a minor version may break the ABI, then a major one."""
    unit = 100 if wanted < 10000 else 10000
    return found >= wanted and found // unit == wanted // unit


def _text(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _load() -> ctypes.CDLL:
    path = _find()
    library = ctypes.CDLL(path)
    if not _has_abi_of(_ffi.VERSION, version := library.quire_get_version()):
        raise ImportError(f"{path} is of version {_text(version)}; this package needs {_text(_ffi.VERSION)}, or a later one with its ABI")
    for name, (result, arguments) in _ffi.FUNCTIONS.items():
        getattr(library, name).argtypes = [_INTEGERS.get(kind, kind) for kind in arguments]
        getattr(library, name).restype = result
    return library


lib = _load()
