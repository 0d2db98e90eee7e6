"""Writes logits/MODEL.safetensors: what transformers computes for each model under models/, at every position.

Weights are upcast to float64 (transformers keeps RoPE angles and norms in float32, which at 1,500 tokens costs up to 5e-5 of the largest logit).
The float64 reference of ../reference must agree to REFERENCE_TOLERANCE, which checks that reference for every RoPE
type too.
"""

import json
import pathlib
import platform
import sys

import safetensors
import torch
import transformers

import golden_format

GOLDEN = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parent / "reference"))
import reference  # noqa: E402

LENGTHS = (1, 7, 300, 1500)
REFERENCE_TOLERANCE = 5e-5  # of the row's largest logit


def transformers_logits(directory, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double()


def check_reference(model, ids, logits):
    ours = model.forward(ids, model.positions(len(ids)))
    error = ((ours - logits).abs().max(1).values / logits.abs().max(1).values).max().item()
    assert error < REFERENCE_TOLERANCE, error
    return error


def main(names=()):
    torch.set_num_threads(1)
    (GOLDEN / "logits").mkdir(exist_ok=True)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__,
                "safetensors": safetensors.__version__, "python": platform.python_version()}
    for directory in sorted((GOLDEN / "models").iterdir()):
        if names and directory.name not in names:
            continue
        model = reference.Model(directory)
        tensors = {}
        for n in sorted({min(n, model.longest) for n in LENGTHS}):
            ids = golden_format.random_ids(n, model.vocab_size, n)
            logits = transformers_logits(directory, ids)
            error = check_reference(model, ids, logits)
            n_columns = model.vocab_size if n <= 300 and model.vocab_size <= 64 else 32
            tensors[f"{n}.ids"] = torch.tensor(ids, dtype=torch.int32)
            golden_format.add_rows(tensors, str(n), logits, n_columns)
            print(f"{directory.name} {n} tokens: reference differs by {error:.1e}", flush=True)
        golden_format.save(tensors, GOLDEN / "logits" / f"{directory.name}.safetensors", versions)
    (GOLDEN / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
