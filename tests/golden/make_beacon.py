"""Makes beacon/plugin/, a random Activation Beacon plug-in of models/text_256, and beacon/text_256.safetensors, the
logits of ../reference/beacon.py with it; beacon/text_256.txt holds name<TAB>expression of each case.

Needs ../peers/requirements.txt.
"""

import dataclasses
import json
import pathlib
import shutil
import sys

import safetensors.torch
import torch

import golden_format

GOLDEN = pathlib.Path(__file__).resolve().parent
sys.path.append(str(GOLDEN.parent / "reference"))

import beacon  # noqa: E402
import reference  # noqa: E402

BASE = GOLDEN / "models" / "text_256"
PLUGIN = GOLDEN / "beacon" / "plugin"
RATIOS = (0, 2, 4, 8)
RESERVE = 16
CONFIG = {"beacon_window": 32, "beacon_stride": [32], "beacon_attn": "step-expansion", "beacon_ratio": list(RATIOS),
          "beacon_ratio_mix": f"adapt-{RESERVE}", "beacon_param": ["q", "k", "v", "o", "mlp"]}


@dataclasses.dataclass
class Case:
    """ratios: of each window, the last for all that follow."""

    name: str
    expression: str
    n_tokens: int
    ratios: tuple
    scheme: str = "step-expansion"
    window: int = 32
    stride: int = 32
    train_len: int = 256
    rope: object = None   # (head_dim, base) -> reference.Rope


CASES = [
    Case("raw", "beacon(ratio=0)", 256, (0,)),
    Case("step_expansion", "beacon(ratio=2)", 496, (2,)),   # as far as it reaches
    Case("segmentation", "beacon(ratio=4, attn=segmentation)", 400, (4,), "segmentation"),
    Case("segmentation_8", "beacon(ratio=8, attn=segmentation)", 400, (8,), "segmentation"),
    Case("full_coverage", "beacon(ratio=8, attn=full_coverage)", 400, (8,), "full-coverage"),
    Case("sequence", "beacon(sequence=x0.x2.x8.x0.x4)", 400, (0, 2, 8, 0, 4)),
    Case("sequence_segmentation", "beacon(sequence=x4.x0.x2, attn=segmentation)", 300, (4, 0, 2), "segmentation"),
    Case("stride", "beacon(window=48, stride=16, ratio=4)", 300, (4,), window=48, stride=16),
    Case("stride_segmentation", "beacon(window=40, stride=24, sequence=x2.x0.x8, attn=segmentation)", 300, (2, 0, 8),
         "segmentation", 40, 24),
    Case("stride_full_coverage", "beacon(window=40, stride=24, ratio=3, attn=full_coverage)", 300, (3,),
         "full-coverage", 40, 24),
    Case("pi", "beacon(ratio=2) + pi(factor=2)", 700, (2,), train_len=512,
         rope=lambda d, b: reference.rope_pi(d, b, 2)),
    Case("ntk", "beacon(ratio=4, train_len=256) + ntk(factor=2)", 400, (4,), rope=lambda d, b: reference.rope_ntk(d, b, 2)),
    # 216 entries fit: 10 windows of 20, and one each of 10, 5 and 1
    Case("raised", "beacon(window=40, stride=40, ratio=2)", 560, (2,) * 10 + (4, 8, 40), window=40, stride=40),
    Case("raised_from_raw", "beacon(window=40, stride=40, ratio=0, kv_chunk=48)", 360, (0,) * 5 + (4, 8, 40),
         window=40, stride=40),
    Case("by_length", "beacon", 480, (beacon.adapt(RATIOS, 480 + RESERVE, 32, 256),)),
    Case("yarn", "beacon(ratio=4, train_len=256) + yarn(factor=2, original=256)", 400, (4,),
         rope=lambda d, b: reference.rope_yarn(d, b, 2, 256)),
    Case("dynamic_ntk", "beacon(ratio=2, train_len=256) + dynamic_ntk(factor=2, length=512)", 400, (2,),
         rope=lambda d, b: reference.rope_dynamic_ntk(d, b, 2, 256, 512)),
]


def make_plugin():
    """Projections that differ from the model's own about as much as those do from zero."""
    shutil.rmtree(PLUGIN, ignore_errors=True)
    PLUGIN.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    model = reference.Model(BASE)
    tensors = {"model.beacon_embed_tokens.weight": torch.randn(1, 64, generator=generator) * 0.5}
    for name, weight in sorted(model.weights.items()):
        module = name.split(".")[-2]
        if module in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"):
            noise = torch.randn(weight.shape, generator=generator)
            tensors[name.replace(module, "beacon_" + module)] = 0.5 * (weight + weight.std() * noise)
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, PLUGIN / "model.safetensors")
    (PLUGIN / "config.json").write_text(json.dumps(CONFIG, indent=2, sort_keys=True) + "\n")


def expected(case, ids):
    model = beacon.BeaconModel(BASE, PLUGIN, window=case.window, stride=case.stride)
    model.train_len = case.train_len
    if case.rope:
        model.frequencies = case.rope(model.head_dim, model.base)
    return model.forward(ids, case.ratios, case.scheme)


def main():
    torch.set_num_threads(1)
    make_plugin()
    tensors = {}
    for seed, case in enumerate(CASES, start=1):
        ids = golden_format.random_ids(case.n_tokens, 320, seed)
        tensors[f"{case.name}.ids"] = torch.tensor(ids, dtype=torch.int32)
        golden_format.add_rows(tensors, case.name, expected(case, ids), 16)
        print(case.name, flush=True)
    golden_format.save(tensors, GOLDEN / "beacon" / "text_256.safetensors")
    (GOLDEN / "beacon" / "text_256.txt").write_text("".join(f"{c.name}\t{c.expression}\n" for c in CASES))


if __name__ == "__main__":
    main()
