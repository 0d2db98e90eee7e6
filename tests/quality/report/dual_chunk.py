"""Dual Chunk Attention (An et al. 2024): Tables 1 and 2, Figures 4, 5 and 7."""

import costs
from measure import BASE, LONGHEADS, model
from page import length_table, percent

LENGTHS = (1, 2, 4, 8, 16)
COST_OF = {"full (RoPE)": "full", "PI, factor by length": "full + pi", "NTK, factor by length": "full + ntk",
           "dynamic NTK": "full + dynamic_ntk", "YaRN, factor by length": "full + yarn", "ReRoPE": "rerope",
           "ReRoPE, log-n": "rerope", "leaky ReRoPE": "rerope", "Self-Extend": "self_extend",
           "StreamingLLM": "streaming_llm", "LM-Infinite": "lm_infinite", "DCA": "dca", "LongHeads (stage 2)": "longheads"}


def two(value):
    return f"{value:.2f}"


def methods():
    """name: (weights, expression or function of the multiple)"""
    return {
        "sliding window": (BASE, "sliding window"),
        "full (RoPE)": (BASE, "full"),
        "PI, factor by length": (BASE, lambda m: f"full + pi(factor={m})"),
        "NTK, factor by length": (BASE, lambda m: f"full + ntk(factor={m})"),
        "dynamic NTK": (BASE, lambda m: f"full + dynamic_ntk(factor=2, length={256 * m})"),
        "YaRN, factor by length": (BASE, lambda m: f"full + yarn(factor={m})"),
        "ReRoPE": (BASE, "rerope(log_n=0)"),
        "ReRoPE, log-n": (BASE, "rerope"),
        "leaky ReRoPE": (BASE, "rerope(leaky=64, log_n=0)"),
        "Self-Extend": (BASE, "self_extend(group=32)"),
        "StreamingLLM": (BASE, "streaming_llm"),
        "LM-Infinite": (BASE, "lm_infinite"),
        "DCA": (BASE, "dca"),
        "LongHeads (stage 2)": (LONGHEADS, "longheads"),
    }


def table_1(quire, page):
    page.heading("Dual Chunk Attention, Table 1: perplexity by length")
    page.text("Mean over the last half of the first N tokens of four texts that were not trained on. \"Sliding window\" scores",
              "the same tokens in separate windows that advance by a quarter: the best that the model can do within its",
              "trained length. Training-free; the scalings get the factor of the length, as in the paper.")
    ppl = {name: quire.perplexity(weights, expression, LENGTHS) for name, (weights, expression) in methods().items()}
    length_table(page, "perplexity", ppl, two, costs.COLUMNS, lambda name: costs.cells(quire, COST_OF.get(name)))
    page.curves("perplexity", "Perplexity by length (training-free)", ppl, "perplexity", log=True)
    page.text("The paper, PG19, Llama-2-7B at 4k/8k/16k/32k/64k: RoPE 7.87/>100/..., PI 7.87/9.19/15.11/>100/>100, NTK",
              "7.87/11.98/26.12/58.91/>100, NTK-YaRN 7.87/8.06/9.82/11.74/41.57, ReRoPE 7.94/7.75/OOM, ChunkLlama2",
              "7.87/7.67/7.64/7.89/15.87.")
    sliding = ppl["sliding window"]
    for m in LENGTHS[1:]:
        page.claim(f"DCA at {m}x within 10 % of the sliding window ({ppl['DCA'][m] / sliding[m]:.3f})",
                   ppl["DCA"][m] <= 1.10 * sliding[m])
    page.claim(f"plain RoPE explodes: at 4x {ppl['full (RoPE)'][4] / sliding[4]:.1f} times the sliding window, > 4",
               ppl["full (RoPE)"][4] > 4 * sliding[4])
    page.claim("PI without training is worse than DCA at 4x and beyond",
               all(ppl["PI, factor by length"][m] > ppl["DCA"][m] for m in (4, 8, 16)))
    page.claim("NTK without training is worse than DCA at 4x and beyond",
               all(ppl["NTK, factor by length"][m] > ppl["DCA"][m] for m in (4, 8, 16)))
    page.claim("StreamingLLM's and LM-Infinite's perplexity stays flat (within 10 % of the sliding window)",
               all(ppl[s][m] <= 1.10 * sliding[m] for s in ("StreamingLLM", "LM-Infinite") for m in LENGTHS))
    return ppl


