"""What the tests of this folder measure, as lines of the file that QUIRE_PEERS_RESULTS names, and as a page.

    python3 tests/peers/figures.py FILE >tests/peers/results.md

Lines are appended to the file; of several lines of one case the page shows the last.
"""

import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import sys

PACKAGES = ("llama-cpp-python", "transformers", "torch", "tokenizers", "gguf")
INTRODUCTION = """# What the comparisons found

Written by `tests/peers/figures.py`; `README.md` says how, and what each test compares. Errors are relative: of logits
the norm of all differences, divided by the norm of the logits that are compared with. Differences of perplexities are
relative too. A gap is that of the library's logits of two tokens, where greedy texts first differ; 0 where none does.
"""


@functools.lru_cache
def versions():
    import quire
    found = [f"quire {quire.version()}"]
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


def record(case, seed=None, **figures):
    """Keeps figures of a case of the test that is running. seed: what its random inputs were made from."""
    path = os.environ.get("QUIRE_PEERS_RESULTS")
    if not path:
        return
    file, name = os.environ["PYTEST_CURRENT_TEST"].split("::")[:2]  # tests/peers/test_x.py::test_y[z] (call)
    test = f"{pathlib.PurePath(file).name}: {name.split('[')[0].split(' ')[0]}"
    line = {"test": test, "case": case, "figures": figures, "seed": seed, "versions": versions()}
    with open(path, "a", encoding="utf-8") as out:
        out.write(json.dumps(line, default=float) + "\n")


def shown(name, value):
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith("difference"):
        return f"{value:+.3%}"
    return f"{value:.4f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def table_row(cells):
    return f"| {' | '.join(cells)} |"


def page(lines):
    tables = {}
    for line in map(json.loads, lines):
        tables.setdefault(line["test"], {})[line["case"]] = line
    yield INTRODUCTION
    for made in sorted({line["versions"] for cases in tables.values() for line in cases.values()}):
        yield f"Versions: {made}."
    for test, cases in tables.items():
        columns = list(dict.fromkeys(name for line in cases.values() for name in line["figures"]))
        seeds = sorted({line["seed"] for line in cases.values()} - {None})
        yield f"\n## {test}\n"
        if seeds:
            yield f"`QUIRE_SEED`: {', '.join(map(str, seeds))}\n"
        yield table_row(["case", *(name.replace("_", " ") for name in columns)])
        yield "|---|" + "---:|" * len(columns)
        for case, line in cases.items():
            yield table_row([case, *(shown(name, line["figures"].get(name)) for name in columns)])


if __name__ == "__main__":
    print(*page(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()), sep="\n")
