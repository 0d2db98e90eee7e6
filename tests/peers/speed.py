"""Prefill and decode of the library and of llama.cpp on the same GGUF files: ratios, both programs in turn.

    speed.py MODEL.gguf... [--threads 1 2] [--depths 128 2048 8192] [--rounds 5] [--json FILE]

QUIRE_LIBRARY names the library. llama.cpp is that of llama-cpp-python, which is to be built for this processor
(CMAKE_ARGS=-DGGML_NATIVE=ON; of a processor whose AMX a virtual machine refuses, with -DGGML_AMX_TILE=OFF and so on).

For each model, number of threads and depth: a text of so many random tokens is read; then, in each round, each program
reads 512 more tokens, goes back, generates 32 tokens, and goes back. A rate is tokens by wall time. A ratio is that of
one round; the table has the median of the ratios and, in brackets, the least and the greatest one. llama.cpp runs twice,
with its flash attention and without, and the better one counts in each round. Its tokens are not sampled, the library's
are (the most likely one). Keys and values are f16 in both. All threads are bound to as many cores.
"""

import argparse
import gc
import json
import os
import pathlib
import random
import statistics
import sys
import time

import llama_cpp

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bindings" / "python")]

import quire  # noqa: E402

N_PREFILL, N_DECODE, N_BATCH = 512, 32, 512


class Quire:
    def __init__(self, path, n_threads, _):
        self._runtime = quire.Runtime(threads=n_threads)
        self._model = self._runtime.load(path)
        self._session = self._model.session("full", kv_type="f16", overflow="extrapolate")

    def close(self):
        for handle in (self._session, self._model, self._runtime):
            handle.close()

    def read(self, ids):
        self._session.feed_tokens(ids)
        self._session.prefill()

    def generate(self, ids):
        """As many tokens as there are ids."""
        assert sum(event.kind == "token" for event in self._session.stream(len(ids), ignore_eos=True)) == len(ids)

    def go_back_to(self, n_tokens):
        self._session.truncate(n_tokens)


class LlamaCpp:
    def __init__(self, path, n_threads, n_ctx, flash):
        parameters = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = n_ctx, N_BATCH, N_BATCH
        context.n_threads = context.n_threads_batch = n_threads
        context.flash_attn_type = flash
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        assert self._context, "llama.cpp made no context"

    def close(self):
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _decode(self, ids):
        array = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(array, len(ids))
        assert llama_cpp.llama_decode(self._context, batch) == 0
        llama_cpp.llama_synchronize(self._context)

    def read(self, ids):
        for at in range(0, len(ids), N_BATCH):
            self._decode(ids[at:at + N_BATCH])

    def generate(self, ids):
        for one in ids:
            self._decode([one])

    def go_back_to(self, n_tokens):
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, n_tokens, -1)


def rate(program, work, ids, depth):
    begin = time.perf_counter()
    getattr(program, work)(ids)
    seconds = time.perf_counter() - begin
    program.go_back_to(depth)
    return len(ids) / seconds


def measure(path, n_threads, depth, rounds, ids):
    """{work: [(quire, llama.cpp, the same without flash attention) of each round]}, in tokens a second."""
    n_ctx = (depth + N_PREFILL + N_DECODE + 255) // 256 * 256
    programs = [Quire(path, n_threads, n_ctx), LlamaCpp(path, n_threads, n_ctx, llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED),
                LlamaCpp(path, n_threads, n_ctx, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)]
    found = {"read": [], "generate": []}
    for program in programs:
        program.read(ids[:depth])
        for work in found:  # once for nothing: memory is touched
            rate(program, work, ids[:N_DECODE], depth)
    for _ in range(rounds):
        for work, n in (("read", N_PREFILL), ("generate", N_DECODE)):
            found[work].append([rate(program, work, ids[depth:depth + n], depth) for program in programs])
    for program in programs:
        program.close()
    gc.collect()
    return found


def silence(*_):
    pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--depths", nargs="+", type=int, default=[128, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    log = llama_cpp.llama_log_callback(silence)
    llama_cpp.llama_log_set(log, None)
    llama_cpp.llama_backend_init()
    rows = []
    print("| model | threads | depth | work | quire tok/s | llama.cpp tok/s | ratio |\n|---|---|---|---|---|---|---|")
    for path in arguments.models:
        for n_threads in arguments.threads:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n_threads])
            for depth in arguments.depths:
                numbers = random.Random(7)
                ids = [numbers.randrange(1000, 20000) for _ in range(depth + N_PREFILL)]
                for work, rounds in measure(path, n_threads, depth, arguments.rounds, ids).items():
                    ratios = [own / max(others) for own, *others in rounds]
                    own = statistics.median(r[0] for r in rounds)
                    other = statistics.median(max(r[1:]) for r in rounds)
                    ratio = statistics.median(ratios)
                    print(f"| {path.stem} | {n_threads} | {depth} | {work} | {own:.1f} | {other:.1f} | {ratio:.2f} "
                          f"({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)
                    rows.append({"model": path.stem, "threads": n_threads, "depth": depth, "work": work,
                                 "tokens_per_s": rounds, "ratios": ratios})
            os.sched_setaffinity(0, range(os.cpu_count()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"llama_cpp_python": llama_cpp.__version__, "rows": rows}, indent=1) + "\n")


main()
