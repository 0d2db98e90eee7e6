"""The strategy expressions under test, each with its matrix and frequencies built independently of the library."""

import collections
import itertools
import math

import reference

MARGIN = 3e-5  # of a selection, in standard deviations of its scores: ten times what float32 makes of them

# name, expression, positions(n) -> matrix or function (reference.Model.forward), rope(head_dim, base) -> Rope (None: the checkpoint's own), slope of DCA's
# logit scale (0: none)
Case = collections.namedtuple("Case", "name expression train_len positions rope slope")


def visibilities(train_len):
    """name: (expression, its positions)."""
    def dca(chunk, cap):
        return lambda n: reference.positions_dca(n, chunk, cap)

    trained = f"train_len={train_len}"
    local = train_len // 8
    recent = train_len - 5  # sinks + recent + the query itself fill the trained window
    cases = {
        "full": (f"full({trained})", reference.positions_full),
        "dca": (f"dca({trained})", dca(*reference.dca_preset("paper", train_len))),
        "dca_vllm": (f"dca(preset=vllm, local={local}, {trained})",
                     dca(*reference.dca_preset("vllm", train_len, local))),
        "streaming_llm": (f"streaming_llm(sinks=4, recent={recent}, {trained})",
                          lambda n: reference.positions_streaming_llm(n, 4, recent)),
    }
    for preset in ("chunkllama", "chunkllama_flashdec", "chunkqwen", "chunkllama_ppl"):
        cases[f"dca_{preset}"] = (f"dca(preset={preset}, {trained})", dca(*reference.dca_preset(preset, train_len)))
    return cases


def scalings(train_len):
    """name: (expression, its frequencies)."""
    return {
        "none": ("none", reference.rope_plain),
        "pi": ("pi(factor=4)", lambda d, b: reference.rope_pi(d, b, 4)),
        "ntk": ("ntk(factor=4)", lambda d, b: reference.rope_ntk(d, b, 4)),
        "yarn": (f"yarn(factor=4, original={train_len})", lambda d, b: reference.rope_yarn(d, b, 4, train_len)),
        "llama3": (f"llama3(factor=8, low=1, high=4, original={train_len})",
                   lambda d, b: reference.rope_llama3(d, b, 8, 1, 4, train_len)),
        "base": ("none + base(theta=500000)", lambda d, b: reference.rope_plain(d, 500000.0)),
    }


