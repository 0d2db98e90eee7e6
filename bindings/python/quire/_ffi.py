"""quire.h for ctypes: the library, its structs and its functions, nothing more."""

import ctypes
import ctypes.util
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)

VERSION = 100  # QUIRE_VERSION of the header these declarations follow

LogCallback = CFUNCTYPE(None, c_void_p, c_int32, POINTER(c_char), c_size_t)
DestroyCallback = CFUNCTYPE(None, c_void_p)
ProgressCallback = CFUNCTYPE(None, c_void_p, c_int64, c_int64)


_PLAIN_STRUCTS = ("quire_text", "quire_label", "quire_label_attention", "quire_sampler", "quire_logit_bias",
                  "quire_token_logprob", "quire_adapter_source", "quire_session_adapter")


def _struct(name, size, *fields):
    """A struct of quire.h; `size` is sizeof in C on 64-bit systems."""
    head = [] if name in _PLAIN_STRUCTS else [("struct_size", c_uint32), ("flags", c_uint32)]
    cls = type(name, (Structure,), {"_fields_": head + list(fields)})
    if ctypes.sizeof(c_void_p) == 8:
        assert ctypes.sizeof(cls) == size, (name, ctypes.sizeof(cls), size)
    return cls


def _same(kind, names):
    return [(name, kind) for name in names.split()]


Error = _struct("quire_error", 544, ("code", c_int32), ("os_error", c_int32), ("offset", c_int64),
                ("reserved", c_int64), ("message", c_char * 512))
RuntimeOptions = _struct(
    "quire_runtime_options", 80, *_same(c_int32, "n_threads backend log_level reserved"), ("log", LogCallback),
    ("log_user_data", c_void_p), ("log_destroy", DestroyCallback),
    *_same(c_void_p, "alloc free alloc_user_data alloc_destroy"))
AdapterSource = _struct("quire_adapter_source", 24, ("path", c_char_p), ("path_len", c_size_t), ("scale", c_double))
ModelOptions = _struct("quire_model_options", 72, *_same(c_int32, "load weight_type"), ("cancel", c_void_p),
                       ("progress", ProgressCallback), ("progress_user_data", c_void_p),
                       ("merge", POINTER(AdapterSource)), ("n_merge", c_size_t), ("beacon_path", c_char_p),
                       ("beacon_path_len", c_size_t))
AdapterOptions = _struct("quire_adapter_options", 32, ("cancel", c_void_p), ("progress", ProgressCallback),
                         ("progress_user_data", c_void_p))
AdapterInfo = _struct("quire_adapter_info", 32, *_same(c_int32, "rank n_tensors"), *_same(c_int64, "n_parameters bytes"))
SessionAdapter = _struct("quire_session_adapter", 16, ("adapter", c_void_p), ("scale", c_double))
ModelInfo = _struct(
    "quire_model_info", 80,
    *_same(c_int32, "n_layers n_query_heads n_kv_heads head_dim hidden_size intermediate_size vocab_size weight_type"),
    *_same(c_int64, "train_len n_parameters weight_bytes"), ("rope_theta", c_double),
    ("sliding_window", c_int64))
StrategyOptions = _struct("quire_strategy_options", 48, ("strategy", c_char_p), ("strategy_len", c_size_t),
                          *_same(c_int64, "train_len expected_tokens"), *_same(c_int32, "n_heads reserved"))
PositionView = _struct("quire_position_view", 48, *_same(c_int32, "head query_kind key_kind reserved"),
                       *_same(c_int64, "first_query n_queries n_keys"))
SessionOptions = _struct("quire_session_options", 96, ("strategy", c_char_p), ("strategy_len", c_size_t),
                         *_same(c_int32, "kv_type overflow"), *_same(c_int64, "expected_tokens kv_budget_bytes"),
                         *_same(c_int32, "prefill_block reserved"), ("spill_directory", c_char_p),
                         ("spill_directory_len", c_size_t), ("spill_budget_bytes", c_int64),
                         ("adapters", POINTER(SessionAdapter)), ("n_adapters", c_size_t))
