"""The real model (examples/get_model.sh) in the library and in transformers, which reads the same GGUF file; and GGUF
files that the library wrote, read by the gguf package and by transformers.

QUIRE_LIBRARY and QUIRE_COMMAND name the library and the command. Skipped where the model cannot be fetched.
"""

import os
import pathlib
import subprocess
import sys

import gguf
import numpy
import pytest
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bindings" / "python")]

import quire  # noqa: E402
from figures import record  # noqa: E402

TOLERANCE = 1e-4  # of all logits, as norms
PROMPTS = (
    "The capital of France is",
    "Photosynthesis is the process by which",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "The quick brown fox jumps over the lazy dog.",
    "1, 2, 3, 5, 8, 13,",
    "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\n",
    "In 1969, Neil Armstrong",
    "Grüße aus Zürich! Die Stadt",
    "Water boils at 100 degrees",
    "Once upon a time, in a village by the sea,",
)
N_GREEDY = 64
# The relative error of a matrix that a recipe may have at most.
RECIPES = {"q8_0": 0.01, "q6_k": 0.03, "q5_k_m": 0.06, "q4_k_m": 0.12, "q5_1": 0.06, "q5_0": 0.08, "q4_1": 0.15,
           "q4_0": 0.2, "iq4_nl": 0.12, "iq4_xs": 0.12, "q3_k_m": 0.25, "q2_k": 0.45}


@pytest.fixture(scope="module")
def transformer(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def model(path):
    with quire.Runtime(threads=2) as runtime, runtime.load(path, activations="f32") as model:
        yield model


def encode(model, text):
    with model.tokenizer as tokenizer:
        return tokenizer.encode(text, parse_special=True)


def all_logits(model, ids):
    with model.session("full", kv_type="f32", expected_tokens=len(ids)) as session:
        session.feed_tokens(ids)
        session.prefill(keep_logits=True)
        return numpy.asarray(session.logits(0, len(ids)), dtype=numpy.float64)


def relative(a, b):
    return numpy.linalg.norm(a - b) / numpy.linalg.norm(b)


def test_logits_equal_those_of_transformers(model, transformer):
    worst = 0.0
    for prompt in PROMPTS:
        ids = encode(model, prompt)
        with torch.no_grad():
            expected = transformer(torch.tensor([ids])).logits[0].double().numpy()
        worst = max(worst, relative(all_logits(model, ids), expected))
    print(f"logits of {len(PROMPTS)} prompts against transformers: {worst:.1e}")
    record("SmolLM2, Q4_1", prompts=len(PROMPTS), logit_error=worst)
    assert worst < TOLERANCE


def test_greedy_tokens_equal_those_of_transformers(model, transformer):
    n_equal, largest = 0, 0.0
    for prompt in PROMPTS:
        ids = encode(model, prompt)
        with torch.no_grad():
            out = transformer.generate(torch.tensor([ids]), max_new_tokens=N_GREEDY, do_sample=False,
                                       eos_token_id=None, pad_token_id=2)[0].tolist()
        with model.session("full", kv_type="f32") as session:
            session.feed_tokens(ids)
            own = [e.token for e in session.stream(N_GREEDY, ignore_eos=True) if e.kind == "token"]
        expected = out[len(ids):]
        n_equal += own == expected
        if own != expected:  # then both must be as good: the gap of their logits says so
            at = next(i for i, (a, b) in enumerate(zip(own, expected)) if a != b)
            logits = all_logits(model, ids + expected[:at])[-1]
            gap = abs(logits[own[at]] - logits[expected[at]])
            largest = max(largest, gap)
            print(f"{prompt!r}: token {at} differs, gap of the logits {gap:.1e}")
            assert gap < 1e-3
    record("SmolLM2, Q4_1", prompts=len(PROMPTS), identical=n_equal, tokens_of_each=N_GREEDY, largest_gap=largest)


@pytest.mark.parametrize("recipe", RECIPES)
def test_written_files_are_read_by_others(path, recipe, tmp_path):
    out = tmp_path / f"{recipe}.gguf"
    subprocess.run([os.environ["QUIRE_COMMAND"], "quantize", "-q", "-t", recipe, path, out], check=True)
    original = {t.name: t for t in gguf.GGUFReader(path).tensors}
    written = gguf.GGUFReader(out)
    assert {t.name for t in written.tensors} == set(original)
    worst = 0.0
    for tensor in written.tensors:
        a = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float64)
        b = gguf.quants.dequantize(original[tensor.name].data, original[tensor.name].tensor_type).astype(numpy.float64)
        worst = max(worst, relative(a.ravel(), b.ravel()))
    print(f"{recipe}: the worst matrix has a relative error of {worst:.4f}")
    record(recipe, matrices=len(written.tensors), worst_matrix_error=worst)
    assert worst < RECIPES[recipe]
