"""Activation Beacon (Zhang et al. 2024): Tables 1 and 5."""

import json

import costs
from measure import BASE, MODELS
from page import length_table, percent

PLUG_IN = (*BASE, "--beacon", MODELS / "beacon")


def two(value):
    return f"{value:.2f}"


def table_1(quire, page):
    page.heading("Activation Beacon, Table 1: perplexity by length")
    page.text("The plug-in of `tests/quality/train/beacon.py`: windows of 64 tokens, the base model frozen. \"adapt\" takes the ratio",
              "that the length needs.")
    lengths = (1, 2, 4, 8, 16)
    rows = {"sliding window": (BASE, "sliding window"),
            "beacon, adapt": (PLUG_IN, lambda m: "beacon"),
            "StreamingLLM": (BASE, "streaming_llm"),
            "StreamingLLM of 64 tokens": (BASE, "streaming_llm(sinks=4, recent=64)"),
            "PI, factor by length": (BASE, lambda m: f"full + pi(factor={m})"),
            "NTK, factor by length": (BASE, lambda m: f"full + ntk(factor={m})")}
    ppl = {n: quire.perplexity(w, e, lengths) for n, (w, e) in rows.items()}
    cost_of = {"beacon, adapt": "beacon", "StreamingLLM": "streaming_llm",
               "StreamingLLM of 64 tokens": "streaming_llm(recent=64)", "PI, factor by length": "full + pi",
               "NTK, factor by length": "full + ntk"}
    length_table(page, "perplexity", ppl, two, costs.COLUMNS, lambda name: costs.cells(quire, cost_of.get(name)))
    page.curves("beacon", "Activation Beacon and what it is compared with", ppl, "perplexity", log=True)
    page.text("The paper, Llama-2-7B-chat, PG19 at 4k/16k/32k/100k: Beacon 9.21/8.34/8.27/8.50, StreamingLLM",
              "9.21/9.25/9.24/9.32, NTK 9.21/11.5/37.8/OOM, PI 9.21/19.5/>100/OOM.")
    sliding = ppl["sliding window"]
    worst = max(ppl["beacon, adapt"][m] / sliding[m] for m in lengths)
    page.claim(f"perplexity stays flat: at worst {worst:.3f} of the sliding window's, <= 1.35", worst <= 1.35)
    page.claim("PI without training explodes where Beacon stays flat", ppl["PI, factor by length"][8] > 2 * ppl["beacon, adapt"][8])
    gain = ppl["StreamingLLM of 64 tokens"][8] / ppl["beacon, adapt"][8]
    page.not_here("a perplexity below StreamingLLM's",
                  f"At 8x StreamingLLM with as many raw tokens as a window (64) has {gain:.3f} times Beacon's perplexity, and with "
                  f"251 raw tokens {ppl['StreamingLLM'][8] / ppl['beacon, adapt'][8]:.3f}: what lies far back hardly helps to "
                  "predict this text, and a window of 64 begins with few raw tokens.")


def table_5(quire, page):
    page.heading("Table 5: ratios and schemes")
    ratios = (2, 4, 8, 16, 32)
    held = 1.75  # 448 tokens: what ratio 2 holds
    ppl = {f"ratio {r}": quire.perplexity(PLUG_IN, f"beacon(ratio={r})", (held,)) for r in ratios}
    for scheme in ("segmentation", "full_coverage"):
        ppl[f"ratio 4, {scheme}"] = quire.perplexity(PLUG_IN, f"beacon(ratio=4, attn={scheme})", (held,))
    found = {n: quire.digits(PLUG_IN, f"beacon({n.replace('ratio ', 'ratio=').replace(', ', ', attn=')})", (held,)) for n in ppl}
    page.table("448 tokens", ["perplexity", "digits of the passkey"],
               [(n, [two(ppl[n][held]), percent(found[n][held])]) for n in ppl])
    page.text("The plug-in was trained with step expansion; the other schemes run with the same weights. The paper, trained for each,",
              "PG19 at 32k and QA: step expansion 8.27 and 28.27, segmentation 8.39 and 26.05, full coverage 8.76 and 23.13.")
    page.claim(f"more condensing carries less: digits {percent(found['ratio 2'][held])} at ratio 2, "
               f"{percent(found['ratio 32'][held])} at 32", found["ratio 2"][held] > found["ratio 32"][held] + 0.15)
    page.claim("step expansion, which was trained, carries at least as much as the other schemes with its weights",
               found["ratio 4"][held] >= max(found[f"ratio 4, {s}"][held] for s in ("segmentation", "full_coverage")) - 0.05)
    page.not_here("the paper's comparison of the three schemes",
                  "It trains a plug-in for each; here segmentation and full coverage run on weights of step expansion, which shows "
                  "that they run and that weights belong to a scheme, and nothing about which scheme is best.")