SessionStats = _struct("quire_session_stats", 152, *_same(c_int64, """n_tokens n_pending n_prefilled n_generated
    prefill_ns decode_ns kv_bytes kv_bytes_peak kv_chunks kv_chunks_resident kv_chunks_evicted kv_chunks_written kv_chunks_read
    kv_file_bytes scratch_bytes reach tasks_after_cancel cancel_latency_ns"""))
MemoryPlan = _struct("quire_memory_plan", 72, *_same(c_int64, """weight_bytes mapped_bytes kv_bytes
    representation_bytes spill_bytes scratch_bytes kv_bytes_per_token reach"""))
Label = _struct("quire_label", 24, *_same(c_int64, "begin end id"))
LabelAttention = _struct("quire_label_attention", 32, *_same(c_int64, "id first_token n_tokens"), ("share", c_double))
Text = _struct("quire_text", 16, ("data", c_char_p), ("len", c_size_t))
Sampler = _struct("quire_sampler", 24, *_same(c_int32, "kind n m"), *_same(c_float, "a b c"))
LogitBias = _struct("quire_logit_bias", 8, ("token", c_int32), ("bias", c_float))
TokenLogprob = _struct("quire_token_logprob", 8, ("token", c_int32), ("logprob", c_float))
StreamOptions = _struct(
    "quire_stream_options", 152, ("max_tokens", c_int64), ("temperature", c_float), ("top_k", c_int32),
    *_same(c_float, "top_p min_p"), ("seed", c_uint64), ("stop_ids", POINTER(c_int32)), ("n_stop_ids", c_size_t),
    ("stop_strings", POINTER(Text)), ("n_stop_strings", c_size_t), ("samplers", POINTER(Sampler)),
    *_same(c_size_t, "n_samplers sampler_stride"), ("logit_bias", POINTER(LogitBias)), ("n_logit_bias", c_size_t),
    ("dry_breakers", POINTER(Text)), ("n_dry_breakers", c_size_t), *_same(c_int64, "min_tokens deadline_ms"),
    *_same(c_int32, "n_top_logprobs max_undelivered"))
Event = _struct(
    "quire_event", 120, *_same(c_int32, "type token"), ("n_tokens", c_int64), ("text", POINTER(c_char)),
    ("text_len", c_size_t), *_same(c_int64, "total reused done"), ("n_per_second", c_double), ("logprob", c_float),
    *_same(c_int32, "finish_reason stop_index code"), ("top_logprobs", POINTER(TokenLogprob)),
    ("n_top_logprobs", c_size_t), ("message", POINTER(c_char)), ("message_len", c_size_t))

_P = c_void_p  # every handle
_OUT = POINTER(c_void_p)
_SIZE = POINTER(c_size_t)
_I32 = POINTER(c_int32)
_I64 = POINTER(c_int64)
_F32 = POINTER(c_float)
_BUF = c_void_p
_ERR = POINTER(Error)

