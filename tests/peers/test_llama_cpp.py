"""The real model (examples/get_model.sh) in the library and in llama.cpp: logits, greedy tokens, perplexity; and GGUF files
that each of the two quantised, in both.

QUIRE_LIBRARY and QUIRE_COMMAND name the library and the command. Skipped where llama-cpp-python is not installed, which
builds llama.cpp, or where the model cannot be fetched. QUIRE_PPL_TOKENS is how many tokens of each text are scored.

Both programs round the activations to 8 bits before they multiply them with quantised weights, but not to the same
numbers; the library, asked so (activations="f32"), does not. With floats, where neither rounds, they must agree; what
rounding costs is measured in both.
"""

import collections
import math
import os
import pathlib
import shutil
import subprocess
import sys

import numpy
import pytest
from safetensors.numpy import load_file, save_file

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bindings" / "python"), str(ROOT / "tests" / "peers"), str(ROOT / "tests" / "peers" / "llama_cpp")]

import quire  # noqa: E402
from figures import record  # noqa: E402
from quantize import quantize_by_peer  # noqa: E402
from test_real_model import N_GREEDY, PROMPTS, all_logits, encode, relative  # noqa: E402

N_TOKENS = int(os.environ.get("QUIRE_PPL_TOKENS") or 2048)
N_THREADS = len(os.sched_getaffinity(0))
BLOCK = 512
EMBEDDED = ROOT / "examples" / "embedded_model"
EMBEDDED_WINDOW = 256  # tokens that the embedded model was trained on
N_WINDOWS = 16
N_VARIED = 24
TEXTS = [file for file in (EMBEDDED / "heldout.txt", ROOT / "include" / "quire" / "quire.h",
                           pathlib.Path("/usr/share/common-licenses/GPL-3")) if file.exists()]
RECIPES = {"q8_0": "MOSTLY_Q8_0", "q6_k": "MOSTLY_Q6_K", "q5_k_m": "MOSTLY_Q5_K_M", "q5_1": "MOSTLY_Q5_1",
           "q5_0": "MOSTLY_Q5_0", "q4_k_m": "MOSTLY_Q4_K_M", "q4_1": "MOSTLY_Q4_1", "q4_0": "MOSTLY_Q4_0",
           "iq4_nl": "MOSTLY_IQ4_NL", "iq4_xs": "MOSTLY_IQ4_XS", "q3_k_m": "MOSTLY_Q3_K_M", "q2_k": "MOSTLY_Q2_K"}


class Peer:
    """llama.cpp with the model of a file; keys and values are float, as in the library's sessions here."""

    def __init__(self, path, n_ctx):
        f32 = llama_cpp.GGML_TYPE_F32
        self._llama = llama_cpp.Llama(str(path), n_ctx=n_ctx, n_batch=BLOCK, n_threads=N_THREADS,
                                      n_threads_batch=N_THREADS, logits_all=True, type_k=f32, type_v=f32, verbose=False)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._llama.close()

    def encode(self, text):
        return self._llama.tokenize(text.encode(), add_bos=True, special=True)

    def logits(self, ids):
        """Logits of every token of a new text."""
        self._llama.reset()
        self._llama.eval(ids)
        return self._llama.scores[:len(ids)].astype(numpy.float64)

    def greedy(self, ids, n):
        self._llama.reset()
        out = []
        while len(out) < n:
            self._llama.eval(out[-1:] or ids)
            out.append(int(self._llama.scores[self._llama.n_tokens - 1].argmax()))
        return out

    def log_p(self, ids):
        """Blocks of log p of all tokens behind each token of a new text."""
        self._llama.reset()
        self._llama.eval(ids)
        for at in range(0, len(ids), BLOCK):
            yield log_softmax(self._llama.scores[at:min(at + BLOCK, len(ids))])


def log_softmax(logits):
    logits = numpy.asarray(logits, dtype=numpy.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))


def own_log_p(model, ids):
    with model.session("full", kv_type="f32") as session:
        for at in range(0, len(ids), BLOCK):
            block = ids[at:at + BLOCK]
            session.feed_tokens(block)
            session.prefill(keep_logits=True)
            yield log_softmax(session.logits(at, len(block)))


def scores(blocks, ids, exact=None):
    """-log p of all tokens but the first; and of `exact`, the same of a better model, the Kullback-Leibler divergences."""
    nll, divergences = [], []
    for n, log_p in enumerate(blocks):
        targets = ids[n * BLOCK + 1:(n + 1) * BLOCK + 1]
        nll.append(-log_p[numpy.arange(len(targets)), targets])
        if exact is not None:
            better = exact[n].astype(numpy.float64)
            divergences.append((numpy.exp(better) * (better - log_p)).sum(axis=1))
    return numpy.concatenate(nll), numpy.concatenate(divergences) if divergences else None


