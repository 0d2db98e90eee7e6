"""Types of arguments and results, for readers and type checkers; at run time nothing is made of them."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union

Path = Union[str, bytes, "os.PathLike[str]"]
File = Union[Path, BinaryIO]  # a path, or an object with read() and seek(), or with write()
Text = Union[str, bytes, bytearray, memoryview]  # where it is not a str, its UTF-8
Progress = Callable[[int, int], object]  # of what is done and of all, in bytes
Message = Union[Tuple[str, str], Mapping[str, str]]  # (role, text), or {"role": role, "content": text}
Messages = Iterable[Message]
Labels = Sequence[Tuple[int, int, int]]  # (begin, end, id), in bytes of the text
Sampler = Tuple[str, Dict[str, Any]]  # (kind, fields of quire_sampler)
Info = Dict[str, Any]  # the fields of a struct of quire.h
Infos = List[Info]


class Budgets(TypedDict, total=False):
    """Bytes of KV caches by tier; 0: no limit."""

    kv_device_budget_bytes: int
    kv_host_budget_bytes: int
    kv_compressed_budget_bytes: int
    kv_file_budget_bytes: int


class SessionOptions(Budgets, total=False):
    """Of quire_session_options, but for the strategy."""

    kv_type: str
    kv_old_type: str
    old_after: Optional[int]
    overflow: str
    expected_tokens: int
    prefill_block: int
    kv_file_directory: Path
    adapters: Sequence[Any]  # each an Adapter or (Adapter, scale)
    prefix_reuse: bool
    keep_behind_windows: bool


class ModelOptions(TypedDict, total=False):
    """Of quire_model_options, but for what watches the loading."""

    weight_type: str
    load: str
    merge: Sequence[Union[Path, Tuple[Path, float]]]
    beacon: Optional[Path]
    device: str
    activations: str
    packed_directory: Optional[Path]


class PlanOptions(ModelOptions, SessionOptions, total=False):
    """Of a model that is not loaded, and of a session of its."""


class ChatOptions(TypedDict, total=False):
    """Of quire_chat_options."""

    template: Optional[str]
    date: Optional[str]
    answer: bool
    thinking: bool


class StreamOptions(TypedDict, total=False):
    """Of quire_stream_options, but for max_tokens."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop_ids: Iterable[int]
    stop: Union[str, Iterable[str]]
    score: bool
    keep_logits: bool
    ignore_eos: bool
    samplers: Sequence[Sampler]
    logit_bias: Optional[Dict[int, float]]
    dry_breakers: Optional[Iterable[str]]
    min_tokens: int
    deadline: float
    top_logprobs: int
    max_undelivered: int
    constrain: bool
    keep_hidden: bool
    cite: bool
    cite_end: int
    draft_tokens: int
    draft_match: int
