"""Models: what they are made of, tokenizers, chat templates, adapters."""

import functools
import os
import pathlib
import tempfile
import unittest

import quire
from with_model import ADAPTERS, MODEL, WithModel


class Models(WithModel):
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
            packed = pathlib.Path(folder) / "packed"
            self.runtime.load(out, packed_directory=packed).close()
            self.assertEqual([file.suffix for file in packed.iterdir()], [".packed"])
            self.assertGreater(self.runtime.plan_memory(out, 512, packed_directory=packed)["mapped_bytes"], 0)
            self.activations_matter(out)
            with self.assertRaises(quire.QuireError) as caught:
                quire.quantize(MODEL, out, "q1")
            self.assertEqual(caught.exception.status, "INVALID_ARGUMENT")
        self.assertEqual(quire.describe_files(MODEL)["format"], "safetensors")

    def activations_matter(self, path):
        """Rounded activations change logits a little, and a snapshot says with which ones it was made."""
        logits, plans = {}, {}
        snapshot = path.parent / "rounded.quire"
        for activations in ("default", "int8", "f32"):
            plans[activations] = self.runtime.plan_memory(path, 512, activations=activations)["scratch_bytes"]
            with self.runtime.load(path, activations=activations) as model, model.session() as session:
                session.feed("The quick brown fox jumps over the lazy dog.")
                session.prefill()
                logits[activations] = session.logits().tolist()[0]
                if activations == "int8":
                    session.save(snapshot)
                elif activations == "f32":
                    with self.assertRaises(quire.QuireError) as caught:
                        model.load_session(snapshot)
                    self.assertRegex(str(caught.exception), "its model is .* activation_type")
        self.assertEqual(logits["default"], logits["int8"])
        differences = [abs(a - b) for a, b in zip(logits["int8"], logits["f32"])]
        largest = max(abs(x) for x in logits["f32"])
        self.assertTrue(0 < max(differences) < 0.05 * largest, (max(differences), largest))
        self.assertEqual(plans["default"], plans["int8"])
        self.assertGreaterEqual(plans["int8"], plans["f32"])
        with self.assertRaises(ValueError):
            self.runtime.load(path, activations="f16")

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
        for n in (1, 100, 1000):  # three tokens each
            self.assertEqual(tokenizer.decode(tokenizer.encode("雨" * n)), "雨" * n)
            self.assertIn("雨" * n, tokenizer.decode(tokenizer.encode_chat([("user", "雨" * n)], template="llama2")))
        self.assertTrue(tokenizer.is_eos(2))
        self.assertEqual(tokenizer.vocab_size, 320)
        self.assertEqual((tokenizer.encode(""), tokenizer.decode([])), ([tokenizer.bos], ""))

    def test_a_name_that_is_no_unicode(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.fsdecode(os.fsencode(folder) + b"/model \xff")
            with self.assertRaisesRegex(quire.QuireError, "NOT_FOUND: .*/model \N{REPLACEMENT CHARACTER}"):
                self.runtime.load(name)
            os.symlink(MODEL, name)
            with self.runtime.load(name) as model:
                self.assertEqual(model.info, self.model.info)

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
        named = [{"role": role, "content": text} for role, text in messages]
        self.assertEqual(tokenizer.encode_chat(named, template="llama2"), ids)
        with self.assertRaisesRegex(KeyError, "content"):
            tokenizer.encode_chat([{"role": "user", "text": "one"}], template="llama2")
        self.assertFalse(any(map(tokenizer.is_eos, ids)))
        self.assertRaises(OverflowError, tokenizer.is_eos, 2**32 + 2)
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
        self.model.check("dca", expected_tokens=5000)
        for strategy, status in (("full", "OVERFLOW"), ("fool", "BAD_STRATEGY"), ("beacon", "UNSUPPORTED")):
            for check in (self.model.check, functools.partial(self.runtime.check, MODEL)):
                with self.assertRaises(quire.QuireError) as caught:
                    check(strategy, expected_tokens=5000)
                self.assertEqual(caught.exception.status, status)
        self.assertEqual(self.runtime.describe_strategy(MODEL, expected_tokens=5000),
                         self.model.describe_strategy(expected_tokens=5000))
        golden = os.path.join(os.path.dirname(__file__), "..", "golden")
        beacon = {"path": os.path.join(golden, "models", "text_256"), "beacon": os.path.join(golden, "beacon", "plugin")}
        self.runtime.check(**beacon, strategy="beacon(ratio=2)", kv_type="f32", device="cpu")
        self.assertIn("beacon(", self.runtime.describe_strategy(**beacon, strategy="beacon(ratio=2)"))
        self.assertGreater(self.runtime.plan_memory(**beacon, n_tokens=100, strategy="beacon(ratio=2)")["kv_host_bytes"], 0)
        plan = self.runtime.plan_memory(MODEL, 1000, "dca")
        self.assertGreater(plan["kv_host_bytes"], 0)
        self.assertEqual((plan["kv_file_bytes"], plan["kv_device_bytes"]), (0, 0))
        estimate = self.model.estimate(1000, "dca")
        self.assertGreater(estimate["prefill_ns"], 0)
        self.assertEqual(estimate["decode_token_ns"], estimate["decode_token_cold_ns"])
        self.assertEqual(estimate["tier_read_bytes_per_second"], 0)

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


if __name__ == "__main__":
    unittest.main()
