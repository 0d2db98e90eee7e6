"""A folder in which the commands of the documentation run as they stand: the names they use (MODEL, book.txt, ...) are
files of it."""

import ast
import json
import pathlib
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "examples/embedded_model"


def chat_template():
    """Llama 2's, the only known one with a system message that needs no control token but those of the embedded model."""
    tree = ast.parse((ROOT / "tests/peers/chat_templates.py").read_text(encoding="utf-8"))
    return next(ast.literal_eval(node.value) for node in tree.body
                if isinstance(node, ast.Assign) and node.targets[0].id == "LLAMA2")


def write_adapter(folder):
    """A LoRA adapter of rank 1 for the embedded model that replaces nothing, and so goes with any other adapter."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["o_proj"]}), encoding="utf-8")
    shapes = {f"base_model.model.model.layers.{layer}.self_attn.o_proj.lora_{side}.weight": shape
              for layer in range(4) for side, shape in (("A", [1, 128]), ("B", [128, 1]))}
    header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [512 * at, 512 * (at + 1)]}
                         for at, (name, shape) in enumerate(shapes.items())}).encode()
    n_numbers = 128 * len(shapes)
    (folder / "adapter_model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + struct.pack(f"<{n_numbers}f", *[0.01] * n_numbers))


def make(folder):
    model = folder / "MODEL"
    shutil.copytree(EMBEDDED / "model", model)
    (model / "chat_template.jinja").write_text(chat_template(), encoding="utf-8")
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/model").symlink_to(model)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "PLUGIN").symlink_to(ROOT / "tests/quality/models/beacon")
    (folder / "LONG").symlink_to(ROOT / "tests/quality/models/long_lora")
    write_adapter(folder / "STYLE")
    text = (EMBEDDED / "heldout.txt").read_text(encoding="utf-8")
    pages = [text[begin:begin + 600] for begin in range(0, 6000, 600)]
    for name, part in (("book.txt", pages[:4]), ("other.txt", pages[4:6]), ("library.txt", pages),
                       ("report.txt", ["The board met in May. It was decided to wait.\n"])):
        (folder / name).write_text("\f".join(part), encoding="utf-8")
    (folder / "library").mkdir()
