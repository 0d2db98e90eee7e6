"""The names that strings stand for in calls and results, and their numbers in quire.h."""

from __future__ import annotations

from typing import Dict

from . import _ffi


class _Names(Dict[int, str]):
    """Of numbers in results. One that this version does not know is its own name."""

    def __missing__(self, number: int) -> str:
        return str(number)


def _types(*names: str) -> Dict[str, int]:
    return {"default": _ffi.TYPE_DEFAULT, **{name: getattr(_ffi, "TYPE_" + name.upper()) for name in names}}


KV_TYPES = _types("f32", "f16", "bf16")
KV_OLD_TYPES = _types("int8", "int4")
TYPES = _types("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k",
               "iq4_nl", "iq4_xs")
ACTIVATIONS = _types("f32", "bf16", "int8")
LOADS = {"default": 0, "mmap": 1, "read": 2}
DEVICE_KINDS = {1: "cpu", 2: "cuda"}
OVERFLOWS = {"default": 0, "error": 1, "stop": 2, "extrapolate": 3}
LOG_LEVELS = {"default": 0, "error": 1, "warning": 2, "info": 3, "debug": 4}
LOG_LEVEL_NAMES = _Names({number: name for name, number in LOG_LEVELS.items()})
EVENTS = _Names({1: "prefill", 2: "token", 3: "warning", 4: "end", 5: "notice"})
FINISHES = _Names({0: "", 1: "max_tokens", 2: "eos", 3: "stop_id", 4: "stop_string", 5: "reach", 6: "cancelled",
                   7: "deadline"})
REUSE_MISSES = _Names({0: "complete", 1: "unknown", 2: "off", 3: "strategy", 4: "stream", 5: "positions", 6: "memory",
                       7: "approximate"})
EDIT_REUSES = {"exact": 0, "approximate": 1}
MESSAGES = _Names({0: "", 1: "adapter_base", 2: "untrained_positions", 101: "auto_choice"})
KV_KINDS = {"text": 0, "condensed": 1}  # of keys and values
TIERS = {"device": 1, "host": 2, "compressed": 3, "file": 4, "snapshot": 5}
SAMPLERS = {"temperature": 1, "top_k": 2, "top_p": 3, "min_p": 4, "typical": 5, "penalties": 6, "dry": 7}
