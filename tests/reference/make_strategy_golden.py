"""Writes the golden logits of every strategy: ../golden/strategies/MODEL.safetensors and MODEL.txt.

A case whose positions depend on the text has its own ids if the usual ones make a close call. MODEL.txt has one case a
line, `name<TAB>expression`. See ../golden/README.md for the tensors. With beginnings of names as arguments, only those
cases are computed, and the others kept as they are; with names of models, only those models.
"""

import itertools
import pathlib
import sys

import safetensors.torch
import torch

import reference
import strategy_cases

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))
import golden_format  # noqa: E402

# With the names of some cases for models that are there for what their layers do to methods, not for the arguments.
EACH_METHOD = ("full+none", "full+yarn", "dca+none", "dca_logit_scale_10", "streaming_llm+none", "longheads_default",
               "longheads_dca", "rerope", "rerope_yarn", "self_extend_pi", "lm_infinite", "sda_kv", "scca_flow",
               "long_mixed_shifts", "product_longheads_yarn", "product_full")
MODELS = {"text_256": (), "short_128": (), "qwen3": ("full+yarn", "dca_logit_scale_10", "longheads_default", "rerope"),
          "granite": ("full+yarn", "dca_logit_scale_10", "longheads_default", "rerope"),
          "smollm3_yarn": EACH_METHOD, "phi3_longrope": EACH_METHOD,
          "qwen2_window_layers": (*EACH_METHOD, "longheads_first_layer"),
          "gemma3": ("full+none", "full+yarn", "dca_logit_scale_10", "longheads_default", "rerope")}
N_TOKENS = 1024
N_COLUMNS = 4


def kept(path, cases, beginnings):
    """The tensors of a file that need not be computed again."""
    if not beginnings:
        return {}
    others = {case.name for case in cases if not case.name.startswith(beginnings)}
    return {k: v for k, v in safetensors.torch.load_file(path).items() if k.rpartition(".")[0] in others}


def main(arguments):
    wanted = [name for name in arguments if name in MODELS]
    beginnings = tuple(name for name in arguments if name not in MODELS)
    torch.set_num_threads(1)
    (GOLDEN / "strategies").mkdir(exist_ok=True)
    for seed, name in enumerate(MODELS, start=1):
        model = reference.Model(GOLDEN / "models" / name)
        ids = golden_format.random_ids(N_TOKENS, model.vocab_size, seed)
        cases = [case for case in strategy_cases.all_cases(model) if not MODELS[name] or case.name in MODELS[name]]
        if wanted and name not in wanted:
            continue
        path = GOLDEN / "strategies" / f"{name}.safetensors"
        tensors = {"ids": torch.tensor(ids, dtype=torch.int32), **kept(path, cases, beginnings)}
        for case in cases:
            if f"{case.name}.logits" in tensors:
                continue
            prompts = (golden_format.random_ids(N_TOKENS, model.vocab_size, s)
                       for s in itertools.count(seed, len(MODELS)))
            own_ids, logits = strategy_cases.expected_logits(model, prompts, case)
            if own_ids != ids:
                tensors[f"{case.name}.ids"] = torch.tensor(own_ids, dtype=torch.int32)
            golden_format.add_rows(tensors, case.name, logits, N_COLUMNS)
            print(f"{name}: {case.expression}", flush=True)
        golden_format.save(tensors, path)
        text = "".join(f"{case.name}\t{case.expression}\n" for case in cases)
        (GOLDEN / "strategies" / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
