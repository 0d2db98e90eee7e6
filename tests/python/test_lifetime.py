"""Handles, threads and the interpreter: in which order they may go."""

import array
import gc
import subprocess
import sys
import unittest

import quire
from with_model import MODEL


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
