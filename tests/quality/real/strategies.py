"""What is compared: strategy expressions by name, some of which depend on the length of the text."""

import re

WINDOW = 8192  # tokens that the model was trained on


def factor(length):
    return f"{max(1.0, length / WINDOW):g}"


def group(length):
    """The smallest power of two, from 8, whose grouped positions all lie in the window beside 1,024 exact ones."""
    size = 8
    while length > (WINDOW - 1024) * size:
        size *= 2
    return size


STRATEGIES = {
    "full": lambda length: "full",
    "dca": lambda length: "dca",
    "dca_topk": lambda length: "dca_topk",
    "dca_topk_not_sticky": lambda length: "dca_topk(sticky=0)",
    "dca_topk_selected": lambda length: "dca_topk(reading=selected)",
    "dca_topk_selected_not_sticky": lambda length: "dca_topk(reading=selected, sticky=0)",
    "longheads": lambda length: "longheads",
    "self_extend": lambda length: f"self_extend(group={group(length)})",
    "rerope": lambda length: "rerope",
    "yarn": lambda length: f"full + yarn(factor={factor(length)})",
    "dynamic_ntk": lambda length: "full + dynamic_ntk(factor=2)",
    "streaming_llm": lambda length: "streaming_llm",
}

# Measured at one length (FRONTIER_LENGTH) beside those above: what more or fewer keys, other chunks and other vectors do
# for a generated token.
FRONTIER = (
    "dca_topk(one_in=6)",
    "dca_topk(one_in=24, chunks=20)",
    "dca_topk(one_in=48, chunks=10)",
    "dca_topk(represent=minmax)",
    "dca_topk(reading=selected, represent=minmax)",
    "dca_topk(chunk=128, chunks=10)",
    "dca_topk(select=head)",
    "longheads(init=full, positions=dca, chunk=64, chunks=64)",
)
FRONTIER_LENGTH = 16384


def expression(name, length):
    """Of a strategy by its name; those of the frontier are their own names."""
    return STRATEGIES[name](length) if name in STRATEGIES else name


def selects_when_answering(name, length):
    """Whether given tokens see every key and generated ones do not."""
    strategy = expression(name, length)
    return strategy.startswith("dca_topk") and "reading=selected" not in strategy or "init=full" in strategy


def answers(name):
    """The session that reads a text, and the strategies that answer from it: (name, whether each token of the answer is
    given back to the session). Given tokens are to dca_topk what they are to dca: one session answers as both."""
    if name in ("dca", "dca_topk"):
        return "dca_topk", (("dca", True), ("dca_topk", False))
    return name, ((name, False),)


KV_HEADS, QUERY_HEADS = 3, 9


def keys_read(name, length):
    """The share of the keys and values that a generated token reads at the end of a text, with the vectors by which
    chunks are chosen counted as keys: for this model, at most where each head chooses for itself."""
    strategy = expression(name, length)

    def argument(key, default):
        found = re.search(rf"\b{key}=(\w+)", strategy)
        return default if found is None else type(default)(found[1])

    if strategy.startswith("streaming_llm"):
        return min(1.0, (4 + 512) / length)
    if strategy.startswith("dca_topk"):  # one vector of a KV head for each chunk, or two, in the type of the KV cache
        chunk = argument("chunk", 32)
        chunks = max(argument("chunks", 40), length // chunk // argument("one_in", 12))
        vectors = 2 if argument("represent", "mean") == "minmax" else 1
        heads = QUERY_HEADS / KV_HEADS if argument("select", "group") == "head" else 1
        return min(1.0, heads * chunk * chunks / length + vectors / (2 * chunk))
    if strategy.startswith("longheads"):  # a float32 vector for each query head, beside 2 * chunk f16 vectors
        chunk, chunks = argument("chunk", 256), argument("chunks", 16)
        return min(1.0, QUERY_HEADS / KV_HEADS * (chunks * chunk / length + 2 / (2 * chunk)))
    return 1.0
