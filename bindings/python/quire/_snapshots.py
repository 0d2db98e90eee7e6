"""Stores of documents, and snapshots by themselves."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Iterable, Optional

from . import _ffi, _snapshot_files
from ._arguments import _session_options
from ._calls import _Handle, _Watched, _call, _ids, _info, _options, _path
from ._library import lib
from ._session import Session
from ._types import File, Info, Path, Progress, SessionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._calls import Cancel
    from ._model import Model


class Store(_Handle):
    """A directory of documents that were read, which processes share. Any thread may use it."""

    _release = "quire_store_release"

    def __init__(self, path: Path, budget_bytes: int = 0, must_exist: bool = False) -> None:
        """The directory is made where it is missing, unless it must_exist. budget_bytes: of all entries together; 0: no
        limit."""
        options = _options(_ffi.StoreOptions, flags=_ffi.STORE_MUST_EXIST if must_exist else 0,
                           budget_bytes=budget_bytes)
        path = _path(path)
        self._own(None, lib.quire_store_open, path, len(path), byref(options))

    def put(self, session: Session, title: str = "", progress: Optional[Progress] = None,
            cancel: Optional[Cancel] = None) -> Info:
        """Puts what the session has read there; a dict of the entry's "name" and its "n_tokens". progress and cancel:
        as in Runtime.load."""
        match = _options(_ffi.StoreMatch)
        title = title.encode()
        with _Watched(progress, cancel) as watched:
            _call(lib.quire_store_put, self._handle, session._handle, title, len(title),
                  byref(_options(_ffi.SnapshotOptions, **watched)), byref(match))
        return {"name": match.name.decode(), "n_tokens": match.n_tokens}

    def find(self, model: Model, ids: Iterable[int], strategy: str = "full",
             **options: Unpack[SessionOptions]) -> Info:
        """How much of a text is there for a session of these options: a dict of the entry's "name" ("": none), how many
        of the first tokens it has ("n_tokens"), how many of those need not be read again ("n_computed"), and why there
        are none ("reason")."""
        match = _options(_ffi.StoreMatch)
        ids, n_ids = _ids(ids)
        _call(lib.quire_store_find, self._handle, model._handle, byref(_session_options(strategy, **options)), ids, n_ids,
              byref(match))
        return {"name": match.name.decode(), "n_tokens": match.n_tokens, "n_computed": match.n_computed,
                "reason": match.reason.decode()}

    def load(self, model: Model, ids: Iterable[int], strategy: str = "full",
             **options: Unpack[SessionOptions]) -> Session:
        """A session that holds as many of the first tokens as are there (session.n_tokens); feed it the others. Raises
        QuireError NOT_FOUND, which says why, where there are none."""
        ids, n_ids = _ids(ids)
        return Session(model, strategy, stored=(self._handle, ids, n_ids, _options(_ffi.StoreMatch)), **options)

    def remove(self, name: str) -> None:
        """Removes an entry; sessions that have it open go on."""
        name = name.encode()
        _call(lib.quire_store_remove, self._handle, name, len(name))

    def verify(self, name: str, progress: Optional[Progress] = None, cancel: Optional[Cancel] = None) -> None:
        """As verify_snapshot, for an entry."""
        name = name.encode()
        with _Watched(progress, cancel) as watched:
            _call(lib.quire_store_verify, self._handle, name, len(name),
                  byref(_options(_ffi.SnapshotOptions, **watched)))

    def describe(self) -> Info:
        """What is in the store: a dict (quire_store_describe in quire.h)."""
        return _info(lib.quire_store_describe, self._handle)


def describe_snapshot(file: File) -> Info:
    """What a snapshot says of itself: a dict (quire_snapshot_describe in quire.h). file: as in Model.load_session."""
    if hasattr(file, "read"):
        reader = _snapshot_files.Reader(file)
        info: Info = reader.raising(_info, lib.quire_snapshot_describe_from, byref(reader.struct()))
        return info
    path = _path(file)
    return _info(lib.quire_snapshot_describe, path, len(path))


def verify_snapshot(file: File, progress: Optional[Progress] = None, cancel: Optional[Cancel] = None) -> None:
    """Reads all of a snapshot; an error says what is damaged. file: as in Model.load_session. progress and cancel: as
    in Runtime.load."""
    with _Watched(progress, cancel) as watched:
        options = byref(_options(_ffi.SnapshotOptions, **watched))
        if hasattr(file, "read"):
            reader = _snapshot_files.Reader(file)
            reader.raising(_call, lib.quire_snapshot_verify_from, byref(reader.struct()), options)
        else:
            path = _path(file)
            _call(lib.quire_snapshot_verify, path, len(path), options)
