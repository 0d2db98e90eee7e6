"""transformers' strided perplexity (the sliding window of its documentation) and `quire eval ppl` on the same text.

QUIRE_COMMAND names the command.
"""

import json
import os
import pathlib
import subprocess

import pytest
import sentencepiece
import torch
import transformers

EMBEDDED = pathlib.Path(__file__).resolve().parents[2] / "examples" / "embedded_model"
N_TOKENS = 1500
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def network():
    return transformers.LlamaForCausalLM.from_pretrained(EMBEDDED / "model", torch_dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ids():
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(EMBEDDED / "model" / "tokenizer.model"))
    text = (EMBEDDED / "heldout.txt").read_text(encoding="utf-8")
    return torch.tensor([tokenizer.bos_id(), *tokenizer.encode(text)][:N_TOKENS])


def strided_nll(network, ids, window, stride):
    """Mean of -log p of all tokens but the first; each window scores what the one before did not."""
    total, scored_until = 0.0, 1
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        with torch.no_grad():
            log_p = network(ids[None, begin:end]).logits[0].double().log_softmax(-1)
        for position in range(scored_until, end):
            total -= log_p[position - begin - 1, ids[position]].item()
        scored_until = end
        if end == len(ids):
            return total / (len(ids) - 1)


@pytest.mark.parametrize("window, stride", [(256, 64), (256, 254), (100, 30)])
def test_strided_perplexity(network, ids, window, stride):
    done = subprocess.run(
        [os.environ["QUIRE_COMMAND"], "eval", "ppl", "-m", EMBEDDED / "model", "-f", EMBEDDED / "heldout.txt", "--tokens",
         str(N_TOKENS), "--window", str(window), "--stride", str(stride), "--all-targets", "--no-bos", "--kv-type", "f32",
         "--json"], check=True, capture_output=True)
    result = json.loads(done.stdout)
    assert result["n_targets"] == N_TOKENS - 1
    assert result["nll"] == pytest.approx(strided_nll(network, ids, window, stride), rel=1e-5)
