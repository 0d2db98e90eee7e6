"""Finds and opens libquire."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib

from . import _ffi


def _find() -> str:
    """The library's path: $QUIRE_LIBRARY, beside this package, or what the system finds."""
    if path := os.environ.get("QUIRE_LIBRARY"):
        return path
    for name in ("libquire.so.0", "libquire.so"):
        if (path := pathlib.Path(__file__).parent / name).exists():
            return str(path)
    return ctypes.util.find_library("quire") or "libquire.so.0"


def _load() -> ctypes.CDLL:
    path = _find()
    library = ctypes.CDLL(path)
    if (version := library.quire_get_version()) < _ffi.VERSION:
        raise ImportError(f"{path} is version {version}; this package needs {_ffi.VERSION} or later")
    for name, (result, arguments) in _ffi.FUNCTIONS.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = result
    return library


lib = _load()
