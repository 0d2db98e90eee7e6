"""Streams of events."""

from __future__ import annotations

import asyncio
import ctypes
from ctypes import byref, c_int32, c_int64
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _ffi
from ._calls import _Handle, _call, _choice, _ids, _options, _texts
from ._library import lib
from ._names import EVENTS, FINISHES, MESSAGES, REUSE_MISSES, SAMPLERS
from ._types import Sampler

if TYPE_CHECKING:
    from ._session import Session

_END, _TIMEOUT = 1, 2
_POLL_MS = 200  # how long Python's own signal handlers may have to wait


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
            max_undelivered=max_undelivered, cite_end=cite_end, draft_tokens=draft_tokens,
            draft_match=draft_match)
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

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        event = self.next()
        assert event is not None  # there is no timeout
        return event

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
        """Until an event waits, or the end."""
        loop, handle = asyncio.get_running_loop(), self.wait_handle()
        readable = loop.create_future()
        loop.add_reader(handle, lambda: None if readable.done() else readable.set_result(None))
        try:
            await readable
        finally:
            loop.remove_reader(handle)

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
            words[token // 32] |= 1 << token % 32
        _call(lib.quire_stream_allow, self._handle, words, len(words))

    def cancel(self) -> None:
        _call(lib.quire_stream_cancel, self._handle)

    def close(self) -> None:
        """Stops the stream and waits until nothing works for it."""
        _call(lib.quire_stream_close, self._handle)

    def wait_handle(self) -> int:
        """A file descriptor that is readable while an event waits (for select, asyncio); only poll it."""
        handle, kind = c_int64(), c_int32()
        _call(lib.quire_stream_get_wait_handle, self._handle, byref(handle), byref(kind))
        return handle.value
