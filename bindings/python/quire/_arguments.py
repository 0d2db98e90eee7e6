"""Arguments that several calls take, made of Python's."""

import os
from ctypes import byref

from . import _ffi
from ._calls import _choice, _options, _pairs
from ._names import KV_OLD_TYPES, KV_TYPES, OVERFLOWS


def _chat(messages, template=None, date=None, answer=True, thinking=True):
    """messages: (role, text) each. The arguments that the functions on conversations share."""
    data = [(role.encode(), text.encode()) for role, text in messages]
    array = (_ffi.Message * len(data))(*[(role, len(role), text, len(text)) for role, text in data])
    template, date = (value if value is None else value.encode() for value in (template, date))
    options = _options(_ffi.ChatOptions, flags=(0 if answer else 1) | (0 if thinking else 2), template_name=template,
                       template_name_len=len(template or b""), date=date, date_len=len(date or b""))
    return array, len(data), byref(options)


def _session_options(strategy="full", kv_type="default", kv_old_type="default", old_after=None, overflow="default",
                     expected_tokens=0, prefill_block=0, kv_file_directory="", adapters=(), prefix_reuse=True, **budgets):
    used = (_ffi.SessionAdapter * len(adapters))(
        *[_ffi.SessionAdapter(adapter=adapter._handle, scale=scale) for adapter, scale in _pairs(adapters)])
    text, directory = (strategy or "").encode(), os.fsencode(kv_file_directory)
    return _options(
        _ffi.SessionOptions, flags=0 if prefix_reuse else 1, strategy=None if strategy is None else text,
        strategy_len=len(text), kv_type=_choice("kv_type", kv_type, KV_TYPES),
        kv_old_type=_choice("kv_old_type", kv_old_type, KV_OLD_TYPES),
        old_after={None: 0, 0: -1}.get(old_after, old_after),
        overflow=_choice("overflow", overflow, OVERFLOWS), expected_tokens=expected_tokens,
        prefill_block=prefill_block, kv_file_directory=directory or None, kv_file_directory_len=len(directory),
        **budgets,
        adapters=used if len(used) else None, n_adapters=len(used))


def _snapshot_options(report, cancel):
    return _options(_ffi.SnapshotOptions, cancel=cancel._handle if cancel else None, progress=report)
