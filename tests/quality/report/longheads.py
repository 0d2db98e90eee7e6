"""LongHeads (Lu et al. 2024): Tables 1, 3 and 4, and the combination with Dual Chunk Attention."""

import json
import os
import pathlib
import random
import sys

import costs
from measure import BASE, LONGHEADS, ROOT, SEED, WINDOW, model
from page import length_table, percent

# The passkey prompt (examples/embedded_model/README.md).
PREFIX = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
          "about the important information there.\n")
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
KEY = "The pass key is {key}. Remember it. {key} is the pass key.\n"
SUFFIX = "What is the pass key? The pass key is"

ABLATIONS = {
    "as defined": "longheads",
    "random chunks, first and last kept": "longheads(pick=random)",
    "random chunks": "longheads(pick=random, first=free, forced=paper)",
    "worst chunks": "longheads(pick=worst)",
    "without the first chunk": "longheads(first=never)",
    "one choice for all heads of a layer": "longheads(select=layer)",
    "one choice for all layers": "longheads(select=first_layer)",
    "6 chunks": "longheads(chunks=6)",
    "4 chunks": "longheads(chunks=4)",
    "chunks of 16 tokens, 16 of them": "longheads(chunk=16, chunks=16)",
    "chunks of 64 tokens, 4 of them": "longheads(chunk=64, chunks=4)",
    "first and own chunk forced (the paper's text)": "longheads(forced=paper)",
}

