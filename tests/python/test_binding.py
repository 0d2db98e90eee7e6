"""The Python binding on a tiny model, with the standard library alone. CTest sets QUIRE_LIBRARY and PYTHONPATH."""

import array
import ctypes
import gc
import io
import math
import pathlib
import select
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile

import quire
from quire import _ffi
from quire._library import lib

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = SOURCE / "tests" / "golden" / "models" / "text_256"
ADAPTERS = SOURCE / "tests" / "golden" / "adapters"


class Binding(unittest.TestCase):
    """That the declarations say what quire.h says."""

    def test_declarations_are_generated_from_the_interface(self):
        script = SOURCE / "bindings" / "python" / "generate_ffi.py"
        result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_struct_sizes_are_the_librarys(self):
        inits = [name for name in _ffi.FUNCTIONS if name.endswith("_init")]
        self.assertGreater(len(inits), 6)
        for name in inits:
            cls = _ffi.FUNCTIONS[name][1][0]._type_
            options = cls()
            getattr(lib, name)(options, ctypes.sizeof(cls))
            self.assertEqual(options.struct_size, _ffi.SIZES[cls])

    def test_version(self):
        self.assertEqual(lib.quire_get_version(), _ffi.VERSION)
        self.assertRegex(quire.version(), r"^\d+\.\d+\.\d+$")


