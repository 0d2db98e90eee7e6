"""Passkey accuracy and perplexity in float32, by full attention or under given matrices."""
import tuning  # first: it restarts Python with the allocator settings
import evaluate
import model
import tasks

import math

import numpy as np
import torch

L = model.WINDOW


def text_and_tasks(sp):
    text = (tuning.EMBEDDED / "heldout.txt").read_text()
    return sp.encode(text), tasks.Builder(sp, text.split("\n"))


@torch.no_grad()
def passkey(net, data, attention, n, trials, seed=2024):
    """Percentage of passkey prompts of n tokens whose answer tokens are all the most likely ones."""
    rng = np.random.default_rng([seed, n])
    docs = [data.passkey(n, rng, depth=i / max(1, trials - 1)) for i in range(trials)]
    ids, width, right = torch.tensor([p + a for p, a in docs]), len(docs[0][1]), 0
    attend = attention(ids.shape[1] - 1)
    for part in ids.split(max(1, 4096 // n)):
        guess = net(part[:, :-1], attend, last=width).argmax(-1)
        right += (guess == part[:, -width:]).all(1).sum().item()
    return 100 * right / trials


@torch.no_grad()
def perplexity(net, text, attention, n, places=8):
    """Of the last half of n tokens (BOS and n - 1 of heldout.txt), the mean loss over `places` places."""
    starts, total = np.linspace(0, len(text) - n, places).astype(int), 0.0
    attend = attention(n - 1)
    for at in starts:
        ids = torch.tensor([1] + text[at: at + n - 1])
        total += evaluate.losses(net, ids, attend)[n // 2 - 1:].mean().item()
    return math.exp(total / places)


@torch.no_grad()
def questions(net, document, attention, n, documents=25, seed=2024):
    """Percentage of right answers in documents of n tokens; an answer is a run of tokens of weight 5."""
    rng, right, asked = np.random.default_rng([seed, n]), 0, 0
    for _ in range(documents):
        ids, weights = document(n, rng)
        ids, answer = torch.tensor(ids), torch.tensor(weights)[1:] == 5
        hit = net(ids[None, :-1], attention(len(ids) - 1))[0].argmax(-1) == ids[1:]
        run = (answer & ~torch.cat((answer[:1] & False, answer[:-1]))).cumsum(0)
        for r in range(1, int(run.max()) + 1):
            asked, right = asked + 1, right + int(hit[answer & (run == r)].all())
    return 100 * right / asked


def full(freq):
    """Attention of n tokens at their own positions."""
    return lambda n: tuning.Attention(freq, torch.arange(n))


def table(rows, data, text, lengths, trials=50, places=8):
    """Prints two Markdown tables; rows: {name: (net, attention)}. 20 trials and 2 places from 16 windows on."""
    head = "| | " + " | ".join(f"{n // L}x" for n in lengths) + " |\n|---|" + "---|" * len(lengths)
    def cost(n):
        return (trials, places) if n < 16 * L else (20, 2)

    print(f"\npasskey accuracy in %, {trials} trials at even depths\n\n{head}")
    for name, (net, attention) in rows.items():
        cells = [f"{passkey(net, data, attention, n, cost(n)[0]):.0f}" for n in lengths]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nperplexity of the last half of n tokens, {places} places of heldout.txt\n\n{head}")
    for name, (net, attention) in rows.items():
        cells = [f"{perplexity(net, text, attention, n, cost(n)[1]):.2f}" for n in lengths]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
