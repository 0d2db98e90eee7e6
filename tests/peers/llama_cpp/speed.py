"""Prefill and decode of the library and of llama.cpp on the same GGUF files: ratios, both programs in turn.

    speed.py MODEL.gguf... [--threads 1 2] [--depths 128 2048 8192] [--rounds 5] [--strategy full] [--kv f16|int8]
             [--against dca] [--works read generate] [--read 512] [--json FILE]

QUIRE_LIBRARY names the library. llama.cpp is that of llama-cpp-python, which is to be built for this processor
(CMAKE_ARGS=-DGGML_NATIVE=ON; of a processor whose AMX a virtual machine refuses, with -DGGML_AMX_TILE=OFF and so on).

For each model, number of threads and depth both KV caches are filled without computing all of it: the library's with
random numbers, llama.cpp's with those of 512 random tokens, again and again. Then, in each round, each program reads 512
more tokens (--read: so many), goes back, generates 32 tokens, and goes back. A rate is tokens by wall time. A ratio is that of one round; the
table has the median of the ratios and, in brackets, the least and the greatest one. llama.cpp runs twice, with its flash
attention and without, and the better one counts in each round (int8 needs it). Its tokens are not sampled, the library's
are (the most likely one). All threads are bound to as many cores.

--strategy: the library's; llama.cpp attends to every token. --against STRATEGY: compares with the library itself under
that strategy, and llama.cpp is left out.
"""

import argparse
import json
import pathlib
import statistics
import time

import llama_cpp

from programs import LlamaCpp, LlamaCppModel, Quire, QuireModel, bind_to, random_ids

N_GENERATED = 32


def rate(program, work, ids, depth):
    begin = time.perf_counter()
    getattr(program, work)(ids)
    seconds = time.perf_counter() - begin
    program.go_back_to(depth)
    return len(ids) / seconds


def measure(programs, depth, works, rounds):
    """{work: [rates of the programs in each round]}, in tokens a second. works: how many tokens of each. Nothing can be
    generated behind nothing."""
    ids = random_ids(max(works.values()), seed=8)
    works = {work: n for work, n in works.items() if depth > 0 or work != "generate"}
    for program in programs:
        program.fill(depth)
        for work in works:  # once for nothing: memory is touched
            rate(program, work, ids[:N_GENERATED], depth)
    return {work: [[rate(program, work, ids[:n], depth) for program in programs] for _ in range(rounds)]
            for work, n in works.items()}


def compare(path, n_threads, depth, arguments):
    """The library's rates come first, the others' behind."""
    works = {work: {"read": arguments.read, "generate": N_GENERATED}[work] for work in arguments.works}
    own = QuireModel(path, n_threads)
    models, programs = [own], [Quire(own, arguments.strategy, arguments.kv)]
    if arguments.against:
        programs.append(Quire(own, arguments.against, arguments.kv))
    else:
        other = LlamaCppModel(path)
        models.append(other)
        n_ctx = depth + sum(works.values())
        programs += [LlamaCpp(other, n_threads, n_ctx, flash, arguments.kv)
                     for flash in ([True, False] if arguments.kv == "f16" else [True])]
    found = measure(programs, depth, works, arguments.rounds)
    for closing in programs + models:
        closing.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--depths", nargs="+", type=int, default=[128, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategy", default="full")
    parser.add_argument("--kv", choices=["f16", "int8"], default="f16")
    parser.add_argument("--against", metavar="STRATEGY")
    parser.add_argument("--works", nargs="+", choices=["read", "generate"], default=["read", "generate"])
    parser.add_argument("--read", type=int, default=512)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    peer = f"quire {arguments.against}" if arguments.against else "llama.cpp"
    rows = []
    print(f"| model | threads | depth | work | quire {arguments.strategy} {arguments.kv} tok/s | {peer} tok/s | ratio |\n"
          "|---|---|---|---|---|---|---|")
    for path in arguments.models:
        for n_threads in arguments.threads:
            bind_to(n_threads)
            for depth in arguments.depths:
                for work, rounds in compare(path, n_threads, depth, arguments).items():
                    ratios = [own / max(others) for own, *others in rounds]
                    own = statistics.median(r[0] for r in rounds)
                    other = statistics.median(max(r[1:]) for r in rounds)
                    print(f"| {path.stem} | {n_threads} | {depth} | {work} | {own:.1f} | {other:.1f} | "
                          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |", flush=True)
                    rows.append({"model": path.stem, "threads": n_threads, "depth": depth, "work": work,
                                 "strategy": arguments.strategy, "kv": arguments.kv, "peer": peer,
                                 "tokens_per_s": rounds, "ratios": ratios})
    if arguments.json:
        arguments.json.write_text(json.dumps({"llama_cpp_python": llama_cpp.__version__, "rows": rows}, indent=1) + "\n")


main()
