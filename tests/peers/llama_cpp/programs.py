"""The library and llama.cpp behind one interface, for the benchmarks of this folder.

A program is a session (a context) on a GGUF file: fill(n) makes it n tokens long without computing most of them, read(ids)
processes ids, generate(ids) makes as many tokens as there are ids, one after the other, and go_back_to(n) forgets what
came after the first n tokens.
"""

import ctypes
import os
import pathlib
import random
import struct
import sys

import llama_cpp
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bindings" / "python")]

import quire  # noqa: E402

N_BATCH = 512
GGML_TYPES = {"f16": 1, "int8": 8}  # llama.cpp's Q8_0 is the nearest to int8


def random_ids(n, seed=7):
    numbers = random.Random(seed)
    return [numbers.randrange(1000, 20000) for _ in range(n)]


class QuireModel:
    def __init__(self, path, n_threads, **options):
        self.runtime = quire.Runtime(threads=n_threads)
        self.model = self.runtime.load(path, **options)

    def close(self):
        self.model.close()
        self.runtime.close()


class Quire:
    """kv_type: int8 is that of all text but a token's own chunk, which is f16."""

    def __init__(self, model, strategy="full", kv_type="f16"):
        old = {"kv_old_type": "int8", "old_after": 0} if kv_type == "int8" else {}
        self._session = model.model.session(strategy, kv_type="f16", overflow="extrapolate", prefix_reuse=False, **old)

    def close(self):
        self._session.close()

    def fill(self, n_tokens):
        self._session.fill_random(n_tokens, seed=7)

    def read(self, ids):
        self._session.feed_tokens(ids)
        self._session.prefill()

    def generate(self, ids):
        """Behind a new token, as llama.cpp: as many passes as tokens."""
        self._session.feed_tokens(ids[:1])
        assert sum(event.kind == "token" for event in self._session.stream(len(ids), ignore_eos=True)) == len(ids)

    def go_back_to(self, n_tokens):
        """What a text that was cut wants read again, its last token and with longheads all of that token's chunk, is read here."""
        self._session.truncate(n_tokens)
        self._session.prefill()


@llama_cpp.llama_log_callback
def _silence(*_):
    pass


class LlamaCppModel:
    def __init__(self, path):
        llama_cpp.llama_log_set(_silence, None)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {path}"
        self.has_windows = llama_cpp.llama_model_n_swa(self.model) > 0

    def close(self):
        llama_cpp.llama_model_free(self.model)


class LlamaCpp:
    """flash_attention: llama.cpp's name for its fused kernels; values in int8 need them."""

    def __init__(self, model, n_threads, n_ctx, flash_attention, kv_type="f16"):
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = (n_ctx + 255) // 256 * 256, N_BATCH, N_BATCH
        context.n_threads = context.n_threads_batch = n_threads
        context.flash_attn_type = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attention
                                   else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
        context.type_k = context.type_v = GGML_TYPES[kv_type]
        context.swa_full = False  # as its own programs have it: keys behind a layer's window are dropped
        self._has_windows = model.has_windows
        self._context = llama_cpp.llama_init_from_model(model.model, context)
        assert self._context, "llama.cpp made no context"

    def close(self):
        llama_cpp.llama_free(self._context)

    def _decode(self, ids):
        array = (llama_cpp.llama_token * len(ids))(*ids)
        assert llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(array, len(ids))) == 0
        llama_cpp.llama_synchronize(self._context)

    def fill(self, n_tokens):
        """Reads at most 512 random tokens; deeper, their keys and values are repeated, but for models with windows in
        some layers, whose state has another form."""
        if self._has_windows:
            return self.read(random_ids(n_tokens))
        self.read(random_ids(min(n_tokens, N_BATCH)))
        if n_tokens <= N_BATCH:
            return
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        state = (ctypes.c_uint8 * size)()
        assert llama_cpp.llama_state_seq_get_data(self._context, state, size, 0) == size
        longer = repeated(bytes(state), n_tokens)
        taken = (ctypes.c_uint8 * len(longer)).from_buffer(longer)
        assert llama_cpp.llama_state_seq_set_data(self._context, taken, len(longer), 0) == len(longer)

    def read(self, ids):
        for at in range(0, len(ids), N_BATCH):
            self._decode(ids[at:at + N_BATCH])

    def generate(self, ids):
        for one in ids:
            self._decode([one])

    def go_back_to(self, n_tokens):
        assert llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, n_tokens, -1)


def repeated(state, n):
    """llama.cpp's state of one sequence, with its n0 cells repeated to n: head, position and sequence of each cell, keys,
    values (transposed without flash attention)."""
    out, at = bytearray(), 0

    def take(size):
        nonlocal at
        at += size
        return state[at - size:at]

    def copy(layout):
        data = take(struct.calcsize(layout))
        out.extend(data)
        return struct.unpack(layout, data)

    def rows(n_rows, row_bytes):
        """[n_rows][row_bytes] whose rows are repeated."""
        data = numpy.frombuffer(take(n_rows * row_bytes), numpy.uint8).reshape(n_rows, row_bytes)
        out.extend(numpy.resize(data, (n, row_bytes)).tobytes())

    _, _, n_streams = copy("<IiI")  # magic, sequence
    assert n_streams == 1
    (n0,) = struct.unpack("<I", take(4))
    out.extend(struct.pack("<I", n))
    first, n_sequences, sequence = struct.unpack("<iIi", state[at:at + 12])
    assert (first, n_sequences) == (0, 1)
    take(n0 * 12)
    for position in range(n):
        out.extend(struct.pack("<iIi", position, 1, sequence))
    transposed, n_layers = copy("<II")
    for _ in range(n_layers):
        _, row_bytes = copy("<iQ")
        rows(n0, row_bytes)
    for _ in range(n_layers):
        if not transposed:
            _, row_bytes = copy("<iQ")
            rows(n0, row_bytes)
            continue
        _, element, width = copy("<iII")
        data = numpy.frombuffer(take(width * n0 * element), numpy.uint8).reshape(width, n0, element)
        out.extend(numpy.take(data, numpy.arange(n) % n0, axis=1).tobytes())
    assert at == len(state), "the state has another layout"
    return out


def bind_to(n_cores):
    os.sched_setaffinity(0, sorted(range(os.cpu_count()))[:n_cores])
