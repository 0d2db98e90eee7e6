#!/usr/bin/env python3
"""The real model of examples/get_model.sh through the quire command, in short. Exit status 77 (skipped) where the model
cannot be fetched."""
import argparse
import json
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
OPTIONS = None  # --quire
MODEL = None


def run(*arguments):
    done = subprocess.run([OPTIONS.quire, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}: {done.stderr}")
    return done.stdout


class RealModelTest(unittest.TestCase):
    def test_info(self):
        info = json.loads(run("info", "--json", MODEL))
        self.assertEqual((info["architecture"], info["n_layers"], info["head_dim"]), ("LlamaForCausalLM", 30, 64))
        self.assertEqual((info["train_len"], info["vocab_size"], info["rope_theta"]), (8192, 49152, 100000.0))
        self.assertEqual((info["weight_type"], info["tokenizer"]), ("q4_1", "byte-level-bpe"))

    def test_tensors(self):
        files = json.loads(run("info", "--tensors", "--json", MODEL))
        types = {tensor["name"]: tensor["type"] for tensor in files["tensors"]}
        self.assertEqual((types["token_embd.weight"], types["blk.0.attn_q.weight"]), ("Q8_0", "Q4_1"))
        self.assertEqual(files["metadata"]["tokenizer.ggml.pre"], "smollm")

    def test_answers(self):
        question = "What is the capital of France? Answer in one sentence."
        for activations in ("int8", "f32"):
            answer = run("run", "-q", "-m", MODEL, "--activations", activations, "--chat", "-p", question, "-n", "16")
            self.assertIn("Paris", answer)

    def test_short_texts_cost_nothing(self):
        """What reads beyond the trained length reads a text of a few hundred tokens as plain attention does."""
        text = (SOURCE / "README.md").read_text()[:2400] + "\n\nIn short,"
        answers = {strategy: run("run", "-q", "-m", MODEL, "-s", strategy, "-p", text, "-n", "24")
                   for strategy in ("full", "dca", "full + dynamic_ntk(factor=2)", "auto")}
        self.assertEqual(set(answers.values()), {answers["full"]}, answers)

    def test_continues(self):
        self.assertIn("Paris", run("run", "-q", "-m", MODEL, "-p", "The capital of France is", "-n", "4"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quire", required=True)
    OPTIONS, rest = parser.parse_known_args()
    fetched = subprocess.run(["bash", str(SOURCE / "examples" / "get_model.sh")], stdout=subprocess.PIPE, text=True,
                             check=False)
    if fetched.returncode != 0:
        print("skipped: the model cannot be fetched")
        sys.exit(77)
    MODEL = fetched.stdout.strip()
    unittest.main(argv=[sys.argv[0], *rest])
