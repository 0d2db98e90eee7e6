"""Handles, threads and the interpreter: in which order they may go."""

import array
import concurrent.futures
import copy
import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
import unittest

import quire
from quire._library import lib
from with_model import ADAPTERS, MODEL, WithModel


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def handles():
    """One of each kind that holds others, with work under way."""
    runtime = quire.Runtime(threads=1)
    model = runtime.load(MODEL)
    adapter = model.load_adapter(ADAPTERS / "attention")
    session = model.session("dca + base(theta=10000)", adapters=[adapter])
    session.feed_tokens([3 + i % 300 for i in range(2000)])
    stream = session.stream(5, ignore_eos=True)
    return [runtime, model, adapter, session, stream]


class Lifetime(unittest.TestCase):
    folder = WithModel.folder

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

    def test_handles_are_released_in_every_order(self):
        """In C, whose objects keep others alive by themselves."""
        for order in itertools.permutations(range(5)):
            owned = handles()
            for index in order:
                owned[index]._finalizer()  # drops the reference without waiting, as the garbage collector does

    def test_handles_are_not_copied(self):
        """A copy would have the handle without a reference; in another process it would be an address of this one."""
        for owned in [*handles(), quire.Cancel()]:
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, f"a {type(owned).__name__} cannot be copied"):
                    copied(owned)

    def test_handles_are_released_by_other_threads(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                owned = handles()
                list(pool.map(lambda handle: handle._finalizer(), owned))

    def test_the_garbage_collector_releases_on_any_thread(self):
        """Objects in a cycle go when a thread that happens to collect finds them."""
        gc.disable()
        self.addCleanup(gc.enable)
        finalizers = []
        for _ in range(5):
            cycle = handles()
            cycle.append(cycle)
            finalizers += [handle._finalizer for handle in cycle[:5]]
            del cycle
        self.assertTrue(all(finalizer.alive for finalizer in finalizers))
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        self.assertFalse(any(finalizer.alive for finalizer in finalizers))

    def test_a_reference_more_and_one_less(self):
        """The functions that other bindings need; Python counts references itself."""
        tokenizers = [quire.Runtime(threads=1).tokenizer(MODEL)]
        for name, handle in zip(("runtime", "model", "adapter", "session", "stream", "tokenizer", "cancel", "store"),
                                [*handles(), *tokenizers, quire.Cancel(), quire.Store(self.folder())]):
            getattr(lib, f"quire_{name}_retain")(handle._handle)
            handle._finalizer()
            getattr(lib, f"quire_{name}_release")(handle._pointer)

    def test_a_thousand_sessions_leave_nothing(self):
        with quire.Runtime(threads=1) as runtime, runtime.load(MODEL) as model:
            def live_and_die(n):
                for _ in range(n):
                    session = model.session("dca", prefix_reuse=False)
                    session.feed("Rain fell on the harbour all night.")
                    self.assertEqual(list(session.stream(2, ignore_eos=True))[-1].finish_reason, "max_tokens")
                gc.collect()
                model.session().close()  # what was released before is gone when this one is
                return sys.getallocatedblocks(), resident_bytes()

            live_and_die(200)
            blocks, resident = live_and_die(100)
            blocks_after, resident_after = live_and_die(1000)
            self.assertLess(blocks_after - blocks, 500)
            self.assertLess(resident_after - resident, 4 << 20)  # a session alone holds 100 KB and more

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
        self.assertTrue(any(level == "info" and "text_256" in message for level, message in lines), lines)

    def test_kept_log_lines(self):
        with quire.Runtime(threads=1, kept_log_lines=2, log_level="info") as runtime:
            self.assertIsNone(runtime.take_log_line())
            for _ in range(3):
                runtime.load(MODEL).close()
            for _ in range(2):
                level, text, n_lost = runtime.take_log_line()
                self.assertEqual((level, n_lost), ("info", 0))
                self.assertIn("text_256", text)
            self.assertIsNone(runtime.take_log_line())
            runtime.load(MODEL).close()
            self.assertEqual(runtime.take_log_line()[2], 1)
        with self.assertRaises(quire.QuireError) as caught:
            quire.Runtime(kept_log_lines=-1)
        self.assertEqual(caught.exception.status, "INVALID_ARGUMENT")

    def test_log_lines_taken_by_several_threads(self):
        """The line that one asked about may be another's when it is taken."""
        with quire.Runtime(threads=1, kept_log_lines=1000, log_level="info") as runtime:
            done = threading.Event()

            def take():
                found = []
                while line := runtime.take_log_line() or not done.is_set():
                    if line is not True:
                        found.append(line[1])
                return found

            folder = self.folder()
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                takers = [pool.submit(take) for _ in range(3)]
                for i in range(1, 41):
                    path = folder / ("long" * i)
                    path.symlink_to(MODEL)
                    runtime.load(path).close()
                done.set()
                lines = [line for taker in takers for line in taker.result()]
            self.assertEqual(len(lines), 40)
            self.assertTrue(all(line.startswith("loaded /") for line in lines), lines)

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

    def test_a_forked_process_leaves_alone_what_it_has(self):
        """It has none of the library's threads, for which a close would wait."""
        script = f"""if True:
            import os, sys, threading, quire
            with quire.Runtime(threads=2) as runtime, runtime.load({str(MODEL)!r}) as model, model.session("dca") as session:
                session.feed_tokens([5] * 50000)
                with session.stream(100) as stream:
                    stream.next()
                    thread = threading.Thread(target=list, args=[stream])
                    thread.start()
                    while not stream._taking.locked():
                        pass
                    if child := os.fork():
                        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                    else:
                        closed = 0
                        for use in lambda: session.n_tokens, stream.cancel, lambda: list(stream), lambda: stream.next(timeout=0):
                            try:
                                use()
                            except quire.QuireError as error:
                                closed += error.status == "CLOSED"
                        sys.exit(closed)
                    stream.cancel()
                    thread.join()"""
        # Python warns of forking where there are threads.
        result = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "4\n", ""))

    def test_a_session_does_all_when_its_model_was_closed(self):
        with quire.Runtime(threads=1) as runtime:
            model = runtime.load(MODEL)
            with model.session("dca") as session:
                session.feed("Rain fell")
                model.close()
                session.prefill()
                with session.fork() as fork, fork.stream(1, constrain=True) as stream:
                    stream.allow([5])
                    self.assertEqual([event.token for event in stream if event.kind == "token"], [5])

    def test_close_while_threads_begin_calls(self):
        """A call keeps the handle that it takes, however soon the close comes."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, interval)
        with quire.Runtime(threads=1) as runtime, runtime.load(MODEL) as model:
            def use(handle, begun):
                begun.wait()
                with self.assertRaises(quire.QuireError) as caught:
                    while True:
                        handle.decode(handle.encode("Rain fell on the harbour"))
                return caught.exception.status

            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                for _ in range(50):
                    tokenizer, begun = model.tokenizer, threading.Barrier(4)
                    users = [pool.submit(use, tokenizer, begun) for _ in range(3)]
                    begun.wait()
                    tokenizer.close()
                    self.assertEqual({user.result() for user in users}, {"CLOSED"})

    def test_memoryview_outlives_the_session(self):
        with quire.Runtime(threads=1) as runtime, runtime.load(MODEL) as model, model.session() as session:
            session.feed_tokens([5, 6, 7])
            session.prefill()
            logits = session.logits()
        self.assertEqual(len(array.array("f", logits.cast("B").tobytes())), 320)


if __name__ == "__main__":
    unittest.main()
