"""Streams of events."""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
import time
from ctypes import byref, c_int32, c_int64
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _ffi
from ._calls import QuireError, _Handle, _Process, _array, _call, _choice, _failure, _ids, _layout, _options, _texts
from ._library import lib
from ._names import EVENTS, FINISHES, MESSAGES, REUSE_MISSES, SAMPLERS
from ._types import Sampler

if TYPE_CHECKING:
    from ._session import Session

_POLL_SECONDS = 0.2  # how long Python's own signal handlers may have to wait
_POLL_MS = c_int32(round(_POLL_SECONDS * 1000))

# What is done for each token avoids what takes ctypes a microsecond: converting arguments (this function has no argtypes,
# so all are given as C has them), and asking for fields one by one.
_next = lib["quire_stream_next"]
_token_fields = _layout(_ffi.Event, "kind", "token", "n_tokens", "text_len", "logprob", "n_top_logprobs").unpack_from
_new = tuple.__new__


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
    top_logprobs: List[Tuple[int, float]]  # (token, logprob), the most probable first
    message: str  # of a warning or notice, for a person; `text` is the answer's alone
    code: str  # of the message: a value of MESSAGES
    reuse_miss: str  # a value of REUSE_MISSES
    moved: int


def _event(struct: Any) -> Event:
    """What a quire_event says."""
    kind, token, n_tokens, text_len, logprob, n_top = _token_fields(struct)
    text = struct.text[:text_len].decode() if text_len else ""
    if kind == _ffi.EVENT_TOKEN and n_top == 0:  # the other fields mean nothing
        return _new(Event, ("token", text, token, n_tokens, logprob, 0, 0, 0, 0.0, "", -1, [], "", "", "complete", 0))
    return Event(EVENTS[kind], text, token, n_tokens, logprob, struct.total, struct.reused, struct.done,
                 struct.n_per_second, FINISHES[struct.finish_reason], struct.stop_index,
                 [(top.token, top.logprob) for top in struct.top_logprobs[:n_top]],
                 struct.message[:struct.message_len].decode() if struct.message_len else "", MESSAGES[struct.code],
                 REUSE_MISSES[struct.reuse_miss], struct.moved)


