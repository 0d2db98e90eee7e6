"""Arguments that several calls take, made of Python's."""

from __future__ import annotations

import os
from ctypes import byref
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

from . import _ffi
from ._calls import _array, _choice, _options, _pairs, _path
from ._names import ACTIVATIONS, KV_OLD_TYPES, KV_TYPES, LOADS, OVERFLOWS, TYPES
from ._types import Message, Messages, Path

MODEL_OPTIONS = ("weight_type", "load", "merge", "beacon", "device", "activations", "packed_directory")


def _is_text(value: Any) -> bool:
    """Whether it is a Text; a memoryview of larger numbers holds token ids."""
    return isinstance(value, (str, bytes, bytearray)) or (isinstance(value, memoryview) and value.itemsize == 1)


def _utf8(text: Any) -> bytes:
    """A Text's bytes."""
    if isinstance(text, str):
        return text.encode()
    return text if isinstance(text, bytes) else bytes(memoryview(text))


def _message(message: Message) -> Tuple[str, str]:
    return (message["role"], message["content"]) if isinstance(message, Mapping) else message


def _chat(messages: Messages, template: Optional[str] = None, date: Optional[str] = None, answer: bool = True,
          thinking: bool = True) -> Tuple[Any, int, Any]:
    """The arguments that the functions on conversations share."""
    data = [(role.encode(), text.encode()) for role, text in map(_message, messages)]
    array = _array(_ffi.Message, [(role, len(role), text, len(text)) for role, text in data])
    template, date = (value if value is None else value.encode() for value in (template, date))
    options = _options(_ffi.ChatOptions, flags=(0 if answer else 1) | (0 if thinking else 2), template_name=template,
                       template_name_len=len(template or b""), date=date, date_len=len(date or b""))
    return array, len(data), byref(options)


def _model_options(weight_type: str = "default", load: str = "default",
                   merge: Sequence[Union[Path, Tuple[Path, float]]] = (), beacon: Optional[Path] = None,
                   device: str = "auto", activations: str = "default", packed_directory: Optional[Path] = None,
                   **watched: Any) -> Any:
    merged = [(_path(source), scale) for source, scale in _pairs(merge)]
    sources = _array(_ffi.AdapterSource, [(source, len(source), scale) for source, scale in merged])
    beacon, packed = (None if path is None else _path(path) for path in (beacon, packed_directory))
    name = device.encode()
    return _options(_ffi.ModelOptions, load=_choice("load", load, LOADS),
                    weight_type=_choice("weight_type", weight_type, TYPES),
                    activation_type=_choice("activations", activations, ACTIVATIONS), beacon_path=beacon,
                    beacon_path_len=len(beacon or b""), device=name, device_len=len(name), packed_directory=packed,
                    packed_directory_len=len(packed or b""), merge=sources if len(sources) else None,
                    n_merge=len(sources), **watched)


def _session_options(strategy: Optional[str] = "full", kv_type: str = "default", kv_old_type: str = "default",
                     old_after: Optional[int] = None, overflow: str = "default", expected_tokens: int = 0,
                     prefill_block: int = 0, kv_file_directory: Path = "", adapters: Sequence[Any] = (),
                     prefix_reuse: bool = True, keep_behind_windows: bool = False, **budgets: int) -> Any:
    pairs = [(adapter._handle, scale) for adapter, scale in _pairs(adapters)]
    used = _array(_ffi.SessionAdapter, pairs)
    text, directory = (strategy or "").encode(), os.fsencode(kv_file_directory)
    flags = 0 if prefix_reuse else _ffi.SESSION_NO_PREFIX_REUSE
    if keep_behind_windows:
        flags |= _ffi.SESSION_KEEP_BEHIND_WINDOWS
    options = _options(
        _ffi.SessionOptions, flags=flags, strategy=None if strategy is None else text,
        strategy_len=len(text), kv_type=_choice("kv_type", kv_type, KV_TYPES),
        kv_old_type=_choice("kv_old_type", kv_old_type, KV_OLD_TYPES),
        old_after={None: 0, 0: -1}.get(old_after, old_after),
        overflow=_choice("overflow", overflow, OVERFLOWS), expected_tokens=expected_tokens,
        prefill_block=prefill_block, kv_file_directory=directory or None, kv_file_directory_len=len(directory),
        **budgets,
        adapters=used if len(used) else None, n_adapters=len(used))
    options.references = pairs  # the struct has the addresses alone
    return options
