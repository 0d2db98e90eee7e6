"""LongHeads (Lu et al. 2024): Tables 1, 3 and 4, and the combination with Dual Chunk Attention."""

import os
import random
import sys

from measure import BASE, LONGHEADS, ROOT, SEED, WINDOW
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


def retrieval(quire, page):
    page.heading("LongHeads, Table 1: passkeys to 64 windows")
    page.text("The weights are stage 2 of the embedded model: at this size the selection must be trained (see",
              "`examples/embedded_model/README.md`); without stage 2 it finds one passkey in ten.")
    found = quire.passkey(LONGHEADS, "longheads", (1, 2, 4, 8, 16, 32, 64))
    length_table(page, "right answers", {"longheads": found}, percent)
    page.text("The paper: about 100 % from 4k to 32k and 100 % at 128k (32x), where LM-Infinite finds about 10 % at 32k.")
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
    n = max(1, multiple * WINDOW // 51)  # tokens of a filler line
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


def combination(quire, page):
    page.heading("A combination of two papers: LongHeads' choice at DCA's distances")
    page.text("`longheads(positions=dca)` chooses chunks as LongHeads does, and leaves the chosen keys where Dual Chunk",
              "Attention puts them instead of packing them. Keys read per token and head stay the same: `chunk * chunks` = 256",
              "whatever the length, where DCA reads all. Weights: stage 2 for all three, and DCA with the plain weights.")
    lengths = (2, 4, 8, 16)
    rows = {"longheads": (LONGHEADS, "longheads"), "longheads(positions=dca)": (LONGHEADS, "longheads(positions=dca)"),
            "the same, half the chunks": (LONGHEADS, "longheads(positions=dca, chunks=4)"),
            "longheads, half the chunks": (LONGHEADS, "longheads(chunks=4)"),
            "longheads(positions=dca), twice the chunks": (LONGHEADS, "longheads(positions=dca, chunks=16)"),
            "dca, stage 2": (LONGHEADS, "dca"), "dca": (BASE, "dca")}
    ppl = {name: quire.perplexity(w, e, lengths) for name, (w, e) in rows.items()}
    found = {name: quire.passkey(w, e, lengths) for name, (w, e) in rows.items()}
    read = {"longheads": 256, "longheads(positions=dca)": 256, "the same, half the chunks": 128,
            "longheads, half the chunks": 128, "longheads(positions=dca), twice the chunks": 512}
    page.table("keys read by a head", [f"{m}x" for m in lengths],
               [(n, [str(min(read.get(n, m * WINDOW), m * WINDOW)) for m in lengths]) for n in rows])
    length_table(page, "perplexity", ppl, lambda v: f"{v:.2f}")
    length_table(page, "passkey", found, percent)
    page.curves("combination", "Perplexity: choice and distances", ppl, "perplexity")
    packed, placed = ppl["longheads"], ppl["longheads(positions=dca)"]
    better = [m for m in lengths if placed[m] < packed[m]]
    page.fact(f"Against packing, DCA's distances give lower perplexity at {', '.join(f'{m}x' for m in better) or 'no length'}"
              f" ({', '.join(f'{placed[m] / packed[m]:.3f}' for m in lengths)} at {', '.join(f'{m}x' for m in lengths)});"
              f" passkeys at 8x {percent(found['longheads(positions=dca)'][8])} against {percent(found['longheads'][8])}.")
    page.claim("the combination keeps LongHeads' retrieval at 8x (within 15 %)",
               found["longheads(positions=dca)"][8] >= found["longheads"][8] - 0.15)


def sections(quire, page):
    retrieval(quire, page)
    selection(page, quire.library, quire.quick)
    ablations(quire, page)
    combination(quire, page)
