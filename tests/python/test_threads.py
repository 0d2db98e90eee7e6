"""Several threads and tasks at once, and cancelling from another one."""

import asyncio
import concurrent.futures
import io
import itertools
import os
import queue
import signal
import sys
import threading
import unittest

import quire
from with_model import MODEL, WithModel

LONG = [3 + i % 300 for i in range(200_000)]  # far more than is read before the test cancels


class Threads(WithModel):
    def reader(self, i):
        session = self.session(prefix_reuse=False)
        session.feed(f"The reader turns leaf {i} and reads on.")
        return session

    def expected(self, n):
        return [[event.token for event in self.reader(i).stream(12, ignore_eos=True) if event.kind == "token"]
                for i in range(n)]

    def test_eight_streams_in_threads(self):
        begun = threading.Barrier(8)

        def tokens(i):
            with self.reader(i).stream(12, ignore_eos=True) as stream:
                begun.wait()
                return [event.token for event in stream if event.kind == "token"]

        expected = self.expected(8)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(tokens, range(8))), expected)

    def test_eight_streams_in_tasks(self):
        async def tokens(i):
            async with self.reader(i).stream(12, ignore_eos=True) as stream:
                return [event.token async for event in stream if event.kind == "token"]

        async def all_tokens():
            return await asyncio.gather(*map(tokens, range(8)))

        self.assertEqual(asyncio.run(all_tokens()), self.expected(8))

    def read_long(self):
        session = self.session(overflow="extrapolate", prefill_block=16)
        session.feed_tokens(LONG)
        return session

    def check_cancelled(self, session, last):
        self.assertEqual(last.finish_reason, "cancelled")
        self.assertEqual(session.n_tokens + session.n_pending, len(LONG))
        self.assertGreater(session.n_pending, 0)
        self.assertLessEqual(session.probes["tasks_after_cancel"], 2)  # the threads of the runtime
        self.assertGreater(session.probes["cancel_latency_ns"], 0)
        session.discard_pending()
        session.truncate(10)
        self.assertTrue("".join(session.generate(3, ignore_eos=True)))

    def test_cancel_from_another_thread_while_it_reads(self):
        session = self.read_long()
        stream, reading = session.stream(10), threading.Event()

        def stop():
            reading.wait()
            stream.cancel()

        thread = threading.Thread(target=stop)
        thread.start()
        for event in stream:
            if event.kind == "prefill":
                reading.set()
        thread.join()
        self.check_cancelled(session, event)

    def test_cancel_from_another_task_while_it_reads(self):
        session = self.read_long()

        async def both():
            reading = asyncio.Event()

            async def read(stream):
                async for event in stream:
                    if event.kind == "prefill":
                        reading.set()
                return event

            async with session.stream(10) as stream:
                task = asyncio.create_task(read(stream))
                await reading.wait()
                stream.cancel()
                return await task

        self.check_cancelled(session, asyncio.run(both()))

    def test_two_streams_in_one_loop(self):
        """One goes on to its end while the other waits for its reader."""
        async def both():
            order, one_waits, two_ended = [], asyncio.Event(), asyncio.Event()
            streams = [self.reader(i).stream(6, ignore_eos=True, max_undelivered=1) for i in range(2)]

            async def one():
                async for event in streams[0]:
                    order.append(("one", event.kind))
                    if event.kind == "token" and not one_waits.is_set():
                        one_waits.set()
                        await two_ended.wait()

            async def two():
                await one_waits.wait()
                async for event in streams[1]:
                    order.append(("two", event.kind))
                two_ended.set()

            await asyncio.gather(one(), two())
            return order

        order = asyncio.run(both())
        for name in ("one", "two"):
            self.assertEqual(order.count((name, "token")), 6, order)
        self.assertEqual(order[order.index(("one", "token")) + 1][0], "two", order)
        self.assertEqual(order[-1], ("one", "end"), order)

    def test_ctrl_c_ends_the_wait(self):
        """A signal is seen while next() waits, and the session stays whole."""
        for timeout in (None, 3600):
            session = self.read_long()
            with session.stream(10) as stream:
                stream.next()
                sender = threading.Thread(target=lambda: signal.raise_signal(signal.SIGINT))
                with self.assertRaises(KeyboardInterrupt):
                    sender.start()
                    while True:
                        stream.next(timeout)
            sender.join()
            self.assertEqual(session.n_tokens + session.n_pending, len(LONG))

    def interrupted(self, call):
        """Ctrl-C after call(report) has reported for the first time, while C runs and not one of Python's functions."""
        begun, reports = queue.SimpleQueue(), itertools.count()

        def interrupt():
            begun.get()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        def report(*_):
            if next(reports) == 0:
                begun.put(None)
            else:
                sender.join()

        sender = threading.Thread(target=interrupt)
        sender.start()
        with self.assertRaises(KeyboardInterrupt):
            call(report)
        sender.join()
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_ctrl_c_ends_calls_that_report(self):
        class File(io.BytesIO):
            report = None

            def write(self, data):
                self.report and self.report()
                return super().write(data)

            def read(self, size=-1):
                self.report and self.report()
                return super().read(size)

        def reporting(file, use):
            def call(report):
                file.report = report
                use(file)
            return call

        folder, session, saved = self.folder(), self.session(prefix_reuse=False), File()
        session.fill_random(20_000)
        session.save(saved)
        path = folder / "saved.quire"
        session.save(path)
        calls = [lambda report: session.save(folder / "other.quire", progress=report),
                 lambda report: quire.verify_snapshot(path, progress=report),
                 lambda report: quire.quantize(MODEL, folder / "model.gguf", progress=report),
                 lambda report: self.runtime.load(MODEL, progress=report),
                 reporting(File(), session.save), reporting(saved, quire.verify_snapshot),
                 reporting(saved, quire.describe_snapshot), reporting(saved, self.model.load_session)]
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(60)  # the sender's turn comes when a report has returned to C, not in the middle of it
        for i, call in enumerate(calls):
            with self.subTest(i=i):
                self.interrupted(call)

    def test_ctrl_c_ends_a_file_object_that_waits(self):
        session = self.session(prefix_reuse=False)
        session.fill_random(20_000)
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        sender = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        with open(writer, "wb", buffering=0) as pipe, self.assertRaises(KeyboardInterrupt):
            sender.start()
            session.save(pipe)  # nobody reads from the pipe
        sender.join()
        self.assertEqual(session.n_tokens + session.n_pending, 20_000)

    def test_one_thread_at_a_time_takes_events(self):
        session = self.session()
        session.feed("Rain")
        with session.stream(1, constrain=True) as stream:
            stream.allow()
            self.assertEqual([stream.next().kind for _ in range(2)], ["prefill", "token"])
            with concurrent.futures.ThreadPoolExecutor(1) as pool, stream._taking:
                error = pool.submit(stream.next).exception()
            self.assertEqual((type(error), error.status), (quire.QuireError, "BUSY"))
            self.assertEqual(stream.next().kind, "end")

    def test_fill_random(self):
        with self.model.session("dca") as session:
            session.fill_random(1000, seed=7)
            self.assertEqual(session.n_tokens + session.n_pending, 1000)
            self.assertEqual([event.kind for event in session.stream(1, ignore_eos=True)][-2:], ["token", "end"])
            with self.assertRaisesRegex(quire.QuireError, "INVALID_ARGUMENT"):
                session.fill_random(1000)


if __name__ == "__main__":
    unittest.main()
