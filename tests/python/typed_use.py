"""How type checkers see the package: mypy --strict reads this file, nothing runs it.

Each `type: ignore` says that a checker must find a mistake there; it complains of those that are not needed.
"""

from __future__ import annotations

import io
from typing import List, Tuple

import quire


def right(runtime: quire.Runtime, cancel: quire.Cancel) -> Tuple[str, int]:
    model: quire.Model = runtime.load("folder", weight_type="q8_0", progress=lambda done, total: None, cancel=cancel)
    with model.session("dca", kv_type="f16", kv_host_budget_bytes=1 << 20) as session:
        session.feed("text", labels=[(0, 4, 7)])
        session.feed_messages([("user", "Hello"), {"role": "user", "content": "Again"}], template="llama2")
        runtime.plan_memory("folder", 1000, "beacon", beacon="plug_in", kv_type="f16")
        with session.stream(10, temperature=0.7, stop=["."], samplers=[("top_k", {"n": 4})]) as stream:
            for event in stream:
                text: str = event.text
                top: List[Tuple[int, float]] = event.top_logprobs
        fork: quire.Session = session.fork()
        fork.save(io.BytesIO())
        rows: memoryview = fork.logits()
        return "".join(fork.generate(3)) + text + str(len(top)), rows.nbytes


async def right_in_a_coroutine(session: quire.Session) -> List[int]:
    async with session.stream(10) as stream:
        return [event.token async for event in stream]


def wrong(runtime: quire.Runtime, model: quire.Model, session: quire.Session) -> None:
    runtime.load(7)  # type: ignore[arg-type]
    model.session("dca", kv_attic_budget_bytes=1)  # type: ignore[call-arg]
    model.session("dca", kv_type=2)  # type: ignore[arg-type]
    session.stream(10, temperature="hot")  # type: ignore[arg-type]
    session.stream(10, warmth=1.0)  # type: ignore[call-arg]
    session.feed(7)  # type: ignore[arg-type]
    session.n_tokens = 7  # type: ignore[misc]
    session.tier(2)  # type: ignore[arg-type]
    for event in session.stream(10):
        event.txt  # type: ignore[attr-defined]