# Functions that return a status and take a quire_error* last: their other arguments.
_CHECKED = {
    "quire_runtime_create": [POINTER(RuntimeOptions), _OUT],
    "quire_runtime_close": [_P],
    "quire_cancel_create": [_OUT],
    "quire_model_load": [_P, c_char_p, c_size_t, POINTER(ModelOptions), _OUT],
    "quire_model_get_info": [_P, POINTER(ModelInfo)],
    "quire_model_get_metadata": [_P, c_char_p, c_size_t, _BUF, c_size_t, _SIZE],
    "quire_model_get_tokenizer": [_P, _OUT],
    "quire_adapter_load": [_P, c_char_p, c_size_t, POINTER(AdapterOptions), _OUT],
    "quire_adapter_get_info": [_P, POINTER(AdapterInfo)],
    "quire_adapter_get_metadata": [_P, c_char_p, c_size_t, _BUF, c_size_t, _SIZE],
    "quire_tokenizer_encode": [_P, c_char_p, c_size_t, c_uint32, _I32, c_size_t, _SIZE],
    "quire_tokenizer_decode": [_P, _I32, c_size_t, c_uint32, _BUF, c_size_t, _SIZE],
    "quire_tokenizer_token_bytes": [_P, c_int32, _BUF, c_size_t, _SIZE],
    "quire_strategy_describe": [POINTER(StrategyOptions), _BUF, c_size_t, _SIZE],
    "quire_strategy_positions": [POINTER(StrategyOptions), POINTER(PositionView), POINTER(c_double)],
    "quire_memory_plan_make": [_P, c_char_p, c_size_t, POINTER(ModelOptions), POINTER(SessionOptions), c_int64,
                               POINTER(MemoryPlan)],
    "quire_session_check": [_P, POINTER(SessionOptions)],
    "quire_model_describe_strategy": [_P, POINTER(SessionOptions), _BUF, c_size_t, _SIZE],
    "quire_session_create": [_P, POINTER(SessionOptions), _OUT],
    "quire_session_close": [_P],
    "quire_session_feed_text": [_P, c_char_p, c_size_t, c_uint32],
    "quire_session_feed_labelled": [_P, c_char_p, c_size_t, c_uint32, POINTER(Label), c_size_t],
    "quire_session_get_label_attention": [_P, POINTER(LabelAttention), c_size_t, _SIZE],
    "quire_session_feed_tokens": [_P, _I32, c_size_t],
    "quire_session_feed_positions": [_P, _I32, POINTER(c_int64), c_size_t],
    "quire_session_discard_pending": [_P],
    "quire_session_reset": [_P],
    "quire_session_truncate": [_P, c_int64],
    "quire_session_fill_random": [_P, c_int64, c_uint64],
    "quire_session_count_tokens": [_P, _I64, _I64],
    "quire_session_get_logits": [_P, c_int64, c_int64, _F32, c_size_t],
    "quire_session_get_scores": [_P, c_int64, c_int64, _F32],
    "quire_session_get_stats": [_P, POINTER(SessionStats)],
    "quire_session_get_strategy": [_P, _BUF, c_size_t, _SIZE],
    "quire_session_get_fingerprint": [_P, _BUF, c_size_t, _SIZE],
    "quire_stream_open": [_P, POINTER(StreamOptions), _OUT],
    "quire_stream_close": [_P],
    "quire_stream_cancel": [_P],
    "quire_stream_add_stop_ids": [_P, _I32, c_size_t],
    "quire_stream_add_stop_strings": [_P, POINTER(Text), c_size_t],
    "quire_stream_allow": [_P, POINTER(c_uint32), c_size_t],
    "quire_stream_next": [_P, c_int32, POINTER(Event)],
    "quire_stream_get_wait_handle": [_P, _I64, _I32],
}
# The others: their result and arguments.
_PLAIN = {
    "quire_version": (c_int32, []),
    "quire_version_string": (c_char_p, []),
    "quire_status_name": (c_char_p, [c_int32]),
    "quire_cancel_trigger": (None, [_P]),
    "quire_tokenizer_vocab_size": (c_int32, [_P]),
    "quire_tokenizer_bos": (c_int32, [_P]),
    "quire_tokenizer_is_eos": (c_int32, [_P, c_int32]),
    **{f"quire_{noun}_release": (None, [_P])
       for noun in ("runtime", "cancel", "model", "adapter", "tokenizer", "session", "stream")},
}


def _find():
    """The library's path: $QUIRE_LIBRARY, beside this package, or what the system finds."""
    if path := os.environ.get("QUIRE_LIBRARY"):
        return path
    for name in ("libquire.so.0", "libquire.so"):
        if (path := pathlib.Path(__file__).parent / name).exists():
            return str(path)
    return ctypes.util.find_library("quire") or "libquire.so.0"


def _load():
    library = ctypes.CDLL(_find())
    for name, arguments in _CHECKED.items():
        getattr(library, name).argtypes = arguments + [_ERR]
        getattr(library, name).restype = c_int32
    for name, (result, arguments) in _PLAIN.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = result
    return library


lib = _load()
