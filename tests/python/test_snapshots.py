"""Sessions in files, file objects and stores."""

import gc
import io
import unittest
import zipfile

import quire
from with_model import WithModel


class Snapshots(WithModel):
    def test_snapshots(self):
        folder = self.folder()
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
        folder = self.folder()
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
        folder = self.folder()
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

    def test_snapshots_in_file_objects(self):
        folder = self.folder()
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

        class Interrupted(io.RawIOBase):
            def write(self, data):
                raise KeyboardInterrupt

        self.assertRaises(KeyboardInterrupt, session.save, Interrupted())
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


if __name__ == "__main__":
    unittest.main()
