"""Makes adapters/NAME/, random LoRA adapters of models/text_256, and adapters/NAME.safetensors, the logits with them.

PEFT merges the weights in float64, and ../reference computes the logits: transformers keeps RoPE angles and norms in
float32. PEFT's own logits, of the adapter beside the weights, must agree to PEFT_TOLERANCE. Needs
../peers/requirements.txt.
"""

import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers

import golden_format

GOLDEN = pathlib.Path(__file__).resolve().parent
sys.path.append(str(GOLDEN.parent / "reference"))

import reference  # noqa: E402

PEFT_TOLERANCE = 5e-5  # of the row's largest logit
N_TOKENS = 100
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

# name: (LoraConfig arguments, the model, the RoPE base it goes with if that is another)
ADAPTERS = {
    "attention": (dict(r=4, lora_alpha=2, target_modules=ATTENTION, modules_to_save=["embed_tokens"]), "text_256", 2e8),
    "everything": (dict(r=3, lora_alpha=5, use_rslora=True, rank_pattern={"o_proj": 2}, alpha_pattern={"up_proj": 1.5},
                        target_modules=[*ATTENTION, "gate_proj", "up_proj", "down_proj", "embed_tokens"],
                        modules_to_save=["norm", "lm_head"]), "text_256", None),
    "fused": (dict(r=3, lora_alpha=2, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]), "phi3_longrope",
              None),
    "multipliers": (dict(r=2, lora_alpha=3, target_modules=["v_proj", "down_proj", "embed_tokens"],
                         modules_to_save=["norm", "lm_head"]), "granite", None),
    # "norm" is the end of all norms' names. Those of this model are of 1 + w.
    "norms": (dict(r=2, lora_alpha=3, target_modules=["q_proj", "gate_proj"], modules_to_save=["norm"]),
              "gemma3", None),
}


def make_network(base, theta):
    config = transformers.AutoConfig.from_pretrained(base)
    if theta:
        config.rope_parameters = {**config.rope_parameters, "rope_theta": theta}
    return transformers.AutoModelForCausalLM.from_pretrained(base, config=config, dtype=torch.float32,
                                                             attn_implementation="eager")


@torch.no_grad()
def randomise(network, seed):
    """Changes about as large as the weights."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if ".modules_to_save." in name:
            parameter.add_(0.5 * noise if parameter.dim() > 1 else 0.2 * noise)
        elif "lora_" in name:
            parameter.copy_(noise / parameter.shape[0 if "lora_embedding_A" in name else -1] ** 0.5)


def expected_logits(network, base, theta, ids):
    """Of the adapted network, in float64."""
    with torch.no_grad():
        beside = network.double()(torch.tensor([ids])).logits[0]
    model = reference.Model(base)
    model.base = theta or model.base
    model.set_weights(network.merge_and_unload().state_dict())
    logits = model.forward(ids, model.positions(len(ids)))
    error = ((beside - logits).abs().max(1).values / logits.abs().max(1).values).max().item()
    assert error < PEFT_TOLERANCE, error
    print(f"PEFT differs by {error:.1e}")
    return logits


def main(names=()):
    torch.set_num_threads(1)
    for seed, (name, (arguments, base_name, theta)) in enumerate(ADAPTERS.items(), start=1):
        if names and name not in names:
            continue
        base = GOLDEN / "models" / base_name
        directory = GOLDEN / "adapters" / name
        shutil.rmtree(directory, ignore_errors=True)
        network = peft.get_peft_model(make_network(base, theta), peft.LoraConfig(task_type="CAUSAL_LM", **arguments)).eval()
        randomise(network, seed)
        network.save_pretrained(directory)
        (directory / "README.md").unlink()
        config = json.loads((directory / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = base_name
        config = {key: sorted(value) if isinstance(value, list) else value for key, value in config.items()}
        (directory / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        ids = golden_format.random_ids(N_TOKENS, network.config.vocab_size, seed)
        tensors = {"ids": torch.tensor(ids, dtype=torch.int32)}
        golden_format.add_rows(tensors, "merged", expected_logits(network, base, theta, ids), 32)
        golden_format.save(tensors, GOLDEN / "adapters" / f"{name}.safetensors", {"peft": peft.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
