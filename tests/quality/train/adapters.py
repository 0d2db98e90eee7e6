"""LoRA adapters by PEFT around the embedded model: wrapping, saving in the published names, loading."""
import tuning  # first: it restarts Python with the allocator settings

import json

import peft
import safetensors.torch
import torch

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]
NORMS = ["input_layernorm", "post_attention_layernorm", "norm"]


def wrap(net, rank, alpha, save):
    """net with LoRA (arXiv:2106.09685) on the four projections, and `save` trained and stored whole."""
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=PROJECTIONS, modules_to_save=save,
                             lora_dropout=0.0, bias="none", task_type=None)
    return peft.get_peft_model(net, config)


def save(net, folder):
    """adapter_config.json and adapter_model.safetensors; LoRA in float32, whole modules in bfloat16."""
    tensors = peft.get_peft_model_state_dict(net)
    tensors = {k: (t if "lora_" in k else t.bfloat16()).contiguous() for k, t in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)
    config = net.peft_config["default"].to_dict()
    config.update(inference_mode=True, task_type="CAUSAL_LM",
                  base_model_name_or_path=str(tuning.BASE.relative_to(tuning.HERE.parents[2])),
                  target_modules=PROJECTIONS, modules_to_save=list(config["modules_to_save"]))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")


def load(folder):
    """The embedded model with the adapter of `folder`."""
    config = peft.PeftConfig.from_pretrained(str(folder))
    config.task_type = config.base_model_name_or_path = None        # TinyLlama is no transformers model
    net = peft.get_peft_model(tuning.base_model(), config)
    peft.set_peft_model_state_dict(net, safetensors.torch.load_file(str(folder / "adapter_model.safetensors")))
    return net.eval()