def longheads_cases(train_len):
    """Which chunks a head sees depends on the text."""
    trained = f"train_len={train_len}"
    chunk = max(16, train_len // 8 // 16 * 16)
    chunks = min(16, train_len // chunk)
    plain, ntk = reference.rope_plain, lambda d, b: reference.rope_ntk(d, b, 2)
    pi = lambda d, b: reference.rope_pi(d, b, 4)  # noqa: E731

    def usual(**options):
        return lambda n: reference.LongHeads(chunk, chunks, chunk * chunks, **options)

    return [Case(f"longheads_{name}", f"longheads({arguments}) + {scaling}", train_len, positions, rope, 0)
            for name, arguments, positions, scaling, rope in [
                ("default", trained, usual(), "none", plain),
                ("paper", f"forced=paper, {trained}", usual(forced=1), "none", plain),
                ("group", f"select=group, {trained}", usual(per_group=True), "none", plain),
                ("few", f"chunk=16, chunks=4, begin=70, {trained}", lambda n: reference.LongHeads(16, 4, 70), "none",
                 plain),
                ("least", f"chunk=32, chunks=3, {trained}", lambda n: reference.LongHeads(32, 3, 96), "none", plain),
                ("ntk", trained, usual(), "ntk(factor=2)", ntk),
                # pi extends the trained length
                ("pi", "chunk=48, chunks=5, begin=250", lambda n: reference.LongHeads(48, 5, 250), "pi(factor=4)", pi)]]


def special_cases(train_len):
    """Options that the product of visibilities and scalings does not reach."""
    trained = f"train_len={train_len}"
    chunk, cap = reference.dca_preset("paper", train_len)
    paper = lambda n: reference.positions_dca(n, chunk, cap)  # noqa: E731
    longer_chunk, longer_cap = reference.dca_preset("paper", 2 * train_len)
    return [
        Case("dca_logit_scale_05", f"dca(logit_scale=yarn_0.05, {trained})", train_len, paper, None, 0.05),
        Case("dca_logit_scale_10", f"dca(logit_scale=yarn_0.1, {trained})", train_len, paper, None, 0.1),
        Case("dca_unaligned", f"dca(chunk=53, cap=91, {trained})", train_len,
             lambda n: reference.positions_dca(n, 53, 91), None, 0),
        # pi extends the trained length: the chunk derives from 2 L
        Case("dca_extended", "dca + pi(factor=2)", train_len,
             lambda n: reference.positions_dca(n, longer_chunk, longer_cap),
             lambda d, b: reference.rope_pi(d, b, 2), 0),
        Case("streaming_llm_small", f"streaming_llm(sinks=3, recent=37, {trained})", train_len,
             lambda n: reference.positions_streaming_llm(n, 3, 37), None, 0),
        Case("kv_chunk_odd", f"dca({trained}, kv_chunk=48)", train_len, paper, None, 0),
        Case("yarn_pose", f"full({trained}) + yarn(factor=4, original={train_len}, variant=pose)", train_len,
             reference.positions_full, lambda d, b: reference.rope_yarn(d, b, 4, train_len, variant="pose"), 0),
        Case("yarn_options", f"full({trained}) + yarn(factor=4, original={train_len}, beta_fast=16, beta_slow=2, "
             "attention_factor=1.2, truncate=0)", train_len, reference.positions_full,
             lambda d, b: reference.rope_yarn(d, b, 4, train_len, 16, 2, 1.2, truncate=False), 0),
        Case("base_and_pi", f"full({trained}) + base(theta=500000) + pi(factor=2)", train_len,
             reference.positions_full, lambda d, b: reference.rope_pi(d, 500000.0, 2), 0),
    ]


def in_window(case, window):
    """The case on a model with a sliding window of its own (None: without); methods that need far keys do without."""
    if window is None:
        return case
    name = next((name for name in ("dca", "longheads") if case.expression.startswith(name)), None)
    if name:
        head, bracket, tail = case.expression.partition("(")
        if not bracket or "+" in head:
            return case._replace(expression=case.expression.replace(name, f"{name}(ignore_window=1)", 1))
        return case._replace(expression=f"{head}(ignore_window=1, {tail}")
    return case._replace(positions=lambda n: reference.positions_window(case.positions(n), window))


def all_cases(train_len):
    cases = []
    for (v, (see, positions)), (s, (scale, rope)) in itertools.product(visibilities(train_len).items(),
                                                                       scalings(train_len).items()):
        cases.append(Case(f"{v}+{s}", f"{see} + {scale}", train_len, positions, rope, 0))
    return cases + special_cases(train_len) + longheads_cases(train_len)


def expected_logits(model, prompts, case):
    """The first prompt for which no selection is a close call, and what a session with this strategy must compute of
    it, [n, vocab] in float64."""
    for ids in prompts:
        rope = case.rope(model.head_dim, model.base) if case.rope else model.rope(len(ids))
        n = len(ids)
        scale = reference.logit_scale(n, case.train_len, case.slope) if case.slope else None
        positions = case.positions(n)
        if callable(positions):
            positions.needed_margin = MARGIN
        try:
            logits = model.forward(ids, positions, rope, scale)
        except reference.CloseCall:
            continue
        if callable(positions) and positions.smallest_margin < math.inf:
            print(f"{case.name}: smallest margin {positions.smallest_margin:.1e}", flush=True)
        return ids, logits