# The combination with Dual Chunk Attention and its LongHeads parent: chunks of 32 keys, and the distances' chunk.
PACKED = [f"longheads(chunks={k})" for k in (4, 6, 8)]
PLACED = [f"longheads(positions=dca, chunks={k})" for k in (4, 6, 8, 16, 32)]
COMBINATION = {**dict(zip(PACKED, [(k, None) for k in (4, 6, 8)])),
               **dict(zip(PLACED, [(k, 3 * WINDOW // 4) for k in (4, 6, 8, 16, 32)]))}


def table_1(quire, page):
    page.heading("LongHeads, Table 1: perplexity at the same multiples of the trained length")
    page.text("PG19 and Llama-2-7B with a window of 2,048 tokens in the paper (1x: 4,096), the embedded model here; NTK gets the",
              "factor of the length. The paper's fine-tuned PI is good to 4x, the PoSE model here to 8x.")
    lengths = (1, 4, 8)
    rows = {"full": (BASE, "full", "full", ("6.98", ">1000", ">1000")),
            "NTK": (BASE, lambda m: f"full + ntk(factor={m})", "full + ntk", ("6.98", "9.58", "19.3")),
            "PI, fine-tuned": (model("pose"), "full", "full + pi", ("7.42", "6.72", ">1000")),
            "LM-Infinite": (BASE, "lm_infinite", "lm_infinite", ("6.98", "7.33", "7.75")),
            "LM-Infinite, stage 2 weights": (LONGHEADS, "lm_infinite", "lm_infinite", ("-", "-", "-")),
            "LongHeads, stage 2 weights": (LONGHEADS, "longheads", "longheads", ("6.98", "8.15", "8.41"))}
    ppl = {name: quire.perplexity(weights, expression, lengths) for name, (weights, expression, _, _) in rows.items()}
    length_table(page, "perplexity", ppl, lambda v: f"{v:.2f}", [f"the paper, {m}x" for m in lengths] + costs.COLUMNS,
                 lambda name: [*rows[name][3], *costs.cells(quire, rows[name][2])])
    page.text("The paper on Proof-pile, 1x/4x/8x: full 2.99/>1000/>1000, NTK 2.99/3.00/4.05, PI 2.98/2.61/>1000, LM-Infinite",
              "2.99/2.96/3.10, LongHeads 2.99/3.26/3.42. Landmark Attention (PG19 10.03/10.13/10.14) is not in Quire.")
    ours, infinite = ppl["LongHeads, stage 2 weights"], ppl["LM-Infinite, stage 2 weights"]
    page.claim(f"LongHeads' perplexity stays flat where plain attention explodes: at 8x {ours[8]:.1f} against {ppl['full'][8]:.1f}",
               ours[8] <= 1.1 * ours[1] and ppl["full"][8] > 4 * ours[8])
    page.claim(f"it is somewhat above LM-Infinite's with the same weights, as in the paper: {ours[4] / infinite[4]:.2f} times at 4x and "
               f"{ours[8] / infinite[8]:.2f} at 8x (the paper's 1.11 and 1.09)",
               all(1 < ours[m] / infinite[m] < 1.25 for m in (4, 8)))


def retrieval(quire, page):
    page.heading("LongHeads, Table 1: passkeys to 64 windows")
    page.text("The weights are stage 2 of the embedded model: at this size the selection must be trained (see",
              "`examples/embedded_model/README.md`); without stage 2 it finds one passkey in ten.")
    found = quire.passkey(LONGHEADS, "longheads", (1, 2, 4, 8, 16, 32, 64))
    length_table(page, "right answers", {"longheads": found}, percent)
    page.text("The paper: about 100 % from 4k to 32k and 100 % at 128k (32x), where LM-Infinite finds about 10 % at 32k; needles to",
              "50k 99.6 %.")
    page.claim(f"at least 80 % at 16x ({percent(found[16])}) and at 32x ({percent(found[32])})",
               found[16] >= 0.8 and found[32] >= 0.8)


def ablations(quire, page):
    page.heading("Table 4: ablations")
    ppl = {name: quire.perplexity(LONGHEADS, e, (4,))[4] for name, e in ABLATIONS.items()}
    found = {name: quire.passkey(LONGHEADS, e, (4, 8)) for name, e in ABLATIONS.items()}
    page.table("variant", ["perplexity at 4x", "passkey at 4x", "passkey at 8x"],
               [(n, [f"{ppl[n]:.2f}", percent(found[n][4]), percent(found[n][8])]) for n in ABLATIONS])
    page.text("The paper, LongBench: all 29.95; random 7.12; first and last kept, the rest random 28.77; worst 26.22; without",
              "the first chunk 14.06; fixed head 29.46; 8 chunks 29.09, 4 chunks 26.64; chunks of 512 29.95, of 128 29.35.")
    whole = found["as defined"][8]
    for name in ("random chunks, first and last kept", "worst chunks"):
        page.claim(f"{name}: fewer passkeys at 8x ({percent(found[name][8])} against {percent(whole)})", found[name][8] < whole)
    name = "without the first chunk"
    worse = ppl[name] / ppl["as defined"]
    page.claim(f"without the first chunk the model is worse (perplexity {worse:.2f} times, passkeys at 8x "
               f"{percent(found[name][8])})", worse > 1.02 or found[name][8] < whole - 0.1)
    if worse < 1.5:
        page.not_here("the collapse without the first chunk", "A model of four layers hardly uses attention sinks.")


def passkey_lines(multiple, trial):
    """A passkey document of about so many windows as lines, and the index of the key's line."""
    draw = random.Random(f"{SEED} {multiple} {trial}")
    n = (multiple * WINDOW - 80) // 26  # filler lines of 26 tokens beside prefix, key and question
    lines = [PREFIX] + [FILLER] * n
    place = draw.randrange(1, n + 2)
    lines.insert(place, KEY.format(key=draw.randrange(10000, 100000)))
    return lines + [SUFFIX], place


def gini(shares):
    """0: all chosen alike; towards 1: few take all."""
    ordered = sorted(shares)
    total = sum(ordered)
    if total == 0:
        return 0.0
    return sum((2 * i - len(ordered) + 1) * x for i, x in enumerate(ordered)) / (len(ordered) * total)


def selection(page, library, quick):
    page.heading("Table 3: what the heads choose")
    page.text("Choices of the question's last token and the answer, beyond the forced chunks, over all heads and layers. Cover",
              "rate: lines of the document that some choice touched. Gini coefficient of the choices over lines (0: uniform).",
              "Hit rate: documents in which the passkey's line was chosen more than its share of the text.")
    os.environ["QUIRE_LIBRARY"] = library
    sys.path.insert(0, str(ROOT / "bindings" / "python"))
    import quire
    rows = []
    with quire.Runtime(threads=2) as runtime, runtime.load(str(LONGHEADS[1])) as model:
        for multiple in (2, 4, 8):
            covers, ginis, hits = [], [], []
            for trial in range(3 if quick else 20):
                lines, place = passkey_lines(multiple, trial)
                text, labels, at = "".join(lines), [], 0
                for number, line in enumerate(lines):
                    labels.append((at, at + len(line), number))
                    at += len(line)
                with model.session("longheads") as session:
                    session.feed(text, labels=labels)
                    for _ in session.generate(6):
                        pass
                    seen = session.label_attention()
                shares = [label["share"] for label in seen]
                covers.append(sum(s > 0 for s in shares) / len(shares))
                ginis.append(gini(shares))
                hits.append(shares[place] > seen[place]["n_tokens"] / sum(label["n_tokens"] for label in seen))
            rows.append((f"{multiple}x", [percent(sum(covers) / len(covers)), f"{sum(ginis) / len(ginis):.2f}",
                                          percent(sum(hits) / len(hits))]))
    page.table("length", ["cover rate", "Gini", "hit rate"], rows)
    page.text("The paper (Table 3 and Figure 4): heads together cover nearly the whole text, evenly, and hit the passkey's chunk.")
    page.claim(f"the passkey's line is chosen above its share in most documents at 8x ({rows[-1][1][2]})",
               float(rows[-1][1][2].split()[0]) >= 80)


def by_method(read, quality):
    """{method: {length: [(kB, quality)]}} over the numbers of chunks."""
    methods = {"longheads": PACKED, "longheads(positions=dca)": PLACED, "dca, stage 2": ["dca, stage 2"], "dca": ["dca"]}
    return {method: {m: [(read[n][m] / 1000, quality[n][m]) for n in names] for m in quality[names[0]]}
            for method, names in methods.items()}


def combination(quire, page):
    page.heading("A combination of two papers: LongHeads' choice at DCA's distances")
    page.text("`longheads(positions=dca)` chooses chunks as LongHeads does, and leaves the chosen keys where Dual Chunk",
              "Attention puts them instead of packing them, so that it may choose more than the 8 chunks of 32 keys that fit into",
              "the trained length. Its parents are packed LongHeads and DCA, which reads all keys. Weights: stage 2, whose training",
              "packed, and for DCA the plain ones too.")
    read = json.loads(pathlib.Path(__file__).with_name("kv_read.json").read_text())
    lengths = (2, 4, 8, 16)
    rows = {name: (LONGHEADS, name) for name in COMBINATION} | {"dca, stage 2": (LONGHEADS, "dca"), "dca": (BASE, "dca")}
    ppl = {name: quire.perplexity(w, e, lengths) for name, (w, e) in rows.items()}
    found = {name: quire.passkey(w, e, lengths) for name, (w, e) in rows.items()}
    bytes_of = {kind: {n: {m: read.get(n, read["all_keys"])[kind][str(m)] for m in lengths} for n in rows}
                for kind in ("text_bytes", "passkey_bytes", "text_keys")}
    page.text("Bytes of KV that a token reads as in decoding, mean of the tokens that perplexity scores (the last half): over the",
              "layers and KV heads, keys and values (f16) of the union of the chunks that the query heads of a KV head chose, and the",
              "representations (float32) that they were chosen by. The library does not count them: `kv_read.py` runs the model again",
              "in numpy and looks at every choice. In brackets the keys that a KV head reads; a query head chooses `32 * chunks`.",
              "For the passkeys of the figure they are the bytes of the question's last token and the answer.")
    page.table("kB read per token", [f"{m}x" for m in lengths],
               [(n, [f"{bytes_of['text_bytes'][n][m] / 1000:.0f} ({bytes_of['text_keys'][n][m]})" for m in lengths]) for n in rows])
    cost_of = {"longheads(chunks=8)": "longheads", "longheads(positions=dca, chunks=8)": "longheads(positions=dca)",
               "dca, stage 2": "dca"} | {n: n for n in costs.PLANS}
    length_table(page, "perplexity", ppl, lambda v: f"{v:.2f}", costs.COLUMNS, lambda name: costs.cells(quire, cost_of.get(name)))
    length_table(page, "passkey", found, percent)
    page.clouds("combination", "Quality against KV read per token", lengths[1:], [
        ("perplexity", by_method(bytes_of["text_bytes"], ppl)), ("passkeys found", by_method(bytes_of["passkey_bytes"], found))],
        "kB of KV read per token", (200, 400, 800, 1600, 3200))
    least = 1 - read[PACKED[0]]["text_keys"]["16"] / read["all_keys"]["text_keys"]["16"] * read["all_keys"]["text_bytes"]["16"] / \
        read[PACKED[0]]["text_bytes"]["16"]
    page.fact(f"Representations are read whole: at 16x they are {percent(least)} of what 4 chunks read.")
    if not quire.quick:
        compare(page, read, ppl, lengths)
    verdict(page, lengths, ppl, found, bytes_of["text_bytes"])


def compare(page, read, ppl, lengths):
    apart = max(abs(ppl[n][m] / read[n]["perplexity"][str(m)] - 1) for n in COMBINATION for m in lengths)
    page.claim(f"the model in numpy, whose choices are counted, has the command's perplexity (within {100 * apart:.2f} %, <= 0.5 %)",
               apart <= 0.005)


def verdict(page, lengths, ppl, found, read):
    """Does the combination beat both parents?"""
    pairs = [(p, d, m) for p, d in zip(PACKED, PLACED) for m in lengths]  # of equal numbers of chunks: the same bytes within 2 %
    change = [ppl[d][m] / ppl[p][m] for p, d, m in pairs]
    more = sum(found[d][m] > found[p][m] for p, d, m in pairs)
    page.fact(f"Against packed LongHeads with as many chunks, and so as many bytes: perplexity {min(change):.3f} to {max(change):.3f} "
              f"times packing's, lower in {sum(c < 1 for c in change)} of {len(pairs)} cases; more passkeys in {more}.")
    wide, eight = "longheads(positions=dca, chunks=16)", "longheads(positions=dca, chunks=8)"
    best = {m: min(PACKED, key=lambda n: ppl[n][m]) for m in lengths}
    page.claim("chunks that packing has no room for lower perplexity below all that packing reaches: with 16 of them " +
               ", ".join(f"{ppl[wide][m]:.2f} against {ppl[best[m]][m]:.2f} at {m}x" for m in lengths[1:]) +
               f" (for {read[wide][16] / read[best[16]][16]:.1f} times the bytes at 16x)",
               all(ppl[wide][m] < ppl[best[m]][m] for m in lengths[1:]))
    against = [(percent(read[n][16] / read["dca"][16]), f"{ppl[n][16] / ppl['dca'][16]:.3f}") for n in (eight, wide, PLACED[-1])]
    page.fact(f"Against DCA: at 16x 8, 16 and 32 chunks read {', '.join(a for a, _ in against)} of its bytes, with "
              f"{', '.join(b for _, b in against)} times its perplexity.")
    page.claim(f"it finds more passkeys than DCA with the same weights, from a fraction of the bytes: at 16x {percent(found[eight][16])} "
               f"against {percent(found['dca, stage 2'][16])}, at 8x {percent(found[eight][8])} against {percent(found['dca, stage 2'][8])}",
               all(found[eight][m] > found["dca, stage 2"][m] for m in (8, 16)))
    page.claim("it keeps LongHeads' retrieval at 8x (within 15 %)", found[eight][8] >= found["longheads(chunks=8)"][8] - 0.15)
    wins = [(n, m) for n in PLACED for m in lengths
            if read[n][m] < 0.99 * read["dca"][m] and ppl[n][m] < ppl["dca"][m] and found[n][m] >= found["dca"][m]
            and ppl[n][m] < min(ppl[p][m] for p in PACKED) and found[n][m] >= max(found[p][m] for p in PACKED)]
    if not wins:
        page.not_here("a combination that beats both parents",
                      "On perplexity against bytes it lies between them: below packed LongHeads where packing has no room left, at "
                      "fewer bytes than DCA reads and above DCA's perplexity. On passkeys no number of chunks beats packing, and DCA "
                      "with its plain weights finds more too. Stage 2 trained the choice with packed positions, and perplexity "
                      "here hardly asks for far keys: a window of 256 (StreamingLLM in the first table) does about as well as the best of these.")


def sections(quire, page):
    table_1(quire, page)
    retrieval(quire, page)
    selection(page, quire.library, quire.quick)
    ablations(quire, page)
    combination(quire, page)
