"""Time and memory of each method, as shares of plain attention's."""

from measure import BASE, LONGHEADS, MODELS, PLACES, adapter, merged

MULTIPLE = 16
BEACON = (*BASE, "--beacon", MODELS / "beacon")
SESSION_ADAPTER = "adapter of rank 32, of the session"
LORA = "full(train_len=2048) + base(theta=4000000)"
PLANS = {"full": (BASE, "full"), "full(train_len=4096)": (BASE, "full(train_len=4096)"),
         "full + pi": (BASE, f"full + pi(factor={MULTIPLE})"),
         "full + ntk": (BASE, f"full + ntk(factor={MULTIPLE})"), "full + yarn": (BASE, f"full + yarn(factor={MULTIPLE})"),
         "full + dynamic_ntk": (BASE, f"full + dynamic_ntk(factor=2, length={256 * MULTIPLE})"),
         "adapter of rank 32, merged": (merged("long_lora"), LORA),
         SESSION_ADAPTER: (adapter("long_lora"), LORA),
         "dca": (BASE, "dca"), "rerope": (BASE, "rerope"), "self_extend": (BASE, "self_extend(group=32)"),
         "streaming_llm": (BASE, "streaming_llm"), "streaming_llm(recent=64)": (BASE, "streaming_llm(sinks=4, recent=64)"),
         "lm_infinite": (BASE, "lm_infinite"), "longheads": (LONGHEADS, "longheads"),
         "longheads(chunks=4)": (LONGHEADS, "longheads(chunks=4)"),
         "longheads(positions=dca)": (LONGHEADS, "longheads(positions=dca)"),
         "longheads(positions=dca, chunks=16)": (LONGHEADS, "longheads(positions=dca, chunks=16)"),
         "s2": (BASE, "s2(train_len=512)"), "scca_fixed": (BASE, "scca_fixed(train_len=512)"),
         "scca_flow": (BASE, "scca_flow(train_len=512)"), "sda": (BASE, "sda"), "long_mixed": (BASE, "long_mixed"),
         "beacon": (BEACON, "beacon"), "beacon(ratio=8)": (BEACON, "beacon(ratio=8)")}
COLUMNS = ["KV, of full", "time, of full"]


def measure(quire):
    """In turns: what else the machine does meets all alike."""
    for place in range(PLACES):
        for weights, expression in PLANS.values():
            quire.cost_run(weights, expression, MULTIPLE, place)


def cells(quire, name):
    """The COLUMNS of one of PLANS; dashes for None."""
    if name is None:
        return ["-", "-"]
    one, full = quire.cost(*PLANS[name], MULTIPLE), quire.cost(*PLANS["full"], MULTIPLE)
    return [f"{one[key] / full[key]:.2f}" for key in ("kv_bytes_peak", "seconds_per_token")]


def section(quire, page):
    page.heading("Time and memory")
    page.text(f"Reading about {MULTIPLE} windows with the embedded model: most memory of the KV cache, and processor time on one thread as",
              "a ratio to `full` in the same minutes, the best of four texts. The columns beside the quality tables above are these. At",
              "one million parameters attention is most of the work; the patterns that differ from head to head are computed head by",
              "head. Runs differ by about 5 %.")
    page.table("strategy", ["KV memory, kB", *COLUMNS],
               [(f"`{n}`" if "adapter" not in n else n,
                 [f"{quire.cost(*PLANS[n], MULTIPLE)['kv_bytes_peak'] / 1000:.0f}", *cells(quire, n)]) for n in PLANS])
    page.fact('Methods that drop keys keep what is seen from the last four chunks on, so that a text can be cut there (`quire.h`, '
              '"Dropped keys"): at this scale, with chunks of 64 tokens, more than the method itself sees. A smaller budget '
              'takes that away.')
    page.fact("A scaling of RoPE changes frequencies only: what it costs is what `full` costs for a checkpoint of that trained length, "
              "and so do a model that was trained further (PoSE) and a merged adapter. A longer trained length means larger KV "
              "chunks, which are read faster and rounded up to more memory.")
