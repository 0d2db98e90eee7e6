"""Writes real.md from the measurements: a table of right answers for each task, perplexities, and what they cost."""

import math
import pathlib
import sys

import ranks
from strategies import FRONTIER, FRONTIER_LENGTH, STRATEGIES, WINDOW, keys_read

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
    """Of the first place, so that all cells of a column are of the same tokens."""
    return f"{math.exp(rows[0]['nll']):.2f}" if rows[0]["trial"] == 0 else "-"


def beside_dca(results, strategy, length, n_places=None):
    """The perplexity in relation to dca's over the places (the first ones) where both were measured, and their number;
    None: nowhere."""
    dca = {row["trial"]: row["nll"] for row in results.of("perplexity", "dca", length)}
    both = [row["nll"] - dca[row["trial"]] for row in results.of("perplexity", strategy, length)[:n_places]
            if row["trial"] in dca]
    return (math.exp(sum(both) / len(both)) - 1, len(both)) if both else None


def relation(found):
    return f"{100 * found[0]:+.1f} % ({found[1]})" if found else "-"


def first_place(results, strategy, length):
    found = beside_dca(results, strategy, length, 1)
    return f"{100 * found[0]:+.1f} %" if found else "-"


def interval(right, n):
    """Wilson's 95 % interval of a share, in percent."""
    z2, share = 1.96 ** 2, right / n
    middle, half = share + z2 / (2 * n), math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n)))
    return f"{100 * (middle - half) / (1 + z2 / n):.0f}-{100 * (middle + half) / (1 + z2 / n):.0f} %"


def frontier(page, results):
    """What other numbers and vectors of chunks do, in the order of what they read."""
    n = FRONTIER_LENGTH
    measured = [name for name in (*STRATEGIES, *FRONTIER) if results.of("passkey", name, n) or results.of("perplexity", name, n)]
    if not any(name in FRONTIER for name in measured):
        return
    page.heading(f"Quality against keys read, at {thousands(n)}")
    page.text("What a generated token reads of the KV cache and takes of processor time, and what it finds; perplexity in relation to",
              "`dca`'s, of the first place alone, where `dca_topk` loses most.")
    rows = []
    for name in sorted(measured, key=lambda name: keys_read(name, n)):
        found = [results.of(task, name, n) for task in ("passkey", "needle", "multikey")]
        speed = results.of("speed", name, n)
        rows.append((f"`{name}`", [f"{100 * keys_read(name, n):.1f} %",
                                   f"{1000 * speed[0]['token_cpu_seconds']:.1f}" if speed else "-", *(share(cell) if cell else "-" for cell in found),
                                   first_place(results, name, n)]))
    page.table("strategy", ["reads", "ms a token", "passkey", "needle", "several needles", "perplexity"], rows)


def goals(page, results):
    """What was hoped of choosing chunks without training, and what came of it: at the lengths that were measured."""
    page.heading("What was hoped for")
    page.text("That `dca_topk` answers as `dca` does from a tenth of the KV cache: passkeys within 5 points, perplexity within 3 %; and",
              "that with `reading=selected` a text of 32k is read twice as fast. Shares of right answers with 95 % intervals.")
    for n in (16384, 32768, 65536):
        dca = results.of("passkey", "dca", n)
        for name in ("dca_topk", "dca_topk_selected"):
            rows = results.of("passkey", name, n)
            if not dca or not rows:
                continue
            right, of_dca = sum(row["right"] for row in rows), sum(row["right"] for row in dca)
            reads = keys_read(name, n)
            page.claim(f"passkey, {thousands(n)}, `{name}`: {right}/{len(rows)} ({interval(right, len(rows))}), `dca` {of_dca}/{len(dca)} "
                       f"({interval(of_dca, len(dca))}), {100 * reads:.1f} % read",
                       right / len(rows) >= of_dca / len(dca) - 0.05 and reads <= 0.1)
    for n in results.lengths("perplexity"):
        for name in ("dca_topk", "dca_topk_selected"):
            found = beside_dca(results, name, n) if n > WINDOW else None
            if found:
                page.claim(f"perplexity, {thousands(n)}, `{name}`: {relation(found)}", found[0] <= 0.03)
    times = {name: row for name in ("dca", "dca_topk_selected") for row in results.of("perplexity", name, 32768)[:1]}
    if len(times) == 2:
        dca, selected = (row["cpu_seconds"] / row["n_read"] for row in times.values())
        page.claim(f"reading 32k with `reading=selected`: {dca / selected:.1f} times as fast as `dca`", dca / selected >= 2)
    page.lines.append("")
    good = [n for n in results.lengths("passkey") for rows in [results.of("passkey", "dca", n)]
            if rows and sum(row["right"] for row in rows) / len(rows) >= 0.9]
    if good:
        page.text(f"`dca` finds at least nine passkeys in ten at every length that was tried up to {thousands(good[-1])}, "
                  f"{good[-1] / WINDOW:g} times the trained window.")
    page.text("Up to the trained window `dca`, `dynamic_ntk` and `yarn` (whose factor is 1 there) are `full`. `self_extend`, `rerope` and",
              "`streaming_llm` change by definition what lies behind their own windows, which are shorter, and `longheads` and `dca_topk`",
              "choose; `auto` reads a text that fits the window with `full`.")


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
        page.text("Of the first place in the Debian handbook. The tokens are given to the model; to `dca_topk`, which reads as `dca`, as",
                  "its own: it generates them one at a time.")
        table(page, "tokens", results, "perplexity", perplexity)
        page.heading("Perplexity in relation to `dca`'s")
        page.text("Over all places where both were measured; in brackets their number.")
        beyond = [n for n in results.lengths("perplexity") if results.of("perplexity", "dca", n)]
        page.table("tokens", [thousands(n) for n in beyond],
                   [(f"`{name}`", [relation(beside_dca(results, name, n)) for n in beyond])
                    for name in STRATEGIES if name != "dca" and any(beside_dca(results, name, n) for n in beyond)])
        page.heading("What it costs")
        page.text("Milliseconds of processor time for a token of the text that is read, of the first place. A column is of one machine, but",
                  "not all columns are.")
        table(page, "tokens", results, "perplexity",
              lambda rows: f"{1000 * rows[0]['cpu_seconds'] / rows[0]['n_read']:.1f}")
        page.text("Most memory of the KV cache, in MiB.")
        table(page, "tokens", results, "perplexity", lambda rows: f"{max(r['kv_bytes_peak'] for r in rows) / 2**20:.0f}")
    if results.of("speed"):
        page.text("Milliseconds of processor time for a generated token behind so many. Two cores, all of one machine.")
        table(page, "tokens", results, "speed", lambda rows: f"{1000 * rows[0]['token_cpu_seconds']:.1f}")
    devices = [results.on(device) for device in results.devices()]
    lengths = sorted({length for measured in (results, *devices) for length in measured.lengths("passkey")})
    if lengths:
        page.text("Share of the KV cache that a generated token reads, what it is chosen by included (`longheads`: at most, as",
                  "each head chooses for itself).")
        page.table("tokens", [thousands(n) for n in lengths],
                   [(f"`{name}`", [f"{100 * keys_read(name, n):.1f} %" for n in lengths]) for name in STRATEGIES])
    frontier(page, results)
    ranks.write(page, results)
    goals(page, results)
    for device in devices:
        device_section(page, device, results)
    (out / "real.md").write_text(page.markdown())
