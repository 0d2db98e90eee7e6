"""What is compared: strategy expressions by name, some of which depend on the length of the text."""

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

SELECTS_WHEN_ANSWERING = {"dca_topk", "dca_topk_not_sticky"}  # given tokens see every key, generated ones do not


def answers(name):
    """The session that reads a text, and the strategies that answer from it: (name, whether each token of the answer is
    given back to the session). Given tokens are to dca_topk what they are to dca: one session answers as both."""
    if name in ("dca", "dca_topk"):
        return "dca_topk", (("dca", True), ("dca_topk", False))
    return name, ((name, False),)


KV_HEADS, QUERY_HEADS = 3, 9


def keys_read(name, length):
    """The share of the keys and values that a generated token reads at the end of a text, with the vectors by which
    chunks are chosen counted as keys: the defaults of the strategies, for this model."""
    if name == "streaming_llm":
        return min(1.0, (4 + 512) / length)
    if name.startswith("dca_topk"):  # chunks of 32; a mean key for each, in the type of the KV cache
        chunks = max(40, length // 32 // 12)
        return min(1.0, 32 * chunks / length + 1 / (2 * 32))
    if name == "longheads":  # 16 chunks of 256; a float32 vector for each query head, beside 2 * 256 f16 vectors
        return min(1.0, QUERY_HEADS / KV_HEADS * (16 * 256 / length + 2 / (2 * 256)))
    return 1.0
