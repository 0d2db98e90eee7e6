"""What strategy expressions mean."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any, Optional

from . import _ffi
from ._calls import _call, _choice, _info, _options, _rows, _text
from ._library import lib
from ._names import KV_KINDS
from ._types import Infos


def _strategy_options(expression: str, train_len: int, n_heads: int, expected_tokens: int) -> Any:
    text = expression.encode()
    return _options(_ffi.StrategyOptions, strategy=text, strategy_len=len(text), train_len=train_len,
                    expected_tokens=expected_tokens, n_heads=n_heads)


def strategy_describe(expression: str, train_len: int, n_heads: int = 0, expected_tokens: int = 0) -> str:
    """The expression in canonical form, every default written out."""
    return _text(lib.quire_strategy_describe,
                 byref(_strategy_options(expression, train_len, n_heads, expected_tokens))).decode()


def strategies(train_len: int, n_heads: int = 0, expected_tokens: int = 0) -> Infos:
    """What expressions may be made of, for settings dialogs: a list of dicts (quire_strategy_get_list in quire.h)."""
    options = _options(_ffi.StrategyOptions, train_len=train_len, n_heads=n_heads, expected_tokens=expected_tokens)
    terms: Infos = _info(lib.quire_strategy_get_list, byref(options))["terms"]
    return terms


def strategy_positions(expression: str, train_len: int, n_keys: int, first_query: int = 0,
                       n_queries: Optional[int] = None, head: int = 0, n_heads: int = 0, queries: str = "text",
                       keys: str = "text", expected_tokens: int = 0) -> memoryview:
    """The relative-position matrix (NaN: invisible) as a memoryview of shape (n_queries, n_keys). queries, keys: "text"
    or "condensed" (the entries that beacon condenses text into). n_queries=None: n_keys - first_query."""
    n_queries = n_keys - first_query if n_queries is None else n_queries
    options = _strategy_options(expression, train_len, n_heads, expected_tokens)
    view = _options(_ffi.PositionView, head=head, query_kind=_choice("queries", queries, KV_KINDS),
                    key_kind=_choice("keys", keys, KV_KINDS), first_query=first_query, n_queries=n_queries, n_keys=n_keys)
    matrix = (ctypes.c_double * (n_queries * n_keys))()
    _call(lib.quire_strategy_get_positions, byref(options), byref(view), matrix, len(matrix), None)
    return _rows(matrix, "d", n_queries, n_keys)
