"""How fast bindings stream tokens, compared with C in the same run.

    overhead.py MODEL_DIR C_PROGRAM [NAME=COMMAND ...] [--tokens N] [--rounds R] [--json FILE]

Starts the C program and one program for each NAME, all of which keep the contract of README.md, and lets them take turns
for many rounds. In a round each program generates once, next to a turn of C, before it or behind it, and its tokens a
second are divided by those of that turn. Prints the median of these ratios with the quartiles, and each program's allocations a token. Exit status 1: a
program did something else than the contract says.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys


class Program:
    def __init__(self, name, command, model, n_tokens):
        self.name, self.n_tokens, self.rates, self.ratios, self.allocations = name, n_tokens, [], [], []
        self.process = subprocess.Popen([*command, model, str(n_tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def read(self):
        line = self.process.stdout.readline()
        try:
            return json.loads(line)
        except ValueError:
            raise SystemExit(f"{self.name}: expected a line of JSON, found {line!r}") from None

    def wait_until_ready(self):
        if self.read() != {"ready": True}:
            raise SystemExit(f"{self.name}: expected {{\"ready\":true}} first")

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = self.read()
        if set(found) != {"tokens", "seconds", "allocations"} or found["tokens"] != self.n_tokens or found["seconds"] <= 0:
            raise SystemExit(f"{self.name}: expected {self.n_tokens} tokens, a time and allocations, found {found}")
        self.rates.append(found["tokens"] / found["seconds"])
        self.allocations.append(found["allocations"])

    def end(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise SystemExit(f"{self.name}: exit status {self.process.returncode}")


def summary(program):
    low, middle, high = statistics.quantiles(program.ratios, n=4, method="inclusive")
    known = [count for count in program.allocations if count is not None]
    return {"name": program.name, "ratio": middle, "quartiles": [low, high],
            "tokens_per_second": statistics.median(program.rates),
            "allocations_per_token": statistics.median(known) if known else None}


def table(rows, n_rounds, n_tokens):
    yield f"{'program':<12} {'ratio to C':>10} {'quartiles':>15} {'tokens/s':>10} {'allocations/token':>18}"
    for row in rows:
        allocations = "unknown" if row["allocations_per_token"] is None else f"{row['allocations_per_token']:.2f}"
        low, high = row["quartiles"]
        yield (f"{row['name']:<12} {row['ratio']:>10.3f} {f'{low:.3f} - {high:.3f}':>15} {row['tokens_per_second']:>10.0f} "
               f"{allocations:>18}")
    yield f"medians of {n_rounds} rounds of {n_tokens} tokens"


def compare(programs, n_rounds):
    for program in programs:
        program.wait_until_ready()
    for program in programs:  # what only happens the first time is no part of a round
        program.run()
        program.rates.clear()
        program.allocations.clear()
    c = programs[0]
    c.ratios = [1.0] * n_rounds
    for number in range(n_rounds):
        for program in programs[1:]:
            for one in (c, program) if number % 2 == 0 else (program, c):
                one.run()
            program.ratios.append(program.rates[-1] / c.rates[-1])
    for program in programs:
        program.end()
    return [summary(program) for program in programs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("c_program")
    parser.add_argument("others", nargs="*", metavar="NAME=COMMAND")
    parser.add_argument("--tokens", type=int, default=1000, help="of each round")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", help="a file that gets the same numbers")
    arguments = parser.parse_args()
    commands = [("c", [arguments.c_program])]
    for other in arguments.others:
        name, equals, command = other.partition("=")
        if not equals:
            parser.error(f"expected NAME=COMMAND, found {other}")
        commands.append((name, shlex.split(command)))
    programs = []
    try:
        programs += [Program(name, command, arguments.model, arguments.tokens) for name, command in commands]
        rows = compare(programs, arguments.rounds)
    finally:
        for program in programs:
            program.process.kill()  # does nothing to one that has ended
    print("\n".join(table(rows, arguments.rounds, arguments.tokens)))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"tokens": arguments.tokens, "rounds": arguments.rounds, "programs": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
