"""The strategy expressions under test, each with its matrix and frequencies built independently of the library."""

import collections
import itertools
import math

import patterns
import reference

MARGIN = 3e-5  # of a selection, in standard deviations of its scores: ten times what float32 makes of them

# name, expression, positions(n) -> matrix or function (reference.Model.forward), rope(rotary_dim, base) -> Rope (None: the
# checkpoint's own), scale(n) -> factor on each query's logits (None: 1)
Case = collections.namedtuple("Case", "name expression positions rope scale", defaults=(None, None))


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

    return [Case(f"longheads_{name}", f"longheads({arguments}) + {scaling}", positions, rope)
            for name, arguments, positions, scaling, rope in [
                ("default", trained, usual(), "none", plain),
                ("paper", f"forced=paper, {trained}", usual(forced=1), "none", plain),
                ("group", f"select=group, {trained}", usual(sharing="group"), "none", plain),
                ("few", f"chunk=16, chunks=4, begin=70, {trained}", lambda n: reference.LongHeads(16, 4, 70), "none",
                 plain),
                ("least", f"chunk=32, chunks=3, {trained}", lambda n: reference.LongHeads(32, 3, 96), "none", plain),
                ("ntk", trained, usual(), "ntk(factor=2)", ntk),
                ("worst", f"pick=worst, first=free, {trained}", usual(pick="worst", first="free"), "none", plain),
                ("never", f"first=never, select=layer, {trained}", usual(first="never", sharing="layer"), "none", plain),
                ("first_layer", f"select=first_layer, {trained}", usual(sharing="first_layer"), "none", plain),
                ("dca", f"positions=dca, chunk=16, chunks=5, dca_chunk=53, {trained}",
                 lambda n: reference.LongHeads(16, 5, 80, distances=reference.positions_dca(
                     n, 53, min(train_len - 1, 105))), "none", plain),
                ("dca_ntk", f"positions=dca, {trained}", lambda n: reference.LongHeads(
                    chunk, chunks, chunk * chunks, distances=reference.positions_dca(
                        n, *reference.dca_preset("paper", train_len))), "ntk(factor=2)", ntk),
                # pi extends the trained length
                ("pi", "chunk=48, chunks=5, begin=250", lambda n: reference.LongHeads(48, 5, 250), "pi(factor=4)", pi)]]


def dca_topk_cases(train_len):
    """Given tokens choose too, or there would be nothing to see."""
    period, trained = 3 * train_len // 4 // 16 * 16, f"train_len={train_len}"
    ntk = lambda d, b: reference.rope_ntk(d, b, 2)  # noqa: E731

    def make(*arguments, **options):
        return lambda n: reference.DcaTopK(*arguments, **options)

    return [Case(f"dca_topk_{name}", f"dca_topk({arguments}, reading=selected, {trained}) + {scaling}", positions, rope)
            for name, arguments, positions, scaling, rope in [
                ("group", "chunk=16, chunks=5, one_in=9", make(16, 5, 9, period, train_len - 1), "none",
                 reference.rope_plain),
                ("head", "chunk=16, chunks=4, one_in=0, select=head, dca_chunk=64", make(
                    16, 4, 0, 64, min(train_len - 1, 127), sharing="head"), "none", reference.rope_plain),
                ("minmax", "chunk=32, chunks=4, represent=minmax, dca_chunk=64", make(
                    32, 4, 12, 64, min(train_len - 1, 127), bounds=True), "none", reference.rope_plain),
                ("layer_ntk", "chunk=16, chunks=6, one_in=10, select=layer", make(
                    16, 6, 10, period, train_len - 1, sharing="layer"), "ntk(factor=2)", ntk)]]


def special_cases(train_len):
    """Options that the product of visibilities and scalings does not reach."""
    trained = f"train_len={train_len}"
    chunk, cap = reference.dca_preset("paper", train_len)
    paper = lambda n: reference.positions_dca(n, chunk, cap)  # noqa: E731
    longer_chunk, longer_cap = reference.dca_preset("paper", 2 * train_len)
    return [
        Case("dca_logit_scale_05", f"dca(logit_scale=yarn_0.05, {trained})", paper, None,
             lambda n: reference.logit_scale(n, train_len, 0.05)),
        Case("dca_logit_scale_10", f"dca(logit_scale=yarn_0.1, {trained})", paper, None,
             lambda n: reference.logit_scale(n, train_len, 0.1)),
        Case("dca_intra_inter", f"dca(parts=intra_inter, chunk=70, {trained})",
             lambda n: reference.positions_dca(n, 70, min(139, train_len - 1), successive=False)),
        Case("dca_intra", f"dca(parts=intra, chunk=70, {trained})",
             lambda n: reference.positions_dca(n, 70, min(139, train_len - 1), others=False)),
        Case("dca_unaligned", f"dca(chunk=53, cap=91, {trained})",
             lambda n: reference.positions_dca(n, 53, 91)),
        # pi extends the trained length: the chunk derives from 2 L
        Case("dca_extended", "dca + pi(factor=2)",
             lambda n: reference.positions_dca(n, longer_chunk, longer_cap),
             lambda d, b: reference.rope_pi(d, b, 2)),
        Case("streaming_llm_small", f"streaming_llm(sinks=3, recent=37, {trained})",
             lambda n: reference.positions_streaming_llm(n, 3, 37)),
        Case("kv_chunk_odd", f"dca({trained}, kv_chunk=48)", paper),
        Case("yarn_pose", f"full({trained}) + yarn(factor=4, original={train_len}, variant=pose)",
             reference.positions_full, lambda d, b: reference.rope_yarn(d, b, 4, train_len, variant="pose")),
        Case("yarn_options", f"full({trained}) + yarn(factor=4, original={train_len}, beta_fast=16, beta_slow=2, "
             "attention_factor=1.2, truncate=0)", reference.positions_full,
             lambda d, b: reference.rope_yarn(d, b, 4, train_len, 16, 2, 1.2, truncate=False)),
        Case("base_and_pi", f"full({trained}) + base(theta=500000) + pi(factor=2)",
             reference.positions_full, lambda d, b: reference.rope_pi(d, 500000.0, 2)),
    ]