def control_rows(evaluation):
    """The passkey rows of the training script's evaluation; its pairs are (whole answers, tokens), in percent."""
    return [(f"{row['tokens']} tokens, ratio {row['ratio']}",
             [f"{row[kind][1]:.0f} %" for kind in ("own", "other", "none", "sliding")] +
             [f"{row[kind][0]:.0f} %" for kind in ("own", "sliding")])
            for row in evaluation if row["what"].startswith("passkey")]


def control(page, evaluation):
    """Own beacons against another document's and against a plain window of as many positions as the base model has."""
    page.table("PyTorch, passkey", ["own beacons, digits", "another document's", "none", "plain window of 256, digits",
                                    "own beacons, whole", "plain window, whole"], control_rows(evaluation))
    ppl = [row for row in evaluation if row["what"] == "perplexity"]
    page.table("PyTorch, perplexity", ["own beacons", "another document's", "none", "plain window of 256", "another's over own"],
               [(f"{row['tokens']} tokens, ratio {row['ratio']}",
                 [two(row[kind]) for kind in ("own", "other", "none", "sliding")] + [f"{100 * (row['other'] / row['own'] - 1):.1f} %"])
                for row in ppl])
    passkeys = {(row["tokens"], row["ratio"]): row for row in evaluation if row["what"].startswith("passkey")}
    row, far = passkeys[448, 2], passkeys[512, 4]
    page.claim(f"digits come from the document's own beacons: {row['own'][1]:.0f} % at 448 tokens, {row['other'][1]:.0f} % from another's",
               row["own"][1] > 4 * row["other"][1])
    gains = [100 * (row["other"] / row["own"] - 1) for row in ppl]
    page.fact(f"In perplexity the content of the beacons is worth {min(gains):.1f} to {max(gains):.1f} %: another document's do nearly as "
              "well, so most of what beacons give over none is a state that any text leaves.")
    more = [n for n, ratio in passkeys if passkeys[n, ratio]["own"][1] > passkeys[n, ratio]["sliding"][1]]
    if row["sliding"][0] > row["own"][0] and all(r["sliding"] < r["own"] for r in ppl):
        page.not_here("beacons that serve better than plain attention to the last 256 tokens",
                      f"At 448 tokens that window gives {row['sliding'][0]:.0f} % whole passkeys and {row['sliding'][1]:.0f} % of the "
                      f"digits, beacons of ratio 2, which hold 256 positions too, {row['own'][0]:.0f} % and {row['own'][1]:.0f} %; at "
                      f"512 {far['sliding'][0]:.0f} % and {far['sliding'][1]:.0f} % against {far['own'][0]:.0f} % and "
                      f"{far['own'][1]:.0f} %; and its perplexity is lower at every length. It finds a passkey that lies in it and "
                      f"nothing else; beacons bring single digits from anywhere (more of them up to {max(more):,} tokens), and no "
                      "answer that one could use.")


def information(quire, page):
    page.heading("What the beacons carry")
    page.text("Right digits of the passkey by length (chance: 10 %), with the ratio that the length needs. The controls, beacons of",
              "another document and plain attention to the last 256 tokens instead of beacons, are measured by the training script",
              "in PyTorch (`tests/quality/models/beacon/evaluation.json`; keys lie before the last window of 64 tokens).")
    lengths = (1, 1.75, 2, 4, 8)
    rows = {"beacon, adapt": quire.digits(PLUG_IN, "beacon", lengths),
            "StreamingLLM of 64 tokens": quire.digits(BASE, "streaming_llm(sinks=4, recent=64)", lengths)}
    page.table("right digits", [f"{m:g}x" for m in lengths], [(n, [percent(v[m]) for m in lengths]) for n, v in rows.items()])
    evaluation = json.loads((MODELS / "beacon" / "evaluation.json").read_text())
    control(page, evaluation)
    own, window = rows["beacon, adapt"], rows["StreamingLLM of 64 tokens"]
    page.claim(f"beacons carry digits: {percent(own[1.75])} right at 448 tokens, twice what a window of as many raw tokens gives "
               f"({percent(window[1.75])})", own[1.75] >= 0.4 and own[1.75] >= 2 * window[1.75])
    page.not_here("whole passkeys through beacons",
                  "The base model finds far tokens with a single head of its second layer, and a million frozen parameters leave "
                  "beacons little room; every second digit comes through, the others at chance.")


def bounded(quire, page):
    page.heading("Memory", 3)
    cost = {n: quire.cost(w, e, 16) for n, w, e in (("full", BASE, "full"), ("beacon", PLUG_IN, "beacon(ratio=32)"))}
    page.claim(f"memory stays bounded: {cost['beacon']['kv_bytes_peak']} bytes of KV at 16x, against {cost['full']['kv_bytes_peak']}",
               cost["beacon"]["kv_bytes_peak"] * 4 < cost["full"]["kv_bytes_peak"])


def sections(quire, page):
    table_1(quire, page)
    table_5(quire, page)
    information(quire, page)
    bounded(quire, page)
