"""Writes real.md from the measurements: a table of right answers for each task, perplexities, and what they cost."""

import math
import pathlib
import sys

from strategies import STRATEGIES, WINDOW, keys_read

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "report"))
from page import Page

TITLES = {
    "passkey": ("Passkey: right answers",
                "A five-digit number in filler, its place in each tenth of the text once a round."),
    "needle": ("Needle in prose: right answers", "A number in a sentence of its own in the Debian handbook."),
    "multikey": ("Several needles: right answers", "Four numbers for four cities in the Debian handbook; each is asked for."),
    "questions": ("Questions about the Debian handbook: right answers",
                  "The handbook from its beginning; asked is what stands in the part that was read. Facts were picked beforehand. "
                  "The first row is a control: the same questions behind the one paragraph that has the fact."),
}
DEPTHS = 5  # rows of the maps of depth against length


def thousands(length):
    return f"{length // 1024}k"


def paragraph_alone(results, lengths):
    """A row: of the questions asked at each length, those that are answered from the fact's paragraph alone."""
    right = {row["question"]: row["right"] for row in results.of("paragraph")}
    cells = []
    for length in lengths:
        asked = {row["question"] for row in results.of("questions", length=length)}
        cells.append(f"{sum(right[q] for q in asked)}/{len(asked)}" if asked <= right.keys() else "-")
    return "the paragraph alone", cells


def table(page, title, results, task, show):
    lengths = results.lengths(task)
    rows = [paragraph_alone(results, lengths)] if task == "questions" else []
    for strategy in STRATEGIES:
        found = {n: results.of(task, strategy, n) for n in lengths}
        if any(found.values()):
            rows.append((f"`{strategy}`", [show(found[n]) if found[n] else "-" for n in lengths]))
    page.table(title, [thousands(n) for n in lengths], rows)


def share(rows):
    return f"{sum(row['right'] for row in rows)}/{len(rows)}"


def beside(page, results, cpu, task, show):
    """A table of what was measured on a device, with the CPU's numbers beside its own where there are any."""
    columns = []
    for n in results.lengths(task):
        columns.append((thousands(n), results, n))
        if cpu.of(task, length=n):
            columns.append((f"{thousands(n)}, CPU", cpu, n))
    rows = []
    for strategy in STRATEGIES:
        if results.of(task, strategy):
            found = [measured.of(task, strategy, n) for _, measured, n in columns]
            rows.append((f"`{strategy}`", [show(cell) if cell else "-" for cell in found]))
    page.table("tokens", [name for name, _, _ in columns], rows)


def device_section(page, results, cpu):
    """results: of the device."""
    tasks = {task: (title, share) for task, (title, _) in TITLES.items()} | {"perplexity": ("Perplexity", perplexity)}
    measured = {task: shown for task, shown in tasks.items() if results.of(task)}
    names = sorted({row["device_description"] for task in measured for row in results.of(task)})
    page.heading(f"On a GPU: `{results.device}`")
    page.text(f"Measured on: {'; '.join(names)}.", "The same tasks, texts and trials; activations are bf16 there, not f32. Beside",
              "the device's numbers stand the CPU's of the same length where there are any.")
    for task, (title, show) in measured.items():
        page.heading(title, 3)
        beside(page, results, cpu, task, show)


def depth_maps(page, results):
    """Of the passkey task, for strategies that were tried beyond the window."""
    grids = {}
    lengths = results.lengths("passkey")
    for strategy in STRATEGIES:
        rows = results.of("passkey", strategy)
        if not any(row["length"] > WINDOW for row in rows):
            continue
        cells = []
        for length in lengths:
            for depth in range(DEPTHS):
                here = [r["right"] for r in rows if r["length"] == length and min(int(r["depth"] * DEPTHS), DEPTHS - 1) == depth]
                cells.append({"length": thousands(length), "depth": (depth + 0.5) / DEPTHS,
                              "accuracy": sum(here) / len(here) if here else math.nan})
        grids[strategy] = {"cells": cells, "lengths": [thousands(n) for n in lengths],
                           "depths": [(d + 0.5) / DEPTHS for d in range(DEPTHS)]}
    if grids:
        page.heat_maps("real_passkey", "Passkey by depth and length (white: not tried)", grids)


def perplexity(rows):
    return f"{math.exp(sum(row['nll'] for row in rows) / len(rows)):.2f} ({len(rows)})"


def write(results, out, draws):
    page = Page(out / "figures", draws)
    page.heading("Long documents on a real model", 1)
    page.text("Written by `bash tests/quality/real.sh`, which goes on where it stopped; the measurements are in",
              "`tests/quality/real/results.jsonl`. The model is SmolLM2-135M-Instruct (Q4_1), trained on 8,192 tokens. Greedy",
              "answers; keys and values in f16. On the CPU with activations in f32, but for the sections that name a GPU. `dca` and",
              "`dca_topk` read a text alike: one session answers as both. \"-\": not tried, yet or because the two shorter lengths had",
              "no right answer.")
    for task, (title, text) in TITLES.items():
        if results.of(task):
            page.heading(title)
            page.text(text)
            table(page, "tokens", results, task, share)
            if task == "questions" and results.of("paragraph"):
                page.text(f"All {len(results.of('paragraph'))} questions behind their paragraphs: "
                          f"{share(results.of('paragraph'))} right. This is a model of 135 million parameters.")
            if task == "passkey":
                depth_maps(page, results)
    if results.of("perplexity"):
        page.heading("Perplexity of the same 1,024 tokens after contexts of different lengths")
        page.text("Of the Debian handbook; in brackets the number of places: the same ones where the number is the same. The tokens are",
                  "given to the model; to `dca_topk`, which reads as `dca`, as its own: it generates them one at a time.")
        table(page, "tokens", results, "perplexity", perplexity)
        page.heading("What it costs")
        page.text("Milliseconds of processor time for a token of the text that is read, of the first place. A column is of one machine, but",
                  "not all columns are.")
        table(page, "tokens", results, "perplexity",
              lambda rows: f"{1000 * rows[0]['cpu_seconds'] / rows[0]['n_read']:.1f}")
        page.text("Most memory of the KV cache, in MiB.")
        table(page, "tokens", results, "perplexity", lambda rows: f"{max(r['kv_bytes_peak'] for r in rows) / 2**20:.0f}")
    devices = [results.on(device) for device in results.devices()]
    lengths = sorted({length for measured in (results, *devices) for length in measured.lengths("passkey")})
    if lengths:
        page.text("Share of the KV cache that a generated token reads, what it is chosen by included (`longheads`: at most, as",
                  "each head chooses for itself).")
        page.table("tokens", [thousands(n) for n in lengths],
                   [(f"`{name}`", [f"{100 * keys_read(name, n):.1f} %" for n in lengths]) for name in STRATEGIES])
    for device in devices:
        device_section(page, device, results)
    (out / "real.md").write_text(page.markdown())