def baseline_cases(train_len):
    """Distances that stop growing, or grow slowly."""
    trained = f"train_len={train_len}"
    window, recent = train_len // 2, train_len - 1
    quarter = train_len // 4
    return [
        Case("rerope", f"rerope({trained})", lambda n: patterns.rerope(n, window), None,
             lambda n: patterns.log_scale(n, train_len)),
        Case("rerope_yarn", f"rerope(window=41, log_n=0, {trained}) + yarn(factor=4, original={train_len})",
             lambda n: patterns.rerope(n, 41), lambda d, b: reference.rope_yarn(d, b, 4, train_len)),
        Case("rerope_leaky", f"rerope(window={quarter}, leaky=16, log_n=0, {trained}, kv_chunk=48)",
             lambda n: patterns.rerope(n, quarter, 16)),
        Case("self_extend", f"self_extend(group=16, {trained})", lambda n: patterns.self_extend(n, 16, quarter)),
        Case("self_extend_pi", f"self_extend(group=5, window=23, kv_chunk=48, {trained}) + pi(factor=2)",
             lambda n: patterns.self_extend(n, 5, 23), lambda d, b: reference.rope_pi(d, b, 2)),
        Case("lm_infinite", f"lm_infinite({trained})", lambda n: patterns.lm_infinite(n, 10, recent)),
        Case("lm_infinite_yarn", f"lm_infinite(sinks=37, recent=45, {trained}) + yarn(factor=4, original={train_len})",
             lambda n: patterns.lm_infinite(n, 37, 45), lambda d, b: reference.rope_yarn(d, b, 4, train_len)),
    ]