def own_greedy(model, ids, n):
    with model.session("full", kv_type="f32") as session:
        session.feed_tokens(ids)
        return [e.token for e in session.stream(n, ignore_eos=True) if e.kind == "token"]


def perplexity(scores_of_texts):
    return math.exp(numpy.concatenate([nll for nll, _ in scores_of_texts]).mean())


def divergence(scores_of_texts):
    return numpy.concatenate([kl for _, kl in scores_of_texts]).mean()


def record_perplexities(case, found):
    """found: the scores of some texts, by the name of who computed them."""
    figures = {name: perplexity(parts) for name, parts in found.items()}
    differences = {f"{name}: difference": figures[name] / figures["quire"] - 1 for name in figures if name != "quire"}
    record(case, targets=sum(len(nll) for nll, _ in found["quire"]), **figures, **differences)


def texts(model):
    return [encode(model, text.read_text(encoding="utf-8"))[:N_TOKENS] for text in TEXTS]


@pytest.fixture(scope="module")
def runtime():
    with quire.Runtime(threads=N_THREADS) as made:
        yield made


@pytest.fixture(scope="module")
def model(runtime, path):
    with runtime.load(path, activations="f32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def rounded(runtime, path):
    """As the library reads the file if nothing is said."""
    with runtime.load(path) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def peer(path):
    with Peer(path, N_TOKENS) as made:
        yield made


@pytest.fixture(scope="module")
def float_path(path, tmp_path_factory):
    """The same model with float weights."""
    out = tmp_path_factory.mktemp("float") / "f32.gguf"
    quire.quantize(path, out, "f32")
    return out


@pytest.fixture(scope="module")
def greedy(model):
    """(ids of a prompt, the library's greedy tokens behind it), of all prompts."""
    return [(ids, own_greedy(model, ids, N_GREEDY)) for ids in (encode(model, prompt) for prompt in PROMPTS)]


def test_prompts_are_the_same_ids(model, peer):
    compared, n_ids = [*PROMPTS, *(text.read_text(encoding="utf-8") for text in TEXTS)], 0
    for text in compared:
        ids = encode(model, text)
        assert ids == peer.encode(text)
        n_ids += len(ids)
    record("SmolLM2, Q4_1", texts=len(compared), ids=n_ids)


def test_floats_give_the_same_logits_and_tokens(runtime, float_path, greedy):
    worst, largest, n_equal = 0.0, 0.0, 0
    with runtime.load(float_path) as own, Peer(float_path, 256) as theirs:
        for ids, tokens in greedy:
            mine, other = all_logits(own, ids + tokens), theirs.logits(ids + tokens)
            worst = max(worst, relative(other, mine))
            expected, got = theirs.greedy(ids, N_GREEDY), own_greedy(own, ids, N_GREEDY)
            n_equal += expected == got
            if expected != got:  # both must be as good: the gap of their logits says so
                at = next(i for i, (a, b) in enumerate(zip(got, expected)) if a != b)
                logits = all_logits(own, ids + got[:at])[-1]
                gap = logits[got[at]] - logits[expected[at]]
                largest = max(largest, gap)
                print(f"token {at} differs, gap of the logits {gap:.1e}")
                assert gap < 1e-3
    print(f"float weights: {n_equal} of {len(greedy)} prompts have the same {N_GREEDY} tokens, logits differ by {worst:.1e}")
    record("SmolLM2, float weights", prompts=len(greedy), identical=n_equal, tokens_of_each=N_GREEDY,
           largest_gap=largest, logit_error=worst)
    assert worst < 1e-3


def test_tokens_differ_only_where_rounding_explains_it(runtime, float_path, model, rounded, peer, greedy):
    """At the first token that differs, the gap of the library's two candidates is within a few times the usual
    difference of the two programs' logits. The library's rounding is no coarser than llama.cpp's."""
    own_error, rounded_error, peer_error, n_equal = 0.0, 0.0, 0.0, 0
    largest, most_usual = 0.0, 0.0
    with runtime.load(float_path) as exact:
        for prompt, (ids, tokens) in zip(PROMPTS, greedy):
            own, other = all_logits(model, ids + tokens), peer.logits(ids + tokens)
            truth = all_logits(exact, ids + tokens)
            own_error, peer_error = max(own_error, relative(own, truth)), max(peer_error, relative(other, truth))
            rounded_error = max(rounded_error, relative(all_logits(rounded, ids + tokens), truth))
            expected = peer.greedy(ids, N_GREEDY)
            if expected == tokens:
                n_equal += 1
                continue
            at = next(i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b)
            row = len(ids) + at - 1
            assert own[row].argmax() == tokens[at]
            gap = own[row, tokens[at]] - own[row, expected[at]]
            # What rounding does to the difference of two logits: the differences of two programs' differences, over
            # all positions before this one and the five most likely tokens of each.
            usual = []
            for before in range(row):
                top = numpy.argsort(own[before])[-5:]
                change = (other - own)[before, top]
                usual.append(change - change.mean())
            usual = math.sqrt(2) * float(numpy.std(numpy.concatenate(usual)))
            print(f"{prompt!r}: token {at} differs, gap of the logits {gap:.3f}, in llama.cpp "
                  f"{other[row, tokens[at]] - other[row, expected[at]]:.3f}, usual difference {usual:.3f}")
            largest, most_usual = max(largest, gap), max(most_usual, gap / usual)
            assert 0 <= gap < 4 * usual
    print(f"{n_equal} of {len(PROMPTS)} prompts have the same {N_GREEDY} tokens; distance of the logits from those of "
          f"float weights: quire {own_error:.1e}, with rounded activations {rounded_error:.1e}, llama.cpp {peer_error:.1e}")
    record("SmolLM2, Q4_1", prompts=len(PROMPTS), identical=n_equal, tokens_of_each=N_GREEDY, largest_gap=largest,
           in_usual_differences_of_logits=most_usual, logit_error_of_quire=own_error,
           of_quire_with_rounded_activations=rounded_error, of_llama_cpp=peer_error)
    assert own_error == 0  # products with quantised weights are those with the values that they stand for
    assert peer_error < 0.1
    assert 0 < rounded_error < 1.25 * peer_error


def test_perplexity(model, rounded, float_path, peer):
    """With float weights the two agree, so what is left is the rounding of activations: within 0.5 % in either."""
    found = {"quire": [], "quire, rounded": [], "llama.cpp": [], "llama.cpp, float weights": []}
    with Peer(float_path, N_TOKENS) as float_peer:
        for text, ids in zip(TEXTS, texts(model)):
            one = {"quire": scores(own_log_p(model, ids), ids), "quire, rounded": scores(own_log_p(rounded, ids), ids),
                   "llama.cpp": scores(peer.log_p(ids), ids),
                   "llama.cpp, float weights": scores(float_peer.log_p(ids), ids)}
            own = perplexity([one["quire"]])
            print(f"{text.name}, {len(ids) - 1} targets: quire {own:.4f}", *(
                f"{name} {perplexity([part]):.4f} ({perplexity([part]) / own - 1:+.4%})" for name, part in one.items()
                if name != "quire"), sep="; ")
            record_perplexities(text.name, {name: [part] for name, part in one.items()})
            assert perplexity([one["llama.cpp, float weights"]]) == pytest.approx(own, rel=1e-5)
            for name, part in one.items():
                found[name].append(part)
    record_perplexities("all texts", found)
    own = perplexity(found["quire"])
    for name in ("quire, rounded", "llama.cpp"):
        other = perplexity(found[name])
        print(f"all texts: quire {own:.4f}, {name} {other:.4f} ({other / own - 1:+.3%})")
        assert other == pytest.approx(own, rel=0.005)


@pytest.fixture(scope="module")
def exact(runtime, float_path):
    """(ids of a text, log p of the model with float weights), of all texts."""
    with runtime.load(float_path) as loaded:
        return [(ids, [block.astype(numpy.float32) for block in own_log_p(loaded, ids)]) for ids in texts(loaded)]


def compare_quantisers(runtime, float_path, exact, recipe, folder):
    """Makes a file of float weights with the library and with llama.cpp, by the same recipe. Returns the scores of all
    texts by how they were found:
        quire, llama.cpp: with the weights of either's file
        int8: the library's file with activations in int8, the library's default
        rounding: the library's file in llama.cpp
    and how far llama.cpp's perplexity is from the library's where it reads the library's file as floats: not at all."""
    own_file, peer_file, read_by_peer = folder / "own.gguf", folder / "peer.gguf", folder / "floats.gguf"
    subprocess.run([os.environ["QUIRE_COMMAND"], "quantize", "-q", "-t", recipe, float_path, own_file], check=True)
    quantize_by_peer(float_path, peer_file, RECIPES[recipe])
    quantize_by_peer(own_file, read_by_peer, "ALL_F32")
    n_tokens = max(len(ids) for ids, _ in exact)
    found = {}
    for name, file in (("quire", own_file), ("llama.cpp", peer_file)):
        with runtime.load(file, activations="f32") as model:
            found[name] = [scores(own_log_p(model, ids), ids, log_p) for ids, log_p in exact]
    with runtime.load(own_file) as model:
        found["int8"] = [scores(own_log_p(model, ids), ids) for ids, _ in exact]
    with Peer(own_file, n_tokens) as peer:
        found["rounding"] = [scores(peer.log_p(ids), ids) for ids, _ in exact]
    ids = exact[0][0]
    with Peer(read_by_peer, n_tokens) as peer:
        reading = abs(perplexity([scores(peer.log_p(ids), ids)]) / perplexity(found["quire"][:1]) - 1)
    return found, reading


def judge_quantisers(recipe, found, reading, **more):
    """Keeps what compare_quantisers() found, with `more` figures, and judges what does not depend on the quantisers: how
    a file is read, and what rounding of activations adds to the perplexity: less than 1 %, or where weights of 4 bits
    have spoilt a small model, which feels it more, hardly more than in llama.cpp."""
    own, other, int8, rounding = (perplexity(found[name]) for name in ("quire", "llama.cpp", "int8", "rounding"))
    figures = {"perplexity of quire's file": own, "of llama.cpp's": other, "difference": own / other - 1, **more,
               "divergence of quire's file": divergence(found["quire"]),
               "of llama.cpp's file": divergence(found["llama.cpp"]),
               "quire's file in llama.cpp: difference": rounding / own - 1,
               "with int8 activations: difference": int8 / own - 1,
               "as floats in llama.cpp: relative error": reading}
    print(recipe, *(f"{name} {value:.5g}" for name, value in figures.items()), sep="; ")
    record(recipe, **figures)
    assert reading < 1e-5
    assert abs(int8 / own - 1) < max(0.01, 1.25 * abs(rounding / own - 1))


@pytest.mark.parametrize("recipe", RECIPES)
def test_quantised_files(runtime, float_path, exact, tmp_path, recipe):
    """A file of the library's is hardly worse than llama.cpp's of the same recipe. The float weights are those that a
    Q4_1 file stands for, so most lie on a grid of Q4_1, which a quantiser to Q4_1 can find again: this favours q4_1
    over the other recipes, and says little of how the quantisers differ at q4_1. test_quantised_embedded_files has
    weights that were trained as floats."""
    found, reading = compare_quantisers(runtime, float_path, exact, recipe, tmp_path)
    judge_quantisers(recipe, found, reading)
    assert perplexity(found["quire"]) <= perplexity(found["llama.cpp"]) * 1.005


def varied_model(seed, folder):
    """The embedded model, of which there are float weights only, as a GGUF file of these. Each weight of its projections
    is multiplied by 1 plus a hundredth of a normal number, except with seed 0."""
    source, out = folder / "model", folder / "f32.gguf"
    shutil.copytree(EMBEDDED / "model", source)
    weights, random = load_file(source / "model.safetensors"), numpy.random.default_rng(seed)
    for name, tensor in weights.items():
        if seed > 0 and tensor.ndim == 2 and "embed" not in name:
            weights[name] = (tensor * (1 + 0.01 * random.standard_normal(tensor.shape))).astype(tensor.dtype)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    quire.quantize(source, out, "f32")
    return out


@pytest.fixture(scope="module")
def varied(runtime, tmp_path_factory):
    """(a file, as `exact`), of N_VARIED models. The texts are pieces of the model's held-out text that fit into its
    window. Each begins with BOS."""
    made = []
    for seed in range(N_VARIED):
        file = varied_model(seed, tmp_path_factory.mktemp(f"embedded_{seed}"))
        with runtime.load(file) as loaded:
            bos, *text = encode(loaded, (EMBEDDED / "heldout.txt").read_text(encoding="utf-8"))
            n = EMBEDDED_WINDOW - 1
            pieces = [[bos, *text[at:at + n]] for at in range(0, N_WINDOWS * n, n)]
            made.append((file, [(ids, [block.astype(numpy.float32) for block in own_log_p(loaded, ids)]) for ids in pieces]))
    return made


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if "k" not in recipe])
def test_quantised_embedded_files(runtime, varied, tmp_path, recipe):
    """The same of weights that were trained as floats, in rows too short for K types.

    With 4 bits so small a model loses much, and how much depends on which way single weights are rounded: its
    perplexity changes by 5 to 10 % when its weights are changed a little before. So the quantisers are compared on
    several models that differ so. The library's must not be worse by what cannot be chance, which two standard errors
    of the mean are taken for."""
    all_found, worst_reading, differences = collections.defaultdict(list), 0.0, []
    for n, (file, exact) in enumerate(varied):
        folder = tmp_path / str(n)
        folder.mkdir()
        found, reading = compare_quantisers(runtime, file, exact, recipe, folder)
        differences.append(math.log(perplexity(found["quire"]) / perplexity(found["llama.cpp"])))
        worst_reading = max(worst_reading, reading)
        for name, parts in found.items():
            all_found[name] += parts
    error = numpy.std(differences, ddof=1) / math.sqrt(len(differences))
    judge_quantisers(recipe, all_found, worst_reading, models=len(varied), standard_error=error,
                     better_with=sum(difference < 0 for difference in differences))
    assert numpy.mean(differences) <= math.log(1.005) + 2 * error
    assert divergence(all_found["quire"]) <= divergence(all_found["llama.cpp"]) * 1.1