class Stream(_Handle):
    """An iterator of events. Ctrl-C interrupts the wait; cancel() and close() may come from any thread. In a coroutine
    `async with session.stream(...) as stream` and `async for event in stream`: other tasks run while nothing waits to be
    taken. A task that is cancelled leaves the loop, and the stream ends with its `async with`."""

    _release = "quire_stream_release"

    def __init__(self, session: Session, max_tokens: int = 0, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 0.0, min_p: float = 0.0, seed: int = 0, stop_ids: Iterable[int] = (),
                 stop: Union[str, Iterable[str]] = (), score: bool = False, keep_logits: bool = False,
                 ignore_eos: bool = False, samplers: Sequence[Sampler] = (),
                 logit_bias: Optional[Dict[int, float]] = None, dry_breakers: Optional[Iterable[str]] = None,
                 min_tokens: int = 0, deadline: float = 0.0, top_logprobs: int = 0, max_undelivered: int = 0,
                 constrain: bool = False, keep_hidden: bool = False, cite: bool = False, cite_end: int = 0,
                 draft_tokens: int = 0, draft_match: int = 0) -> None:
        """samplers: a chain of (kind, fields), such as ("penalties", dict(a=1.1, n=64)); see quire_sampler. logit_bias:
        {token: bias}. dry_breakers: None for the usual ones. deadline: seconds. cite: for Session.passages, of the
        tokens before cite_end (0: all but the last 64 before the answer). draft_tokens: prompt lookup, which makes
        answers that quote the session's text faster."""
        ids, n_ids = _ids(stop_ids)
        chain = (_ffi.Sampler * len(samplers))(
            *[_ffi.Sampler(kind=_choice("sampler", kind, SAMPLERS), **fields) for kind, fields in samplers])
        biases = _array(_ffi.LogitBias, (logit_bias or {}).items())
        stops, breakers = _texts([stop] if isinstance(stop, str) else stop), _texts(dry_breakers or ())
        options = _options(
            _ffi.StreamOptions, max_tokens=max_tokens,
            flags=score * 1 | keep_logits * 2 | ignore_eos * 4 | constrain * 8 | keep_hidden * 16 | cite * 32,
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop_ids=ids if n_ids else None,
            n_stop_ids=n_ids, stop_strings=stops if len(stops) else None, n_stop_strings=len(stops),
            samplers=chain if len(chain) else None, n_samplers=len(chain),
            logit_bias=biases if len(biases) else None, n_logit_bias=len(biases),
            dry_breakers=None if dry_breakers is None else breakers, n_dry_breakers=len(breakers),
            min_tokens=min_tokens, deadline_ms=math.ceil(deadline * 1000), n_top_logprobs=top_logprobs,
            max_undelivered=max_undelivered, cite_end=cite_end, draft_tokens=draft_tokens,
            draft_match=draft_match)
        self._vocab_size = session._vocab_size
        # Of all calls of next(), which are made one at a time; of the task that waits between two of them.
        self._taking, self._awaiting = threading.Lock(), threading.Lock()
        self._event, self._error = _options(_ffi.Event), _ffi.Error()
        self._event_pointer, self._error_pointer = byref(self._event), byref(self._error)
        self._process = _Process.number
        self._own(session, lib.quire_stream_open, session._handle, byref(options))

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event; None if none came within `timeout` seconds; StopIteration after the end."""
        if timeout is None:
            return self.__next__()
        until = time.monotonic() + timeout
        while (event := self._take(c_int32(math.ceil(max(0.0, min(timeout, _POLL_SECONDS)) * 1000)))) is None:
            if (timeout := until - time.monotonic()) <= 0:
                break
        return event

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        while (event := self._take(_POLL_MS)) is None:
            pass
        return event

    def _take(self, milliseconds: c_int32) -> Optional[Event]:
        """The next event, or None. An event's text lives until the next one is asked for, so two threads must not. What C
        has given stays in _event or _error until it is taken from there: an interrupt may come before."""
        pointer = self._pointer if self._process == _Process.number else self._handle  # which raises
        if not self._taking.acquire(False):
            raise QuireError(_ffi.ERROR_BUSY, "another thread waits for an event of this stream")
        try:
            if self._event.kind == 0 and self._error.code == 0:
                status = _next(pointer, milliseconds, self._event_pointer, self._error_pointer)
            else:
                status = self._error.code
            if status == _ffi.OK:
                event = _event(self._event)
                self._event.kind = 0
                return event
            if status < 0:
                failure = _failure(status, self._error)
                self._error.code = 0
                raise failure
        finally:
            self._taking.release()
        if status == _ffi.END:
            raise StopIteration
        return None

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        while True:
            try:
                event = self.next(timeout=0)
            except StopIteration:
                raise StopAsyncIteration from None
            if event is not None:
                return event
            await self._readable()

    async def _readable(self) -> None:
        """Until an event waits, or the end. A loop has one reader of a handle, so two tasks must not."""
        loop, handle = asyncio.get_running_loop(), self.wait_handle()
        if not self._awaiting.acquire(False):
            raise QuireError(_ffi.ERROR_BUSY, "another task waits for an event of this stream")
        try:
            readable = loop.create_future()
            loop.add_reader(handle, lambda: None if readable.done() else readable.set_result(None))
            try:
                await readable
            finally:
                loop.remove_reader(handle)
        finally:
            self._awaiting.release()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def add_stop(self, stop: Union[str, Iterable[str]] = (), stop_ids: Iterable[int] = ()) -> None:
        """More strings and ids that end the answer, for all tokens not delivered yet."""
        ids, n_ids = _ids(stop_ids)
        texts = _texts([stop] if isinstance(stop, str) else stop)
        _call(lib.quire_stream_add_stop_ids, self._handle, ids, n_ids)
        _call(lib.quire_stream_add_stop_strings, self._handle, texts if len(texts) else None, len(texts))

    def allow(self, ids: Optional[Iterable[int]] = None) -> None:
        """With constrain=True: the ids that may come next; None: any. Before the first token and after each one."""
        if ids is None:
            _call(lib.quire_stream_allow, self._handle, None, 0)
            return
        words = (ctypes.c_uint32 * ((self._vocab_size + 31) // 32))()
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"{token} is outside the vocabulary")
            words[token // 32] |= 1 << token % 32
        _call(lib.quire_stream_allow, self._handle, words, len(words))

    def cancel(self) -> None:
        _call(lib.quire_stream_cancel, self._handle)

    def close(self) -> None:
        """Stops the stream and waits until nothing works for it."""
        self._stop(lib.quire_stream_close)

    def wait_handle(self) -> int:
        """A file descriptor that is readable when an event waits, and sometimes when there is none yet: take events with a
        timeout of 0. Only poll it (select, asyncio)."""
        handle, kind = c_int64(), c_int32()
        _call(lib.quire_stream_get_wait_handle, self._handle, byref(handle), byref(kind))
        return handle.value
