"""Runs the `quire` command, says so on stderr, and keeps what it printed: sections share measurements."""

import json
import math
import pathlib
import resource
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
EMBEDDED = ROOT / "examples" / "embedded_model"
MODELS = ROOT / "tests" / "quality" / "models"
WINDOW = 256      # positions that the embedded model was trained on
SEED = 3          # documents; weights were chosen on others
PLACES = 4        # of the held-out text, for perplexity
BASE = ("-m", EMBEDDED / "model")
LONGHEADS = ("-m", EMBEDDED / "longheads")


def model(name):
    return ("-m", MODELS / name)


def adapter(name):
    return (*BASE, "--adapter", MODELS / name)


def merged(name):
    return (*BASE, "--merge-adapter", MODELS / name)


def heldout_texts():
    """The held-out text from PLACES different beginnings on, each long enough for 32 windows."""
    text = (EMBEDDED / "heldout.txt").read_text()
    begins = [text.rfind("\n", 0, 1 + place * len(text) // (PLACES + 1)) + 1 for place in range(PLACES)]
    return [text[begin:begin + 4 * 32 * WINDOW] for begin in begins]


class Quire:
    def __init__(self, command, quick=False, kept=None):
        self.command, self.quick = command, quick
        self.kept = kept if kept is not None else {}
        self.folder = tempfile.TemporaryDirectory()
        self.texts = self.cut_text()

    def cut_text(self):
        files = [pathlib.Path(self.folder.name) / f"{place}.txt" for place in range(PLACES)]
        for file, text in zip(files, heldout_texts()):
            file.write_text(text)
        return files

    def call(self, *arguments):
        """The JSON of a run; each is made once."""
        words = [str(a) for a in arguments]
        shown = shlex.join(w.replace(str(ROOT) + "/", "").replace(self.folder.name, "heldout") for w in words)
        quiet = () if words[0] == "plan" else ("--quiet",)
        if shown not in self.kept:
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            done = subprocess.run([self.command, *words, "--json", *quiet], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"quire {shown}: {done.stderr}")
            self.kept[shown] = json.loads(done.stdout)
            self.kept[shown]["processor_seconds"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            print(shown, file=sys.stderr, flush=True)
        return self.kept[shown]

    def passkey(self, weights, strategy, multiples, trials=None):
        """{multiple of the window: share of right answers} to documents that are the same for every strategy, and so (as
        in all tasks here) of one length."""
        result = {}
        for multiple in multiples:
            n = trials or (50 if multiple <= 8 else 20)
            rows = self.call("eval", "passkey", *weights, "-s", strategy, "--trials", 5 if self.quick else n, "--seed", SEED,
                             "--same-length", "--tokens", int(multiple * WINDOW))["rows"]
            result[multiple] = rows[0]["accuracy"]
        return result

    def digits(self, weights, strategy, multiples, trials=50):
        """{multiple: share of the passkeys' digits that are right}: 10 % is chance."""
        result = {}
        for multiple in multiples:
            rows = self.call("eval", "passkey", *weights, "-s", strategy, "--trials", 5 if self.quick else trials, "--seed",
                             SEED, "--same-length", "--tokens", int(multiple * WINDOW))["rows"]
            right = [t["key"][d:d + 1] == t["answer"][d:d + 1] for t in rows[0]["trials"] for d in range(5)]
            result[multiple] = sum(right) / len(right)
        return result

    def facts(self, task, weights, strategy, multiples, trials=20):
        """{multiple: share of right answers} of `quire eval topics` or `multikey`, four facts in prose."""
        result = {}
        for multiple in multiples:
            rows = self.call("eval", task, *weights, "-s", strategy, "--trials", 5 if self.quick else trials, "--seed", SEED,
                             "--same-length", "--tokens", int(multiple * WINDOW), "-f", EMBEDDED / "heldout.txt")["rows"]
            result[multiple] = rows[0]["accuracy"]
        return result

    def perplexity(self, weights, strategy, multiples):
        """{multiple: perplexity of the last half of so many tokens, over the places}; strategy may be a function of the
        multiple, or "sliding window": the same targets in separate windows."""
        result = {}
        for multiple in multiples:
            expression = strategy(multiple) if callable(strategy) else strategy
            windows = ()
            if expression == "sliding window":
                expression, windows = "full", ("--window", WINDOW, "--stride", WINDOW // 4)
            losses = [self.call("eval", "ppl", *weights, "-s", expression, "-f", text, "--tokens", int(multiple * WINDOW),
                                *windows)["nll"] for text in self.texts[:1 if self.quick else None]]
            result[multiple] = math.exp(sum(losses) / len(losses))
        return result

    def needle(self, weights, strategy, multiples, trials=10):
        """The grid of `quire eval needle`."""
        return self.call("eval", "needle", *weights, "-s", strategy, "--seed", SEED, "--trials", 2 if self.quick else trials,
                         "--same-length", "--tokens", *[m * WINDOW for m in multiples])

    def cost_run(self, weights, strategy, multiple, place):
        begin = pathlib.Path(self.folder.name) / f"first-{multiple}-{place}.txt"
        begin.write_text(self.texts[place].read_text()[:5 * multiple * WINDOW // 2])
        return self.call("run", *weights, "-s", strategy, "-f", begin, "-n", 0, "--overflow", "extrapolate", "--threads", 1)

    def cost(self, weights, strategy, multiple):
        """{"kv_bytes_peak": most memory of the KV cache, "seconds_per_token": processor time of reading on one thread, the
        least of the places}, for texts of about so many windows. (Processor time: other work on the machine counts less.)"""
        runs = [self.cost_run(weights, strategy, multiple, place) for place in range(PLACES)]
        return {"kv_bytes_peak": max(r["kv_bytes_peak"] for r in runs),
                "seconds_per_token": min(r["processor_seconds"] / r["n_prompt_tokens"] for r in runs)}
