"""Measures the strategies on a real model, SmolLM2-135M-Instruct: how well they read beyond its window of 8,192 tokens.

    bash tests/quality/real.sh [--minutes N] [--task T ...] [--strategy S ...] [--length N ...] [--device NAME]

Goes on where the last run on the device stopped (results.jsonl), then writes real.md. Slow: all of it takes days on two
cores.
"""
import argparse
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))

from questions import QUESTIONS
from results import CPU, Results
from strategies import FRONTIER, FRONTIER_LENGTH, STRATEGIES
from texts import handbook

LENGTHS = (4096, 8192, 12288, 16384, 24576, 32768, 65536)
DEVICE_LENGTHS = (*LENGTHS, 131072)  # the last one would take hours on a CPU
TASKS = ("passkey", "perplexity", "multikey", "questions", "needle", "speed", "ranks")
FRONTIER_TASKS = ("passkey", "perplexity", "multikey", "speed")


def measure(bench, tasks, strategies, lengths, rounds):
    """Shorter texts first: what fails there is not tried at longer ones."""
    for round_ in range(rounds):
        for task in (task for task in tasks if task != "ranks"):
            for length in lengths:
                for strategy in strategies:
                    if strategy in FRONTIER and (task not in FRONTIER_TASKS or length != FRONTIER_LENGTH):
                        continue
                    argument = QUESTIONS if task == "questions" else round_
                    if task not in ("questions", "speed") or round_ == 0:
                        getattr(bench, task)(strategy, length, argument)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libquire.so")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the GGUF file")
    parser.add_argument("--handbook", type=pathlib.Path, required=True, help="the folder of its HTML pages")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results.jsonl", help="where measurements are kept")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent, help="where real.md and figures/ go")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing later than this")
    parser.add_argument("--rounds", type=int, default=1, help="repetitions; a round of passkey has ten trials for each length")
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--strategy", choices=(*STRATEGIES, *FRONTIER), action="append")
    parser.add_argument("--length", type=int, action="append")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default=CPU, help="what the model runs on, as quire names it: cuda:0")
    parser.add_argument("--ranks", type=pathlib.Path, help="the program quire_chunk_ranks, which the task of that name needs")
    parser.add_argument("--no-figures", action="store_true", help="do without matplotlib")
    options = parser.parse_args()
    os.environ["QUIRE_LIBRARY"] = str(options.library.resolve())
    import quire
    import ranks
    from summary import write
    from tasks import Bench

    results, end = Results(options.results), time.monotonic() + 60 * options.minutes

    def log(text):
        print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)

    if options.minutes > 0:
        with (quire.Runtime(threads=options.threads) as runtime,
              runtime.load(str(options.model), device=options.device, activations="f32") as model):
            device = model.metadata("device")
            description = next(d["description"] for d in runtime.devices() if d["name"] == device) if device != CPU else ""
            bench = Bench(model, description, handbook(options.handbook), results.on(device), lambda: time.monotonic() > end,
                          log)
            tasks = options.task or TASKS
            measure(bench, tasks, options.strategy or (*STRATEGIES, *FRONTIER),
                    sorted(options.length or (LENGTHS if device == CPU else DEVICE_LENGTHS)), options.rounds)
            if "ranks" in tasks and options.ranks and device == CPU:
                ranks.measure(bench, options.ranks, options.model, bench.results, bench.over, log)
    write(results, options.out, not options.no_figures)


if __name__ == "__main__":
    main()