def head_cases(train_len, n_heads):
    """Patterns that differ from head to head, for as many heads as the model has."""
    trained = f"train_len={train_len}"
    chunk = train_len // 4
    cases = [
        Case("sda_heads", f"sda(dilation={n_heads}, {trained})", lambda n: patterns.sda(n, n_heads, n_heads)),
        Case("sda_kv", f"sda(dilation={n_heads}, reading=kv, full_below=50, {trained})",
             lambda n: patterns.below(patterns.sda(n, n_heads, n_heads, kv=True), 50)),
    ]
    if n_heads == 1:
        return cases
    shifts = ".".join(["sda3", *[f"shift{h}" for h in range(1, n_heads)]])
    part = min(22, train_len // n_heads // 2 * 2)
    cases += [
        Case("scca_flow", f"scca_flow(chunks={n_heads}, {trained})",
             lambda n: patterns.scca_flow(n, n_heads, n_heads, max(2, train_len // n_heads // 2 * 2))),
        Case("scca_flow_left", f"scca_flow(chunks={n_heads}, chunk={part}, roll=left, wrap=local, {trained}) + pi(factor=2)",
             lambda n: patterns.scca_flow(n, n_heads, n_heads, part, left=True, local=True),
             lambda d, b: reference.rope_pi(d, b, 2)),
        Case("long_mixed_shifts", f"long_mixed(heads={shifts}, chunk={part}, {trained})",
             lambda n: patterns.long_mixed(n, [("sda", 3), *[("shift", h, part) for h in range(1, n_heads)]])),
    ]
    if n_heads % 2 == 1:
        return cases
    mixed = [("sda", 2)] * (n_heads // 2) + [("rolled", 26)] * (n_heads // 4) + [("local", 26)] * (
        n_heads // 2 - n_heads // 4)
    table = f"sda2x{n_heads // 2}" + (f".rolledx{n_heads // 4}" if n_heads >= 4 else "") + (
        f".localx{n_heads // 2 - n_heads // 4}")
    return cases + [
        Case("s2", f"s2({trained})", lambda n: patterns.s2(n, n_heads, chunk // 2 * 2)),
        Case("s2_small", f"s2(group=14, full_below=33, {trained}) + pi(factor=2)",
             lambda n: patterns.below(patterns.s2(n, n_heads, 14), 33), lambda d, b: reference.rope_pi(d, b, 2)),
        Case("scca_fixed", f"scca_fixed({trained})", lambda n: patterns.scca_fixed(n, n_heads, chunk // 2 * 2)),
        Case("scca_fixed_slot", f"scca_fixed(chunk=30, mask=slot, {trained})",
             lambda n: patterns.scca_fixed(n, n_heads, 30, slot=True)),
        Case("scca_flow_slot", f"scca_flow(chunks={n_heads}, chunk={part}, mask=slot, {trained})",
             lambda n: patterns.scca_flow(n, n_heads, n_heads, part, slot=True)),
        Case("sda", f"sda({trained})", lambda n: patterns.sda(n, n_heads, 2)),
        Case("long_mixed", f"long_mixed(heads={table}, chunk=26, {trained})", lambda n: patterns.long_mixed(n, mixed)),
    ]


def product_cases(train_len, n_heads):
    """Scalings under visibilities that the table of the first three does not have: YaRN's factor on selected and
    clipped keys, and frequencies frozen for a length."""
    trained = f"train_len={train_len}"
    chunk = max(16, train_len // 8 // 16 * 16)
    chunks = min(16, train_len // chunk)
    length = 4 * train_len
    yarn = f"yarn(factor=4, original={train_len})", lambda d, b: reference.rope_yarn(d, b, 4, train_len)
    dynamic = (f"dynamic_ntk(factor=2, length={length}, original={train_len})",
               lambda d, b: reference.rope_dynamic_ntk(d, b, 2, train_len, length))
    preset = reference.dca_preset("paper", train_len)
    window, recent = train_len // 2, train_len - 5
    cases = {
        "full": (f"full({trained})", reference.positions_full, dynamic),
        "dca": (f"dca({trained})", lambda n: reference.positions_dca(n, *preset), dynamic),
        "longheads_yarn": (f"longheads({trained})", lambda n: reference.LongHeads(chunk, chunks, chunk * chunks), yarn),
        "longheads": (f"longheads({trained})", lambda n: reference.LongHeads(chunk, chunks, chunk * chunks), dynamic),
        "longheads_dca_yarn": (f"longheads(positions=dca, {trained})", lambda n: reference.LongHeads(
            chunk, chunks, chunk * chunks, distances=reference.positions_dca(n, *preset)), yarn),
        "streaming_llm": (f"streaming_llm(sinks=4, recent={recent}, {trained})",
                          lambda n: reference.positions_streaming_llm(n, 4, recent), dynamic),
        "rerope": (f"rerope(log_n=0, {trained})", lambda n: patterns.rerope(n, window), dynamic),
        "self_extend_yarn": (f"self_extend(group=16, {trained})",
                             lambda n: patterns.self_extend(n, 16, train_len // 4), yarn),
        "lm_infinite": (f"lm_infinite({trained})", lambda n: patterns.lm_infinite(n, 10, train_len - 1), dynamic),
        "sda_yarn": (f"sda(dilation={n_heads}, {trained})", lambda n: patterns.sda(n, n_heads, n_heads), yarn),
    }
    return [Case(f"product_{name}", f"{see} + {scale[0]}", positions, scale[1])
            for name, (see, positions, scale) in cases.items()]


# What is refused on a model with a sliding window of its own.
FAR = ("dca", "dca_topk", "long_mixed", "longheads", "rerope", "scca_flow", "sda", "self_extend")


def in_window(case, window):
    """The case on a model with a sliding window of its own (None: without); methods that need far keys do without."""
    if window is None:
        return case
    name = case.expression.partition("(")[0].partition(" ")[0]
    if name in FAR:
        head, bracket, tail = case.expression.partition("(")
        if not bracket or "+" in head:
            return case._replace(expression=case.expression.replace(name, f"{name}(ignore_window=1)", 1))
        return case._replace(expression=f"{head}(ignore_window=1, {tail}")
    return case._replace(positions=lambda n: reference.positions_window(case.positions(n), window))


def all_cases(model):
    """The cases for a reference.Model."""
    train_len = model.train_len
    cases = []
    for (v, (see, positions)), (s, (scale, rope)) in itertools.product(visibilities(train_len).items(),
                                                                       scalings(train_len).items()):
        cases.append(Case(f"{v}+{s}", f"{see} + {scale}", positions, rope))
    return (cases + special_cases(train_len) + longheads_cases(train_len) + dca_topk_cases(train_len)
            + baseline_cases(train_len) + head_cases(train_len, model.n_query_heads)
            + product_cases(train_len, model.n_query_heads))


def expected_logits(model, prompts, case):
    """The first prompt for which no selection is a close call, and what a session with this strategy must compute of
    it, [n, vocab] in float64."""
    for ids in prompts:
        rope = case.rope(model.rotary_dim, model.base) if case.rope else model.rope(len(ids))
        n = len(ids)
        scale = case.scale(n) if case.scale else None
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