class Strategies(unittest.TestCase):
    def test_positions_are_the_papers(self):
        matrix = quire.strategy_positions("dca(chunk=6, cap=9)", train_len=10, n_keys=12)
        self.assertEqual(matrix.shape, (12, 12))
        self.assertEqual(matrix.tolist()[11], [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0])
        self.assertTrue(math.isnan(matrix[0, 1]))

    def test_positions_of_condensed_entries(self):
        arguments = ("beacon(window=4, stride=4, reserve=0)", 16)  # the ratio by the length: 28 tokens fit with 2
        with self.assertRaises(quire.QuireError) as caught:
            quire.strategy_positions(*arguments, n_keys=12)
        self.assertIn("expected_tokens", caught.exception.message)
        self.assertIn("ratio=2", quire.strategy_describe(*arguments, expected_tokens=28))
        tokens = quire.strategy_positions(*arguments, n_keys=4, first_query=8, n_queries=1, keys="condensed",
                                          expected_tokens=28)
        self.assertEqual(tokens.tolist(), [[4, 3, 2, 1]])
        entries = quire.strategy_positions(*arguments, n_keys=12, first_query=5, n_queries=1, queries="condensed",
                                           expected_tokens=28)
        self.assertEqual(entries.tolist()[0][8:], [4, 3, 2, 1])
        self.assertTrue(all(math.isnan(distance) for distance in entries.tolist()[0][:8]))
        self.assertRaises(ValueError, quire.strategy_positions, "full", 16, 4, keys="words")

    def test_describe_writes_every_default(self):
        text = quire.strategy_describe("dca", 4096)
        self.assertIn("chunk=3072", text)
        self.assertEqual(quire.strategy_describe(text, 4096), text)

    def test_the_list_is_what_the_parser_takes(self):
        """Every default, choice and edge of a range is read by the parser, and what lies beyond an edge is not."""
        refusals = ("expected an integer from", "expected a number from", "expected one of", "expected a multiple of")

        def read(term, *arguments):
            text = f"{term['name']}({', '.join(arguments)})"
            try:
                return text, quire.strategy_describe(text, 4096, n_heads=8, expected_tokens=4096)
            except quire.QuireError as error:
                return text, error

        def check(term, argument, others, value, good):
            text, found = read(term, *others, f"{argument['name']}={value}")
            refused = isinstance(found, quire.QuireError) and any(r in found.message for r in refusals)
            # Other arguments may forbid an edge, and a model may lack what a term needs.
            self.assertEqual(refused, not good and getattr(found, "status", "") != "UNSUPPORTED", (text, found))
            return found

        n_arguments = 0
        terms = quire.strategies(4096, n_heads=8, expected_tokens=4096)
        self.assertEqual([t["name"] for t in terms if "obstacle" in t], [])
        self.assertGreater(len(terms), 20)
        for term in terms:
            required = {a["name"]: f"{a['name']}={a['min']}" for a in term["arguments"] if a["required"]}
            whole = read(term, *required.values())[1]
            for argument in term["arguments"]:
                n_arguments += 1
                self.assertTrue(argument["description"])
                others = [text for name, text in required.items() if name != argument["name"]]
                others += [argument["with"]] if "with" in argument else []
                for choice in argument.get("choices", []):
                    check(term, argument, others, choice, True)
                if "default" in argument:
                    found = check(term, argument, others, argument["default"], True)
                    if "with" not in argument and isinstance(whole, str) and argument["name"] != "growth":
                        self.assertEqual(found, whole, argument)  # it is the default
                if argument["type"] == "choice":
                    check(term, argument, others, "nonsense", False)
                if "min" in argument:
                    step = argument.get("step", 1)
                    least, most = argument["min"], argument["max"]
                    if argument["type"] == "integer":
                        most = most // step * step
                        if step > 1:
                            check(term, argument, others, least + 1, False)
                    for value, good in ((least, True), (most, True), (least - 1, False), (most + step, False)):
                        check(term, argument, others, f"{value:.9f}" if isinstance(value, float) else value, good)
        self.assertGreater(n_arguments, 70)
        short = {t["name"]: t for t in quire.strategies(1)}
        self.assertIn("expected at least 2", short["dca"]["obstacle"])
        self.assertNotIn("obstacle", short["full"])

    def test_a_wrong_expression_names_its_column(self):
        with self.assertRaises(quire.QuireError) as caught:
            quire.strategy_describe("full(wheels=3)", 4096)
        self.assertEqual((caught.exception.status, caught.exception.offset), ("BAD_STRATEGY", 5))


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.runtime = quire.Runtime(threads=2)
        cls.model = cls.runtime.load(MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()
        cls.runtime.close()

    def session(self, strategy="dca", **options):
        session = self.model.session(strategy, **options)
        self.addCleanup(session.close)
        return session

    def test_info_and_metadata(self):
        info = self.model.info
        self.assertEqual((info["n_layers"], info["n_query_heads"], info["n_kv_heads"], info["head_dim"]), (2, 4, 2, 24))
        self.assertEqual((info["vocab_size"], info["train_len"], info["weight_type"]), (320, 256, "f32"))
        self.assertEqual(self.model.metadata("architecture"), "LlamaForCausalLM")
        with self.assertRaises(quire.QuireError) as caught:
            self.model.metadata("colour")
        self.assertEqual(caught.exception.status, "NOT_FOUND")

    def test_quantize(self):
        self.assertIn("q4_k_m", quire.quantizations())
        with tempfile.TemporaryDirectory() as folder:
            out, seen = pathlib.Path(folder) / "model.gguf", []
            quire.quantize(MODEL, out, "q8_0", threads=1, progress=lambda done, total: seen.append((done, total)))
            self.assertEqual(seen[-1][0], seen[-1][1])
            files = quire.describe_files(out)
            self.assertEqual((files["format"], files["files"]), ("gguf", [str(out)]))
            self.assertIn("Q8_0", {tensor["type"] for tensor in files["tensors"]})
            with self.runtime.load(out) as model:
                self.assertEqual(model.info["weight_type"], "q8_0")
                with self.assertRaises(ValueError):
                    model.session(kv_type="q8_0")
            with self.assertRaises(quire.QuireError) as caught:
                quire.quantize(MODEL, out, "q1")
            self.assertEqual(caught.exception.status, "INVALID_ARGUMENT")
        self.assertEqual(quire.describe_files(MODEL)["format"], "safetensors")

    def test_devices(self):
        devices = self.runtime.devices()
        self.assertEqual((devices[0]["name"], devices[0]["kind"], devices[0]["usable"]), ("cpu", "cpu", True))
        self.assertGreaterEqual(devices[0]["memory_bytes"], devices[0]["free_bytes"])
        self.assertEqual(self.model.metadata("device"), "cpu")
        self.assertIn("only usable", self.model.metadata("device_reason"))
        with self.runtime.load(MODEL, device="cpu") as model:
            self.assertEqual(model.metadata("device_reason"), "asked for")
        for device, status in (("cuda:0", "UNSUPPORTED"), ("gpu", "INVALID_ARGUMENT")):
            with self.assertRaises(quire.QuireError) as caught:
                self.runtime.load(MODEL, device=device)
            self.assertEqual(caught.exception.status, status)

    def test_adapters(self):
        def answer(model, **options):
            with model.session("full + base(theta=10000)", kv_type="f32", **options) as session:
                session.feed("Rain fell on the harbour all night.")
                return "".join(session.generate(24, ignore_eos=True)), session.fingerprint

        adapter = self.model.load_adapter(ADAPTERS / "attention")
        self.assertTrue(adapter.info["replaces_embedding"] and adapter.info["changes_queries_or_keys"])
        self.assertEqual((adapter.info["rank"], adapter.info["replaces_norms"]), (4, False))
        self.assertEqual(adapter.metadata("base_model"), "text_256")
        self.assertEqual(len(adapter.metadata("identity")), 32)
        plain, beside, twice = answer(self.model), answer(self.model, adapters=[adapter]), answer(
            self.model, adapters=[(adapter, 2.0)])
        with self.runtime.load(MODEL, merge=[(ADAPTERS / "attention", 2.0)]) as merged:
            self.assertEqual(answer(merged)[0], twice[0])
        self.assertEqual(len({plain[0], beside[0], twice[0]}), 3)
        self.assertEqual(len({plain[1], beside[1], twice[1]}), 3)
        with self.assertRaises(quire.QuireError) as caught:
            self.model.load_adapter("/no/such/adapter")
        self.assertEqual(caught.exception.status, "NOT_FOUND")
        with self.assertRaises(quire.QuireError) as caught:
            self.model.session(adapters=[(adapter, 0)])
        self.assertIn("scale", caught.exception.message)

    def test_tokenizer(self):
        tokenizer = self.model.tokenizer
        text = "Rain fell on the harbour: 雨 \N{GRINNING FACE}"
        ids = tokenizer.encode(text)
        self.assertEqual(ids[0], tokenizer.bos)
        self.assertEqual(tokenizer.decode(ids), text)
        self.assertEqual(tokenizer.encode(text, bos=False), ids[1:])
        self.assertNotEqual(tokenizer.encode(text, continued=True), ids[1:])  # no dummy prefix
        self.assertEqual(b"".join(tokenizer.token_bytes(t) for t in ids).decode().strip(), text)
        self.assertTrue(tokenizer.is_eos(2))
        self.assertEqual(tokenizer.vocab_size, 320)
        self.assertEqual((tokenizer.encode(""), tokenizer.decode([])), ([tokenizer.bos], ""))

    def test_chat(self):
        self.assertIn("llama2", [template["name"] for template in quire.chat_templates()])
        tokenizer, messages = self.model.tokenizer, [("system", "Be brief."), ("user", "one</s>")]
        with self.assertRaisesRegex(quire.QuireError, "NOT_FOUND"):
            tokenizer.chat_template
        self.assertEqual(tokenizer.render_chat(messages, template="llama2"),
                         "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]")
        self.assertIn("Today Date: 09 Mar 2025\n", tokenizer.render_chat(messages, template="llama3.1", date="2025-03-09"))
        self.assertTrue(tokenizer.render_chat(messages, template="qwen3", thinking=False).endswith("</think>\n\n"))
        self.assertTrue(tokenizer.render_chat(messages, template="qwen3", answer=False).endswith("<|im_end|>\n"))
        ids = tokenizer.encode_chat(messages, template="llama2")
        self.assertFalse(any(map(tokenizer.is_eos, ids)))
        with self.model.session() as session:
            session.feed_messages(messages, template="llama2")
            self.assertEqual(session.n_pending, len(ids))
            "".join(session.generate(3, ignore_eos=True))
            session.feed_messages([("user", "three")])
            self.assertEqual(session.n_tokens, len(ids) + 3)

    def test_without_weights(self):
        own = self.model.tokenizer
        for path in (MODEL, MODEL / "tokenizer.model"):
            alone = self.runtime.tokenizer(path)
            self.assertEqual(alone.encode("Rain fell"), own.encode("Rain fell"))
            self.assertEqual((alone.bos, alone.is_eos(2)), (own.bos, True))
        self.assertEqual(self.runtime.tokenizer(MODEL).vocab_size, own.vocab_size)
        self.runtime.check(MODEL, "dca", expected_tokens=5000)
        for strategy, status in (("full", "OVERFLOW"), ("fool", "BAD_STRATEGY"), ("beacon", "UNSUPPORTED")):
            with self.assertRaises(quire.QuireError) as caught:
                self.runtime.check(MODEL, strategy, expected_tokens=5000)
            self.assertEqual(caught.exception.status, status)
        self.assertEqual(self.runtime.describe_strategy(MODEL, expected_tokens=5000),
                         self.model.describe_strategy(expected_tokens=5000))
        plan = self.runtime.plan_memory(MODEL, 1000, "dca")
        self.assertGreater(plan["kv_host_bytes"], 0)
        self.assertEqual((plan["kv_file_bytes"], plan["kv_device_bytes"]), (0, 0))
        estimate = self.model.estimate(1000, "dca")
        self.assertGreater(estimate["prefill_ns"], 0)
        self.assertEqual(estimate["decode_token_ns"], estimate["decode_token_cold_ns"])
        self.assertEqual(estimate["tier_read_bytes_per_second"], 0)

    def test_tiers(self):
        session = self.session("full", kv_host_budget_bytes=60_000, kv_file_directory="/tmp", prefill_block=16)
        session.feed_tokens([3 + i % 300 for i in range(200)])
        session.prefill()
        host, file = session.tier("host"), session.tier("file")
        self.assertLessEqual(host["bytes_peak"], host["budget_bytes"])
        self.assertGreater(file["bytes_written"], 0)
        self.assertEqual(session.tier("device")["bytes"], 0)
        self.assertRaises(ValueError, session.tier, "attic")
        self.assertRaises(TypeError, self.session, "full", kv_attic_budget_bytes=1)
        with self.assertRaises(quire.QuireError) as caught:
            self.session("full", kv_compressed_budget_bytes=1)
        self.assertEqual(caught.exception.status, "BUDGET")
        session = self.session("full", kv_host_budget_bytes=60_000, kv_compressed_budget_bytes=3_000_000, prefill_block=16,
                               prefix_reuse=False)
        session.feed_tokens([3 + i % 300 for i in range(200)])
        session.prefill()
        compressed = session.tier("compressed")
        self.assertGreater(compressed["bytes_written"], 0)
        self.assertLessEqual(compressed["bytes_peak"], compressed["budget_bytes"])

    def test_fork(self):
        with self.model.session("dca") as session:
            ids = self.model.tokenizer.encode("Every chapter began with a map.")
            session.feed_tokens(ids)
            session.prefill()
            with session.fork() as fork:
                self.assertEqual(fork.tokens, ids)
                fork.feed_tokens(ids[:3])
                self.assertEqual(fork.tokens, ids + ids[:3])
                fork.truncate(len(ids))
                self.assertEqual(list(fork.generate(10)), list(session.generate(10)))

    def test_passages(self):
        pages = [f"page {i} tells of the number {i * 7} and of nothing else. " for i in range(12)]
        text, labels = "".join(pages), []
        for i, page in enumerate(pages):
            begin = labels[-1][1] if labels else 0
            labels.append((begin, begin + len(page), 50 + i))
        with self.model.session("dca") as session:
            session.feed(text, labels=labels)
            document = session.n_pending
            session.feed("which number is it? ")
            list(session.generate(4, cite=True, cite_end=document, ignore_eos=True))
            passages = session.passages(most=3)
            self.assertEqual(len(passages), 3)
            for passage in passages:
                self.assertEqual(set(passage), {"first_token", "n_tokens", "feed", "begin", "end", "label", "label_id", "share"})
                spelt = session._parent.tokenizer.decode(
                    session.tokens[passage["first_token"]:passage["first_token"] + passage["n_tokens"]])
                self.assertEqual(spelt.strip(), text[passage["begin"]:passage["end"]].strip())
                self.assertEqual(passage["label_id"], 50 + passage["label"])
            shares = session.label_shares()
            self.assertEqual([label["id"] for label in shares], [50 + i for i in range(12)])
            self.assertAlmostEqual(sum(label["share"] for label in shares), 1)
            one = session.label_shares(session.n_tokens - 1, 1)
            self.assertNotEqual([label["share"] for label in one], [label["share"] for label in shares])
            list(session.generate(2, ignore_eos=True))
            with self.assertRaises(quire.QuireError) as caught:
                session.passages()
            self.assertEqual(caught.exception.code, -5)

    def test_snapshots(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        path, ids = folder / "saved.quire", [3 + i % 300 for i in range(400)]
        session = self.session("dca", kv_type="f32", prefill_block=64)
        session.feed_tokens(ids[:300])
        session.prefill()
        session.feed_tokens(ids[300:])
        seen = []
        session.save(path, progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(*seen[-1])
        self.assertGreater(len(seen), 2)
        self.assertEqual([done for done, _ in seen], sorted({done for done, _ in seen}))
        described = quire.describe_snapshot(path)
        self.assertEqual((described["n_tokens"], described["n_pending"], described["bytes"]),
                         (300, 100, path.stat().st_size))
        self.assertEqual(described["origin"], {"model": self.model.metadata("identity"), "adapters": [],
                                               "strategy": session.strategy, "kv_type": "f32"})
        expected = "".join(session.generate(12, ignore_eos=True))
        loaded = self.model.load_session(path, prefix_reuse=False)
        self.addCleanup(loaded.close)
        self.assertEqual((loaded.n_tokens, loaded.n_pending, loaded.strategy), (300, 100, session.strategy))
        self.assertEqual("".join(loaded.generate(12, ignore_eos=True)), expected)
        self.assertEqual(loaded.stats["n_prefilled"], 100)
        self.assertEqual(loaded.logits().tolist(), session.logits().tolist())
        tier = loaded.tier("snapshot")
        self.assertGreater(tier["n_hits"], 0)
        self.assertGreater(tier["bytes_read"], 0)
        self.assertEqual((tier["bytes_written"], self.session().tier("snapshot")["n_chunks"]), (0, 0))
        for options, part in ((dict(strategy="full"), "its strategy is dca("), (dict(kv_type="f16"), "its kv_type is f32")):
            with self.assertRaisesRegex(quire.QuireError, "INVALID_ARGUMENT") as caught:
                self.model.load_session(path, **options)
            self.assertIn(part, caught.exception.message)
        with self.assertRaisesRegex(quire.QuireError, "NOT_FOUND"):
            self.model.load_session(folder / "none")

    def test_snapshots_can_be_verified_and_cancelled(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        path, session = folder / "saved.quire", self.session("dca", kv_type="f32")
        session.feed_tokens([3 + i % 300 for i in range(200)])
        session.prefill()
        cancel = quire.Cancel()
        with self.assertRaisesRegex(quire.QuireError, "CANCELLED"):
            session.save(path, progress=lambda done, total: cancel.trigger(), cancel=cancel)
        self.assertEqual(list(folder.iterdir()), [])
        session.save(path)
        with self.assertRaisesRegex(quire.QuireError, "CANCELLED"):
            quire.verify_snapshot(path, cancel=cancel)
        seen = []
        quire.verify_snapshot(path, progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(*seen[-1])
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with self.assertRaisesRegex(quire.QuireError, "BAD_FILE: .* is damaged"):
            quire.verify_snapshot(str(path))
        self.assertEqual(quire.describe_snapshot(path)["n_tokens"], 200)
        path.write_bytes(data[:100])
        with self.assertRaisesRegex(quire.QuireError, "BAD_FILE"):
            quire.describe_snapshot(path)

    def test_stores(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        ids, options = [3 + i % 300 for i in range(400)], dict(strategy="dca", kv_type="f32", prefill_block=64)
        with self.assertRaisesRegex(quire.QuireError, "NOT_FOUND"):
            quire.Store(folder / "store", must_exist=True)
        store = quire.Store(folder / "store", budget_bytes=10_000_000)
        self.assertEqual(store.find(self.model, ids, **options),
                         {"name": "", "n_tokens": 0, "n_computed": 0, "reason": "the store is empty"})
        with self.assertRaisesRegex(quire.QuireError, "NOT_FOUND: the store is empty"):
            store.load(self.model, ids, **options)
        session = self.session(**options)
        session.feed_tokens(ids[:300])
        session.prefill()
        seen = []
        put = store.put(session, title="Größe", progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(*seen[-1])
        self.assertEqual(put["n_tokens"], 300)
        self.assertEqual(store.find(self.model, ids, **options),
                         {"name": put["name"], "n_tokens": 300, "n_computed": 300, "reason": ""})
        self.assertIn("its kv_type is f32; here it is f16", store.find(self.model, ids, "dca")["reason"])
        described = store.describe()
        self.assertEqual((described["budget_bytes"], described["unknown"]), (10_000_000, []))
        [entry] = described["entries"]
        self.assertEqual((entry["name"], entry["title"], entry["n_tokens"], entry["in_use"]),
                         (put["name"], "Größe", 300, False))
        loaded = store.load(self.model, ids, **options)
        self.addCleanup(loaded.close)
        self.assertTrue(store.describe()["entries"][0]["in_use"])
        store.verify(put["name"])
        cancel = quire.Cancel()
        cancel.trigger()
        with self.assertRaisesRegex(quire.QuireError, "CANCELLED"):
            store.verify(put["name"], cancel=cancel)
        store.remove(put["name"])
        self.assertEqual(store.describe()["entries"], [])
        self.assertEqual((loaded.n_tokens, loaded.tokens), (300, ids[:300]))
        for each in (session, loaded):
            each.feed_tokens(ids[300:])
        self.assertEqual("".join(loaded.generate(12, ignore_eos=True)), "".join(session.generate(12, ignore_eos=True)))
        self.assertEqual(loaded.logits().tolist(), session.logits().tolist())
        with self.assertRaisesRegex(quire.QuireError, "INVALID_ARGUMENT"):
            store.remove("../store.lock")
        store.close()
        with self.assertRaisesRegex(quire.QuireError, "CLOSED"):
            store.describe()

    def test_prefix_cache(self):
        ids = [3 + i % 300 for i in range(300)]

        def read(model):
            with model.session("dca(kv_chunk=32)") as session:
                session.feed_tokens(ids)
                with session.stream(4, ignore_eos=True) as stream:
                    events = list(stream)
                prefill = [event for event in events if event.kind == "prefill"][-1]
                return prefill.reused, [event.token for event in events if event.kind == "token"]

        for limit in (0, 1 << 30):
            with quire.Runtime(2, prefix_cache_bytes=limit) as runtime, runtime.load(MODEL) as model:
                first, tokens = read(model)
                kept = runtime.stats
                self.assertEqual((first, kept["prefix_cache_tokens"], kept["prefix_cache_texts"]), (0, 0, int(limit > 0)))
                self.assertEqual(read(model), (288 if limit else 0, tokens))
                self.assertEqual(runtime.stats["prefix_cache_tokens"], 288 if limit else 0)
                self.assertEqual(runtime.stats["prefix_cache_bytes"] > 0, limit > 0)
        with self.assertRaisesRegex(quire.QuireError, "prefix_cache_bytes"):
            quire.Runtime(prefix_cache_bytes=-1)

    def test_prefix_reuse(self):
        ids, memory = [3 + i % 300 for i in range(300)], io.BytesIO()

        def read(session):
            session.feed_tokens(ids)
            with session.stream(4, ignore_eos=True) as stream:
                events = list(stream)
            prefill = [event for event in events if event.kind == "prefill"][-1]
            self.assertEqual((session.stats["n_reused"], session.stats["n_prefilled"]), (prefill.reused, prefill.done))
            return prefill.reused, prefill.reuse_miss, [event.token for event in events if event.kind == "token"]

        first = self.session("dca(kv_chunk=32)", prefix_reuse=False)
        reused, miss, expected = read(first)
        self.assertEqual((reused, miss), (0, "off"))
        first.save(memory)
        # Others read the file object, also when Python has let go of the session that was loaded from it.
        document = self.model.load_session(memory)
        second = self.session("dca(kv_chunk=32)")
        self.assertEqual(read(second), (288, "complete", expected))
        document.close()
        del document, memory
        gc.collect()
        self.assertEqual(read(self.session("dca(kv_chunk=32)")), (288, "complete", expected))

    def test_edit(self):
        ids = [3 + (i * i * i + 7 * i) % 299 for i in range(200)]
        changed = ids[:80] + ids[100:]
        session = self.session("dca(kv_chunk=16)", prefix_reuse=False)
        session.feed_tokens(ids)
        session.prefill()
        with session.fork() as exact:
            self.assertEqual(exact.edit(changed), (180, 80, 0))
            exact.prefill()
            anew = self.session("dca(kv_chunk=16)", prefix_reuse=False)
            anew.feed_tokens(changed)
            anew.prefill()
            self.assertEqual(exact.logits().tolist(), anew.logits().tolist())
        edited = session.edit(changed, reuse="approximate")
        self.assertEqual((edited.n_tokens, edited.n_kept, edited.n_moved), (180, 80, 96))
        prefill = [event for event in session.stream(0) if event.kind == "prefill"][-1]
        self.assertEqual((prefill.moved, prefill.done, session.stats["n_moved"]), (96, 4, 96))
        self.assertEqual(session.edit("The sky is grey.", labels=[(0, 7, 1)]).n_kept, 0)
        with self.assertRaisesRegex(ValueError, "reuse must be one of exact, approximate"):
            session.edit(ids, reuse="some")
        with self.assertRaisesRegex(quire.QuireError, "UNSUPPORTED.*longheads"):
            self.session("longheads(chunk=16, chunks=4)").edit(ids, reuse="approximate")

    def test_snapshots_in_file_objects(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        session, path, memory = self.session("dca(kv_chunk=16)"), folder / "saved.quire", io.BytesIO()
        session.feed_tokens([3 + i % 300 for i in range(300)])
        session.prefill()
        session.save(path)
        session.save(memory)
        self.assertEqual(memory.getvalue(), path.read_bytes())
        self.assertEqual(quire.describe_snapshot(memory), quire.describe_snapshot(path))
        quire.verify_snapshot(memory)
        expected = "".join(session.generate(12, ignore_eos=True))
        with zipfile.ZipFile(folder / "archive.zip", "w") as archive, archive.open("one.quire", "w") as member:
            member.write(memory.getvalue())
        with zipfile.ZipFile(folder / "archive.zip") as archive, archive.open("one.quire") as member:
            loaded = self.model.load_session(member)
            fork = loaded.fork()
            loaded.close()
            del loaded
            gc.collect()
            self.assertEqual("".join(fork.generate(12, ignore_eos=True)), expected)
            fork.close()

    def test_exceptions_of_file_objects(self):
        class Failing(io.BytesIO):
            good = 10**9

            def _count(self):
                self.good -= 1
                if self.good < 0:
                    raise OSError(28, "the shelf is full")

            def write(self, data):
                self._count()
                return super().write(data)

            def read(self, n=-1):
                self._count()
                return super().read(n)

        session, whole = self.session("dca(kv_chunk=16)"), Failing()
        session.feed_tokens([3 + i % 300 for i in range(100)])
        session.prefill()
        session.save(whole)
        list(session.generate(5, ignore_eos=True))
        tokens = session.tokens
        session.truncate(100)
        counting = Failing()
        session.save(counting)
        n_writes = 10**9 - counting.good
        for good in (0, 1, n_writes // 2, n_writes - 1):
            failing = Failing()
            failing.good = good
            with self.assertRaisesRegex(quire.QuireError, "IO: .*the shelf is full") as caught:
                session.save(failing)
            self.assertEqual(caught.exception.os_error, 28)
            self.assertIsInstance(caught.exception.__cause__, OSError)
        loaded = None
        for good in range(100):  # from the first read on, until loading succeeds and the stream fails
            whole.good = good
            with self.assertRaisesRegex(quire.QuireError, "IO: .*the shelf is full"):
                loaded = self.model.load_session(whole, prefix_reuse=False)  # the saved one holds it all
                "".join(loaded.generate(5, ignore_eos=True))
            if loaded:
                break
        whole.good = 10**9
        loaded.prefill()
        list(loaded.generate(105 - loaded.n_tokens, ignore_eos=True))
        self.assertEqual(loaded.tokens, tokens)
        loaded.close()
        for wrong in (lambda n: None, lambda n: b"x" * (n + 1), lambda n: b"", lambda n: "text"):
            whole.read = wrong
            with self.assertRaises(quire.QuireError) as caught:
                quire.verify_snapshot(whole)
            self.assertEqual(caught.exception.status, "IO")
        silent = Failing()
        silent.write = lambda data: None
        with self.assertRaisesRegex(quire.QuireError, "write.. returned None"):
            session.save(silent)

    def test_generates_the_same_text_twice(self):
        texts = []
        for _ in range(2):
            session = self.session()
            session.feed("Rain fell on the harbour all night.")
            texts.append("".join(session.generate(24, temperature=1.0, top_k=40, seed=7, ignore_eos=True)))
            self.assertEqual(session.stats["n_generated"], 24)
        self.assertEqual(texts[0], texts[1])
        self.assertTrue(texts[0])

    def test_events_come_in_order(self):
        session = self.session()
        session.feed("Every chapter began with a map.")
        n_prompt = session.n_pending
        events = list(session.stream(5, ignore_eos=True))
        kinds = [event.kind for event in events]
        self.assertEqual(kinds, sorted(kinds, key=["prefill", "token", "end"].index))
        self.assertEqual(kinds.count("token"), 5)
        self.assertEqual((events[-1].kind, events[-1].finish_reason), ("end", "max_tokens"))
        self.assertEqual((session.n_tokens, session.n_pending), (n_prompt + 5, 0))
        self.assertTrue(all(event.logprob < 0 for event in events if event.kind == "token"))

    def test_auto_gives_notice_once(self):
        session = self.session("auto", expected_tokens=100)
        session.feed("Every chapter began with a map.")
        events = list(session.stream(2, ignore_eos=True))
        self.assertEqual([event.kind for event in events].count("notice"), 1)
        self.assertEqual(events[0].kind, "notice")
        self.assertIn(session.strategy, events[0].message)
        self.assertEqual((events[0].code, events[0].text), ("auto_choice", ""))
        self.assertEqual((events[-1].code, events[-1].message), ("", ""))
        self.assertNotIn("notice", [event.kind for event in session.stream(2, ignore_eos=True)])
        self.assertEqual(session.strategy, self.model.describe_strategy("auto", expected_tokens=100))
        self.assertIn("full", session.strategy)
        self.assertIn("dca", self.model.describe_strategy())
        fresh = self.session("auto")
        fresh.feed("A map.")
        self.assertNotIn("auto chose", "".join(fresh.generate(2)))

    def test_logits_and_scores_agree(self):
        session = self.session(kv_type="f32")
        ids = [1, 300, 301, 302, 303, 304]
        session.feed_tokens(ids)
        session.prefill(score=True, keep_logits=True)
        logits = session.logits(0, len(ids))
        self.assertEqual((logits.shape, logits.format), ((6, 320), "f"))
        scores = session.scores(0, len(ids))
        self.assertTrue(math.isnan(scores[0]))
        for position, row in enumerate(logits.tolist()[:-1], start=1):
            log_sum = math.log(sum(math.exp(value) for value in row))
            self.assertAlmostEqual(scores[position], row[ids[position]] - log_sum, places=4)
        self.assertEqual(session.logits().tolist()[0], logits.tolist()[-1])

    def test_hidden_states(self):
        session = self.session()
        session.feed_tokens([1, 300, 301, 302])
        session.prefill(keep_hidden=True)
        states = session.hidden_states(1, 3)
        self.assertEqual((states.shape, states.format), ((3, self.model.info["hidden_size"]), "f"))
        self.assertEqual(session.hidden_states(3).tolist()[0], states.tolist()[2])

    def test_stop_conditions(self):
        def finish(**options):
            session = self.session()
            session.feed("The reader turns the leaves")
            events = list(session.stream(12, ignore_eos=True, **options))
            return events, "".join(event.text for event in events)

        events, text = finish()
        tokens = [event.token for event in events if event.kind == "token"]
        events, _ = finish(stop_ids=[tokens[3]])
        self.assertEqual((events[-1].finish_reason, events[-1].token), ("stop_id", tokens[3]))
        stop = text[len(text) // 2:]
        events, cut = finish(stop=["never this, surely", stop])
        self.assertEqual((events[-1].finish_reason, events[-1].stop_index), ("stop_string", 1))
        self.assertEqual(cut, text[:text.index(stop)])

    def test_sampling_chain(self):
        def tokens(**options):
            session = self.session()
            session.feed("The reader turns the leaves")
            return [event for event in session.stream(12, ignore_eos=True, **options) if event.kind == "token"]

        def ids(**options):
            return [event.token for event in tokens(**options)]

        greedy = tokens(top_logprobs=4)
        self.assertEqual(ids(temperature=0.9, top_k=30, seed=4),
                         ids(samplers=[("temperature", dict(a=0.9)), ("top_k", dict(n=30))], seed=4))
        for event in greedy:
            self.assertEqual(len(event.top_logprobs), 4)
            self.assertEqual(event.top_logprobs[0], (event.token, event.logprob))
        self.assertEqual(ids(logit_bias={greedy[0].token: float("-inf")})[0], greedy[0].top_logprobs[1][0])
        self.assertEqual(tokens()[0].top_logprobs, [])
        best = ("top_k", dict(n=1))
        once = ids(samplers=[("penalties", dict(a=1, c=1000)), best])
        self.assertEqual(len(set(once)), 12)
        for breakers in (None, [], ["\n", "e"]):
            self.assertEqual(len(ids(samplers=[("dry", dict(a=0.8, b=1.75, m=2)), best], dry_breakers=breakers)), 12)
        held = ids(stop_ids=[greedy[0].token], min_tokens=3)
        self.assertGreaterEqual(len(held), 3)
        self.assertNotIn(greedy[0].token, held)
        self.assertRaises(ValueError, tokens, samplers=[("mirostat", {})])
        with self.assertRaises(quire.QuireError) as caught:
            tokens(logit_bias={5: 1, 320: 1})
        self.assertEqual((caught.exception.status, caught.exception.offset), ("INVALID_TOKEN", 1))

    def test_reading_along(self):
        def session():
            session = self.session()
            session.feed("The reader turns the leaves")
            return session

        def tokens(stream):
            return [event.token for event in stream if event.kind == "token"]

        whole = tokens(session().stream(12, ignore_eos=True))
        self.assertEqual(tokens(session().stream(12, ignore_eos=True, max_undelivered=8)), whole)
        with session().stream(12, ignore_eos=True, max_undelivered=8) as stream:
            first = next(event.token for event in stream if event.kind == "token")
            stream.add_stop("never this, surely", stop_ids=[whole[5]])
            events = list(stream)
            self.assertEqual([first] + tokens(events), whole[:whole.index(whole[5], 1)])
            self.assertEqual((events[-1].finish_reason, events[-1].token), ("stop_id", whole[5]))
        with session().stream(3, ignore_eos=True, constrain=True) as stream:
            for allowed in ([300, 301], [17], None):
                stream.allow(allowed)
                token = next(event.token for event in stream if event.kind == "token")
                self.assertIn(token, allowed or [token])
            self.assertEqual(list(stream)[-1].finish_reason, "max_tokens")

    def test_deadline(self):
        session = self.session(overflow="extrapolate", prefill_block=16)
        session.feed_tokens([3 + i % 300 for i in range(200_000)])
        events = list(session.stream(deadline=0.05))
        self.assertEqual(events[-1].finish_reason, "deadline")
        self.assertEqual(session.n_tokens + session.n_pending, 200_000)
        self.assertGreater(session.n_pending, 0)

    def test_cancel_from_another_thread(self):
        session = self.session(overflow="extrapolate", prefill_block=16)
        session.feed_tokens([3 + i % 300 for i in range(200_000)])
        stream = session.stream(10)
        timer = threading.Timer(0.05, stream.cancel)
        timer.start()
        begin = time.monotonic()
        last = list(stream)[-1]
        timer.join()
        self.assertEqual(last.finish_reason, "cancelled")
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(session.n_tokens + session.n_pending, 200_000)
        self.assertGreater(session.n_pending, 0)
        session.discard_pending()
        session.reset()
        self.assertEqual((session.n_tokens, session.n_pending), (0, 0))

    def test_timeout_and_wait_handle(self):
        session = self.session(prefill_block=16)
        session.feed_tokens([3 + i % 300 for i in range(50_000)])
        with session.stream() as stream:
            while stream.next(timeout=0) is not None:
                pass  # until nothing waits
            handle = stream.wait_handle()
            self.assertEqual(select.select([handle], [], [], 60)[0], [handle])
            self.assertIsNotNone(stream.next(timeout=0))
            stream.cancel()
            self.assertEqual(list(stream)[-1].kind, "end")
            self.assertRaises(StopIteration, stream.next)

    def test_errors(self):
        def status(function, *arguments, **options):
            with self.assertRaises(quire.QuireError) as caught:
                function(*arguments, **options)
            self.assertTrue(caught.exception.message)
            return caught.exception.status

        session = self.session()
        self.assertEqual(status(session.stream, 1), "EMPTY")
        self.assertEqual(status(session.feed, b"half a \xe9\x9b"), "INVALID_TEXT")
        self.assertEqual(status(session.feed_tokens, [5, 320]), "INVALID_TOKEN")
        self.assertEqual(status(session.feed_tokens, [5, 6], [9, 9]), "UNSUPPORTED")
        plain = self.session("full")
        self.assertEqual(status(plain.feed_tokens, [5, 6], [9, 9]), "INVALID_ARGUMENT")
        self.assertRaises(ValueError, plain.feed_tokens, [5, 6], [9])
        plain.feed_tokens([5, 6], [9, 11])
        self.assertEqual((plain.n_tokens, plain.n_pending), (0, 2))
        self.assertEqual(status(self.model.session, "full("), "BAD_STRATEGY")
        self.assertEqual(status(self.runtime.load, "/no/such/folder"), "NOT_FOUND")
        self.assertEqual(status(session.logits, 7), "NOT_FOUND")
        self.assertRaises(ValueError, self.model.session, kv_type="f64")
        short = self.session("full")
        short.feed_tokens([3] * 250)
        self.assertEqual(status(short.stream, 100), "OVERFLOW")
        session.feed("Rain")
        with session.stream(1000) as stream:
            self.assertEqual(status(session.feed, "more"), "BUSY")
        self.assertEqual(status(stream.next), "CLOSED")
        session.close()
        self.assertEqual(status(session.feed, "more"), "CLOSED")

    def test_load_can_be_watched_and_cancelled(self):
        seen = []
        self.runtime.load(MODEL, progress=lambda done, total: seen.append((done, total))).close()
        self.assertEqual(*seen[-1])
        cancel = quire.Cancel()
        cancel.trigger()
        with self.assertRaises(quire.QuireError) as caught:
            self.runtime.load(MODEL, cancel=cancel)
        self.assertEqual(caught.exception.status, "CANCELLED")

    def test_adapter_can_be_watched_and_cancelled(self):
        seen = []
        self.model.load_adapter(ADAPTERS / "everything", progress=lambda done, total: seen.append((done, total))).close()
        self.assertEqual(*seen[-1])
        self.assertEqual([done for done, _ in seen], sorted(done for done, _ in seen))
        cancel = quire.Cancel()
        with self.assertRaises(quire.QuireError) as caught:
            self.model.load_adapter(ADAPTERS / "everything", progress=lambda done, total: cancel.trigger(), cancel=cancel)
        self.assertEqual(caught.exception.status, "CANCELLED")


class Lifetime(unittest.TestCase):
    def test_handles_may_go_in_any_order(self):
        runtime = quire.Runtime(threads=1)
        model = runtime.load(MODEL)
        session = model.session()
        session.feed("Rain fell")
        stream = session.stream(3, ignore_eos=True)
        del runtime
        model.close()
        del session
        gc.collect()
        self.assertEqual(list(stream)[-1].finish_reason, "max_tokens")
        with self.assertRaises(quire.QuireError) as caught:
            model.session()
        self.assertEqual(caught.exception.status, "CLOSED")

    def test_runtime_close_ends_everything(self):
        with quire.Runtime(threads=1) as runtime:
            session = runtime.load(MODEL).session("dca")
            session.feed_tokens([3 + i % 300 for i in range(100_000)])
            stream = session.stream(1)
        with self.assertRaises(quire.QuireError) as caught:
            list(stream)
        self.assertEqual(caught.exception.status, "CLOSED")

    def test_log_callback(self):
        lines = []
        runtime = quire.Runtime(threads=1, log=lambda level, message: lines.append((level, message)), log_level="info")
        runtime.load(MODEL).close()
        runtime.close()
        self.assertTrue(any("text_256" in message for _, message in lines), lines)

    def test_exit_in_the_middle(self):
        """With work under way, handles open and a log function in place."""
        script = f"""if True:
            import quire
            runtime = quire.Runtime(threads=4, log=lambda level, message: None, log_level="debug")
            session = runtime.load({str(MODEL)!r}).session("dca", prefill_block=16)
            session.feed_tokens([5] * 50000)
            stream = session.stream(100)
            stream.next()
            print("leaving")"""
        for _ in range(5):
            result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "leaving\n", ""))

    def test_memoryview_outlives_the_session(self):
        with quire.Runtime(threads=1) as runtime, runtime.load(MODEL) as model, model.session() as session:
            session.feed_tokens([5, 6, 7])
            session.prefill()
            logits = session.logits()
        self.assertEqual(len(array.array("f", logits.cast("B").tobytes())), 320)


if __name__ == "__main__":
    unittest.main()
