"""What sessions hold: tiers, forks, edits, passages, and what they share."""

import array
import gc
import io
import unittest

import quire
from with_model import MODEL, SOURCE, WithModel


class Documents(WithModel):
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

    def test_budgets_of_a_runtime(self):
        """They hold for its sessions together."""
        self.assertRaises(TypeError, quire.Runtime, kv_attic_budget_bytes=1)
        with quire.Runtime(2, kv_host_budget_bytes=1 << 20) as runtime, runtime.load(MODEL) as model:
            with model.session(overflow="extrapolate") as session, self.assertRaisesRegex(quire.QuireError, "1048576"):
                session.feed_tokens([3 + i % 300 for i in range(4000)])
                session.prefill()

    def test_windows_of_some_layers(self):
        with self.runtime.load(SOURCE / "tests/golden/models/qwen2_window_layers") as model:
            for keeps in (False, True):
                with model.session("full(kv_chunk=16)", keep_behind_windows=keeps) as session:
                    session.feed_tokens([3 + i % 60 for i in range(240)])
                    session.prefill()
                    self.assertEqual(session.stats["kv_chunks_dropped"] == 0, keeps)

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
        tokens = session.tokens
        for text in (b"The sky is grey.", bytearray(b"The sky is grey."), memoryview(b"The sky is grey.")):
            session.edit(text)
            self.assertEqual(session.tokens, tokens)
            session.reset()
            session.feed(text)
            self.assertEqual(session.tokens, tokens)
        session.edit(memoryview(array.array("i", tokens)))
        self.assertEqual(session.tokens, tokens)
        with self.assertRaisesRegex(ValueError, "reuse must be one of exact, approximate"):
            session.edit(ids, reuse="some")
        with self.assertRaisesRegex(quire.QuireError, "UNSUPPORTED.*longheads"):
            self.session("longheads(chunk=16, chunks=4)").edit(ids, reuse="approximate")


if __name__ == "__main__":
    unittest.main()
