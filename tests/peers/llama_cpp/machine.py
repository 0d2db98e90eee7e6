"""What else is compared with llama.cpp, or with the library itself, in turn:

    machine.py first_start MODEL.gguf    seconds from opening a file in the page cache to the first token
    machine.py start MODEL.gguf          the same, where the library has kept packed weights (packed_directory)
    machine.py together MODEL.gguf       four sessions decoded at once, and one after the other
    machine.py neighbour MODEL.gguf      two threads while another process computes on one of two cores, and one thread
    machine.py memory MODEL.gguf         bytes at a depth: anonymous ones, and those of the file that are mapped
    machine.py memory_mapped MODEL.gguf  the same, where the library maps the file, too (QUIRE_LOAD_MMAP)
                        [--threads N] [--depth N] [--rounds N] [--json FILE]

QUIRE_LIBRARY names the library. A measurement of `start`, `first_start`, `memory` and `memory_mapped` is a process of its own. The median of
the rounds' ratios is printed, with the least and the greatest one; of memory one round suffices. llama.cpp's flash attention is on
in these; `neighbour` takes the better of on and off, with as many threads as are given to the library.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from programs import LlamaCpp, LlamaCppModel, Quire, QuireModel, bind_to, random_ids

N_DECODE, N_PROMPT, N_TOGETHER = 32, 16, 4


def opened(name, path, n_threads, n_ctx, flash=True, **options):
    """The program and its model. options: the library's."""
    if name == "quire":
        model = QuireModel(path, n_threads, **options)
        return Quire(model), model
    model = LlamaCppModel(path)
    return LlamaCpp(model, n_threads, n_ctx, flash), model


def seconds_to_first_token(name, arguments):
    begin = time.perf_counter()
    program, _ = opened(name, arguments.model, arguments.threads, 512, packed_directory=arguments.packed)
    program.read(random_ids(N_PROMPT))
    program.generate(random_ids(1))
    return time.perf_counter() - begin


def resident():
    """Bytes of this process: anonymous ones, and mapped ones of files."""
    fields = dict(line.split(":") for line in pathlib.Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return [int(fields[field].split()[0]) * 1024 for field in ("RssAnon", "RssFile")]


def memory_at(name, arguments, **options):
    """What a model and a session add to the process, after a prefill of 512 tokens and some decoding at the depth."""
    before = resident()
    program, _ = opened(name, arguments.model, arguments.threads, arguments.depth + 1024, **options)
    program.fill(arguments.depth)
    program.read(random_ids(512))
    program.generate(random_ids(4))
    anonymous, mapped = (now - then for now, then in zip(resident(), before))
    return {"anonymous": anonymous, "mapped": mapped}


def mapped_memory_at(name, arguments):
    """llama.cpp always maps the file."""
    return memory_at(name, arguments, **({"load": "mmap"} if name == "quire" else {}))


APART = {"start": seconds_to_first_token, "memory": memory_at, "memory_mapped": mapped_memory_at}


def apart(work, name, arguments, *more):
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, work, arguments.model, "--threads", arguments.threads, "--depth", arguments.depth,
               "--of", name, *more]
    return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)


def rate(program, depth):
    begin = time.perf_counter()
    program.generate(random_ids(N_DECODE))
    seconds = time.perf_counter() - begin
    program.go_back_to(depth)
    return N_DECODE / seconds


def first_start(arguments, *packed):
    seconds = []
    for _ in range(arguments.rounds + 1):  # once for nothing: files come into the page cache, and packed weights are kept
        other = apart("start", "llama.cpp", arguments)
        seconds.append((apart("start", "quire", arguments, *packed), other))
    return [other / own for own, other in seconds[1:]], {"seconds": seconds[1:]}


def start(arguments):
    with tempfile.TemporaryDirectory() as folder:
        return first_start(arguments, "--packed", folder)


def memory(arguments):
    own, other = (apart(arguments.work, name, arguments) for name in ("quire", "llama.cpp"))
    return [sum(own.values()) / sum(other.values())], {"bytes": {"quire": own, "llama.cpp": other}}


def together(arguments):
    bind_to(arguments.threads)
    model = QuireModel(arguments.model, arguments.threads)
    sessions = [Quire(model) for _ in range(N_TOGETHER)]
    for session in sessions:
        session.fill(arguments.depth)

    def seconds(run):
        begin = time.perf_counter()
        run()
        passed = time.perf_counter() - begin
        for session in sessions:
            session.go_back_to(arguments.depth)
        return passed

    def in_turn():
        for session in sessions:
            session.generate(random_ids(N_DECODE))

    def at_once():
        threads = [threading.Thread(target=session.generate, args=[random_ids(N_DECODE)]) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    seconds(in_turn)
    return [seconds(in_turn) / seconds(at_once) for _ in range(arguments.rounds)], {}


@contextlib.contextmanager
def neighbour_at_work():
    process = subprocess.Popen(["taskset", "-c", "1", sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def neighbour(arguments):
    """Rates of two threads beside a neighbour by those of one thread alone, on cores 0 and 1."""
    bind_to(2)
    n_ctx = arguments.depth + N_DECODE
    kinds = {"quire": [("quire", True)], "llama.cpp": [("llama.cpp", True), ("llama.cpp", False)]}
    found = {}
    for name, variants in kinds.items():
        rates = {}
        for n_threads in (1, 2):
            programs = [opened(kind, arguments.model, n_threads, n_ctx, flash) for kind, flash in variants]
            for program, _ in programs:
                program.fill(arguments.depth)
                rate(program, arguments.depth)
            with neighbour_at_work() if n_threads == 2 else contextlib.nullcontext():
                rates[n_threads] = [max(rate(program, arguments.depth) for program, _ in programs)
                                    for _ in range(arguments.rounds)]
            for program, model in programs:
                program.close()
                model.close()
        found[name] = [two / one for one, two in zip(rates[1], rates[2])]
    return found["quire"], {"llama_cpp": found["llama.cpp"]}


def main():
    works = {"start": start, "first_start": first_start, "together": together, "neighbour": neighbour, "memory": memory,
             "memory_mapped": memory}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=works)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--of", choices=["quire", "llama.cpp"], help=argparse.SUPPRESS)  # one measurement
    parser.add_argument("--packed", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of:
        bind_to(arguments.threads)
        print(json.dumps(APART[arguments.work](arguments.of, arguments)))
        return
    ratios, details = works[arguments.work](arguments)
    print(f"{arguments.work} {arguments.model.stem}, {arguments.threads} threads, depth {arguments.depth}: "
          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", json.dumps(details) if details else "")
    if arguments.json:
        rows = [{"work": arguments.work, "model": arguments.model.stem, "threads": arguments.threads,
                 "depth": arguments.depth, "ratios": ratios, **details}]
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


main()