def passkeys(quire, page):
    page.heading("Passkey retrieval by length (Figures 5 and 7)")
    found = {name: quire.passkey(weights, expression, LENGTHS)
             for name, (weights, expression) in methods().items()
             if not callable(expression) and expression != "sliding window"}
    for name in ("PI, factor by length", "NTK, factor by length", "YaRN, factor by length", "dynamic NTK"):
        weights, expression = methods()[name]
        found[name] = {m: quire.passkey(weights, expression(m), [m])[m] for m in LENGTHS}
    length_table(page, "right answers", found, percent)
    page.curves("passkey", "Passkey retrieval by length", found, "share of right answers")
    grids = {label: quire.needle(weights, expression, (1, 2, 4, 8))
             for name, label, weights, expression in (("full", "RoPE", BASE, "full"), ("ntk", "NTK x4", BASE, "full + ntk(factor=4)"),
                                                      ("streaming", "StreamingLLM", BASE, "streaming_llm"), ("dca", "DCA", BASE, "dca"),
                                                      ("longheads", "LongHeads", LONGHEADS, "longheads"))}
    page.heat_maps("needle", "Right answers: depth of the passkey (down) by length in tokens", grids)
    page.text("The paper: 100 % to 18k for ChunkLlama2-13B (4.5x), about 90 % at 192k for ChunkTogether-7B.")
    page.claim(f"DCA finds at least 90 % at 8x ({percent(found['DCA'][8])})", found["DCA"][8] >= 0.9)
    page.claim("plain RoPE finds at most 10 % from 2x on", all(found["full (RoPE)"][m] <= 0.1 for m in LENGTHS[1:]))
    page.claim("PI and NTK without training find at most half of what DCA finds at 8x",
               all(found[n][8] <= found["DCA"][8] / 2 for n in ("PI, factor by length", "NTK, factor by length")))
    page.claim("StreamingLLM and LM-Infinite find what lies in their window: at 8x at most 1/8 + 15 %",
               all(found[n][8] <= 1 / 8 + 0.15 for n in ("StreamingLLM", "LM-Infinite")))
    return found


def ablation(quire, page):
    page.heading("Figure 4: what the three parts of DCA do")
    parts = {"all three": "dca", "intra and inter": "dca(parts=intra_inter)", "intra alone": "dca(parts=intra)"}
    lengths = (2, 4, 8)
    ppl = {name: quire.perplexity(BASE, e, lengths) for name, e in parts.items()}
    found = {name: quire.passkey(BASE, e, lengths) for name, e in parts.items()}
    length_table(page, "perplexity", ppl, two)
    length_table(page, "passkey", found, percent)
    page.text("The paper: intra-chunk attention alone keeps perplexity low and retrieves nothing beyond its chunk; with",
              "inter-chunk attention retrieval works and perplexity rises; successive chunks repair that.")
    page.claim(f"intra alone retrieves little beyond its chunk: {percent(found['intra alone'][8])} at 8x, <= 25 %",
               found["intra alone"][8] <= 0.25)
    page.claim("inter-chunk attention brings retrieval back (>= 80 % at 8x)", found["intra and inter"][8] >= 0.8)
    change = ppl["intra and inter"][8] / ppl["all three"][8]
    page.claim(f"without successive chunks perplexity is higher ({change:.3f} at 8x)", change > 1)
    page.fact(f"Here intra alone costs perplexity too ({ppl['intra alone'][8] / ppl['all three'][8]:.2f} at 8x): the first "
              "tokens of a chunk see almost nothing, and a window of 256 has many of them.")


def on_extended(quire, page):
    page.heading("Table 2: DCA on top of a model that was extended by training")
    page.text("The PoSE model below (position interpolation, factor 8: good for 2,048 tokens = 8x).")
    lengths = (4, 8, 16, 32)
    rows = {"extended model alone": (model("pose"), "full"), "with DCA": (model("pose"), "dca")}
    ppl = {name: quire.perplexity(w, e, lengths) for name, (w, e) in rows.items()}
    found = {name: quire.passkey(w, e, (4, 8, 16)) for name, (w, e) in rows.items()}
    length_table(page, "perplexity", ppl, two)
    length_table(page, "passkey", found, percent)
    page.text("The paper: Together-32k 7.64 at 32k, >100 at 64k; with DCA 7.59 at 64k and 7.83 at 192k.")
    alone, both = ppl["extended model alone"], ppl["with DCA"]
    page.claim(f"beyond its length DCA keeps perplexity lower (at 16x {both[16]:.1f} against {alone[16]:.1f})",
               both[16] < alone[16] and both[32] < alone[32])
    page.claim("and retrieves more at 16x", found["with DCA"][16] > found["extended model alone"][16])


def sections(quire, page):
    table_1(quire, page)
    passkeys(quire, page)
    ablation(quire, page)
    on_extended(quire, page)
