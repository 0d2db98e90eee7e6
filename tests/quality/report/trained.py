"""Methods that train: SCCA (Li et al. 2023), PoSE (Zhu et al. 2023), Llama-3-80K (Zhang et al. 2024)."""

import costs
from measure import BASE, adapter, model
from page import length_table, percent

# Expressions under which the adapters of tests/quality/train/sparse_lora.py were trained.
PATTERNS = {"s2": ("S2 (LongLoRA)", "s2(group=128)"), "scca_fixed": ("SCCA_fixed", "scca_fixed(chunk=128)"),
            "scca_flow": ("SCCA_flow", "scca_flow(chunk=128)"),
            "long_mixed": ("LongMixed", "long_mixed(heads=sda2.sda4x2.rolled, chunk=128)")}


def two(value):
    return f"{value:.2f}"


def nearest(quire, expression, n=512, near=8):
    """How many of its `near` nearest keys a query sees, over the heads and the queries of the last half of n."""
    seen = 0
    for head in range(4):
        rows = quire.call("plan", "-s", expression, "--train-len", n, "--tokens", n, "--heads", 4, "--head", head)["relative_position"]
        seen += sum(rows[i][j] is not None for i in range(n // 2, n) for j in range(i + 1 - near, i + 1))
    return seen / (4 * (n - n // 2))


def scca(quire, page):
    page.heading("SCCA, Table 2: fine-tuning under sparse patterns")
    page.text("LoRA of rank 8 with embeddings and norms, PI factor 2, 300 steps at 512 tokens (2x), each adapter under its",
              "pattern; evaluated under that pattern, and with full attention as LongLoRA runs its models.")
    lengths = (1, 2)
    sparse, full = {}, {}
    for folder, (name, expression) in PATTERNS.items():
        sparse[name] = quire.perplexity(adapter(folder), f"{expression} + pi(factor=2)", lengths)
        full[name] = quire.perplexity(adapter(folder), "full + pi(factor=2)", lengths)
    full["PI without training"] = quire.perplexity(BASE, "full + pi(factor=2)", lengths)
    for name, expression in PATTERNS.values():
        sparse[name + ", not trained"] = quire.perplexity(BASE, f"{expression} + pi(factor=2)", (2,))
    cost_of = {n: folder for folder, (n, _) in PATTERNS.items()}
    length_table(page, "perplexity under the pattern", sparse, two, costs.COLUMNS,
                 lambda n: costs.cells(quire, cost_of.get(n.removesuffix(", not trained"))))
    length_table(page, "perplexity with full attention", full, two)
    page.text("The paper, Llama-2-7B 4k to 8k, PG19 at 8k: S2 9.41, SCCA_fixed 9.17, SCCA_flow 9.47, LongMixed 8.73.")
    order = sorted(PATTERNS.values(), key=lambda p: sparse[p[0]][2])
    page.fact("Order here at 2x under the pattern: " + ", ".join(f"{name} {sparse[name][2]:.1f}" for name, _ in order) + ".")
    page.claim("untrained, every pattern is worse than trained",
               all(sparse[n + ", not trained"][2] > sparse[n][2] for n, _ in PATTERNS.values()))
    full_order = sorted(PATTERNS.values(), key=lambda p: full[p[0]][2])
    page.fact("With full attention: " + ", ".join(f"{name} {full[name][2]:.1f}" for name, _ in full_order) + ".")
    page.claim("training under SCCA_fixed leaves a better model for full attention than under S2 (the paper's order)",
               full["SCCA_fixed"][2] < full["S2 (LongLoRA)"][2])
    near = {name: nearest(quire, expression) for name, expression in PATTERNS.values()}
    if sparse["SCCA_fixed"][2] >= sparse["S2 (LongLoRA)"][2]:
        page.not_here("the paper's order LongMixed, SCCA_fixed, S2, SCCA_flow under the patterns; SCCA_fixed is behind S2 here, and "
                      "SCCA_flow well behind",
                      "This model predicts from the nearest tokens, and what a pattern leaves of those puts them in this order: of "
                      "its eight nearest keys, itself among them, a query sees, over the heads, " +
                      ", ".join(f"{near[name]:.1f} under {name}" for name, _ in order) +
                      ". S2 shifts queries with keys and keeps them in every head; a pattern that rolls keys alone takes them away "
                      "from whole heads, of which there are four here and 32 in the paper.")
    if order[0][0] != "LongMixed":
        page.not_here("LongMixed as the best pattern",
                      "With four heads it has one dilated by 2, two by 4 and one rolled, so that a quarter of the tokens is "
                      "computed by one head; the paper has 32 heads, of which 8 are not dilated.")


def pose(quire, page):
    page.heading("PoSE: training for 8x in windows of 1x")
    page.text("400 steps of 4,096 tokens each: PoSE in windows of 256 tokens, full length in texts of 2,048, RandPos with random",
              "sorted positions; all with PI factor 8.")
    lengths, found_at = (1, 2, 4, 8), (1, 2, 4, 8)
    rows = {"PI without training": (BASE, "full + pi(factor=8)"), "PoSE": (model("pose"), "full"),
            "full-length": (model("full_length"), "full"), "RandPos": (model("rand_pos"), "full")}
    ppl = {n: quire.perplexity(w, e, lengths) for n, (w, e) in rows.items()}
    found = {n: quire.passkey(w, e, found_at) for n, (w, e) in rows.items()}
    length_table(page, "perplexity", ppl, two, costs.COLUMNS, lambda name: costs.cells(quire, "full + pi"))
    length_table(page, "passkey", found, percent)
    page.curves("pose", "PoSE, full-length fine-tuning, RandPos and PI alone", ppl, "perplexity", log=True)
    page.text("The paper, GovReport 2k/4k/8k/16k: full length 4.87/4.70/4.61/4.59, PoSE 4.84/4.68/4.60/4.60, RandPos",
              "11.63/11.17/11.54/15.16; passkey at least 90 % inside the target, with PI alone 0 beyond the window.")
    page.claim(f"PoSE retrieves at least 85 % inside its target ({percent(min(found['PoSE'].values()))} at worst)",
               min(found["PoSE"].values()) >= 0.85)
    page.fact("PI by 8 takes retrieval away from so small a model, and it must be learned again: full-length training, with an "
              "eighth of the samples in the same steps, did not, so its passkeys compare samples rather than methods.")
    page.claim("its perplexity is within 10 % of full-length fine-tuning at every length",
               all(ppl["PoSE"][m] <= 1.1 * ppl["full-length"][m] for m in lengths))
    page.claim("PI without training fails: passkeys at 4x at most 10 %, perplexity far above PoSE's",
               found["PI without training"][4] <= 0.1 and ppl["PI without training"][8] > 2 * ppl["PoSE"][8])
    page.fact(f"RandPos: perplexity {ppl['RandPos'][8] / ppl['PoSE'][8]:.2f} times PoSE's at 8x, passkeys "
              f"{percent(found['RandPos'][8])}.")


def long_lora(quire, page):
    page.heading("Llama-3-80K: LoRA, a larger RoPE base, and long retrieval data")
    page.text("LoRA of rank 32 on q, k, v, o and the embedding, RoPE base 4e6, 400 steps with texts of up to 2,048 tokens (8x).",
              "The adapter needs `base(theta=4000000)`, which its files cannot say; without it Quire warns.")
    with_base = costs.LORA
    lengths = (1, 2, 4, 8, 12)
    rows = {"adapter and base": (adapter("long_lora"), with_base), "adapter, old base": (adapter("long_lora"), "full"),
            "base model": (BASE, "full"), "base model, new base": (BASE, with_base)}
    ppl = {n: quire.perplexity(w, e, lengths) for n, (w, e) in rows.items()}
    found = {n: quire.passkey(w, e, lengths) for n, (w, e) in rows.items()}
    length_table(page, "perplexity", ppl, two, costs.COLUMNS,
                 lambda name: costs.cells(quire, costs.SESSION_ADAPTER if name.startswith("adapter") else "full"))
    length_table(page, "passkey", found, percent)
    grids = {"adapter and base": quire.needle(adapter("long_lora"), with_base, lengths),
             "base model": quire.needle(BASE, "full", lengths)}
    page.heat_maps("long_lora", "Needle: depth (down) by length in tokens", grids)
    topics = {n: quire.facts("topics", *rows[n], lengths) for n in ("adapter and base", "base model")}
    length_table(page, "topics of sections", topics, percent)
    page.text("The paper: needle 100 % to 80k, and on to 128k (1.6 times its training length); topics 100 % to its training length.")
    page.claim(f"at least 90 % to 8x, its training length ({percent(min(found['adapter and base'][m] for m in (1, 2, 4, 8)))} "
               "at worst)", all(found["adapter and base"][m] >= 0.9 for m in (1, 2, 4, 8)))
    page.claim("without its RoPE base the adapter is worthless beyond the window",
               all(found["adapter, old base"][m] <= 0.2 for m in (4, 8)))
    page.fact(f"Beyond it, at 12x: {percent(found['adapter and base'][12])}.")
    page.claim("topics are named beyond the window with the adapter only: at least half of them at 8x, of the base model's none",
               topics["adapter and base"][8] >= 0.5 and topics["base model"][8] <= 0.1)
    keys = quire.facts("multikey", BASE, "full", (1,))[1]
    page.not_here("Keys of several names in one document", f"The base model tells four names apart in {percent(keys)} of its own "
                  "window: too small for the task, so no length says anything.")


def sections(quire, page):
    scca(quire, page)
    pose(quire, page)
    long_lora(quire, page)
