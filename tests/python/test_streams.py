"""Streams: what is generated, and how it ends."""

import asyncio
import io
import math
import select
import threading
import unittest
from unittest import mock

import quire
from quire import _ffi, _stream
from with_model import WithModel


class Streams(WithModel):
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
        drafting = session()
        self.assertEqual(tokens(drafting.stream(12, ignore_eos=True, draft_tokens=8, draft_match=1)), whole)
        self.assertGreater(drafting.stats["n_drafted"], 0)
        with session().stream(12, ignore_eos=True, max_undelivered=8) as stream:
            first = next(event.token for event in stream if event.kind == "token")
            stream.add_stop("never this, surely", stop_ids=[whole[5]])
            events = list(stream)
            self.assertEqual([first] + tokens(events), whole[:whole.index(whole[5], 1)])
            self.assertEqual((events[-1].finish_reason, events[-1].token), ("stop_id", whole[5]))
        with session().stream(3, ignore_eos=True, constrain=True) as stream:
            self.assertRaises(ValueError, stream.allow, [-1])
            self.assertRaises(ValueError, stream.allow, [320])
            for allowed in ([300, 301], [17], None):
                stream.allow(allowed)
                token = next(event.token for event in stream if event.kind == "token")
                self.assertIn(token, allowed or [token])
            self.assertEqual(list(stream)[-1].finish_reason, "max_tokens")

    def test_coroutines(self):
        def feed():
            session = self.session()
            session.feed("The reader turns the leaves")
            return session

        async def tokens(session, n):
            found = []
            async with session.stream(n, ignore_eos=True) as stream:
                async for event in stream:
                    if event.kind == "token":
                        found.append(event.token)
                        await asyncio.sleep(0)
            return found

        async def both():
            return await asyncio.gather(tokens(feed(), 12), tokens(feed(), 7))

        expected = [event.token for event in feed().stream(12, ignore_eos=True) if event.kind == "token"]
        self.assertEqual(asyncio.run(both()), [expected, expected[:7]])

        async def failing():
            async with feed().stream(1, ignore_eos=True) as stream:
                stream.close()
                async for _ in stream:
                    self.fail("a closed stream has no events")

        with self.assertRaises(quire.QuireError) as caught:
            asyncio.run(failing())
        self.assertEqual(caught.exception.status, "CLOSED")

    def test_two_tasks_do_not_wait_for_one_stream(self):
        goes_on = threading.Event()
        goes_on.set()

        class File(io.BytesIO):
            def read(self, size=-1):
                goes_on.wait()
                return super().read(size)

        file = File()
        with self.session() as session:
            session.feed("The reader turns the leaves " * 20)
            session.prefill()
            session.save(file)

        async def main():
            with self.model.load_session(file) as session:
                session.feed_tokens([5])
                goes_on.clear()  # the first event waits for the file
                with session.stream(1, ignore_eos=True) as stream:
                    try:
                        tasks = [asyncio.ensure_future(stream.__anext__()) for _ in range(2)]
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
                        self.assertEqual([task.done() for task in tasks], [False, True])
                        self.assertEqual(tasks[1].exception().status, "BUSY")
                    finally:
                        goes_on.set()
                    await tasks[0]
                    self.assertEqual([event.kind async for event in stream][-1], "end")

        asyncio.run(main())

    def test_a_task_that_is_cancelled_leaves_its_session_whole(self):
        session = self.session()
        session.feed("The reader turns the leaves " * 20)

        async def interrupted():
            async with session.stream(10_000, ignore_eos=True) as stream:
                async for event in stream:
                    if event.kind == "token":
                        await asyncio.sleep(3600)

        async def main():
            task = asyncio.create_task(interrupted())
            while session.stats["n_generated"] == 0:
                await asyncio.sleep(0.001)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        n_prompt = session.n_pending
        asyncio.run(main())
        self.assertEqual((session.n_tokens, session.n_pending), (n_prompt + 1, 0))
        self.assertEqual(session.stats["n_generated"], 1)
        "".join(session.generate(3, ignore_eos=True))
        self.assertEqual(session.n_tokens, n_prompt + 4)

    def test_deadline(self):
        session = self.session(overflow="extrapolate", prefill_block=16)
        session.feed_tokens([3 + i % 300 for i in range(200_000)])
        for deadline in (0.05, 1e-9):  # less than a millisecond is not none
            events = list(session.stream(deadline=deadline))
            self.assertEqual(events[-1].finish_reason, "deadline")
            self.assertEqual(session.n_tokens + session.n_pending, 200_000)
            self.assertGreater(session.n_pending, 0)

    def test_timeout_and_wait_handle(self):
        session = self.session(prefill_block=16)
        session.feed_tokens([3 + i % 300 for i in range(50_000)])
        with session.stream() as stream:
            while stream.next(timeout=0) is not None:
                pass  # until nothing waits
            self.assertIsNone(stream.next(timeout=-1))  # a time that is over is no time
            handle = stream.wait_handle()
            self.assertEqual(select.select([handle], [], [], 60)[0], [handle])
            self.assertIsNotNone(stream.next(timeout=0))
            stream.cancel()
            self.assertEqual(list(stream)[-1].kind, "end")
            self.assertRaises(StopIteration, stream.next)

    def test_an_interrupt_of_the_wait_loses_nothing(self):
        """Ctrl-C that is noticed when C has returned, for events and for an error, which C returns once."""
        take = _stream._next

        def interrupted(*arguments):
            status = take(*arguments)
            if status == _ffi.OK:
                raise KeyboardInterrupt
            return status

        def all_of(stream):
            events = []
            while not events or events[-1].kind != "end":
                with mock.patch.object(_stream, "_next", interrupted), self.assertRaises(KeyboardInterrupt):
                    stream.next()
                events.append(stream.next(timeout=60))
            return events

        def session():
            session = self.session()
            session.feed("The reader turns the leaves")
            return session

        expected = list(session().stream(5, ignore_eos=True))
        self.assertEqual([event.text for event in all_of(session().stream(5, ignore_eos=True))],
                         [event.text for event in expected])

        def failing(stream, timeout, event, error):
            error._obj.code, error._obj.message = _ffi.ERROR_NUMERIC, b"not a number"
            raise KeyboardInterrupt

        with session().stream(5) as stream:
            with mock.patch.object(_stream, "_next", failing), self.assertRaises(KeyboardInterrupt):
                stream.next()
            with self.assertRaisesRegex(quire.QuireError, "NUMERIC: not a number"):
                stream.next()
            self.assertEqual(list(stream)[-1].kind, "end")

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
        n_pending = session.n_pending
        for wrong in (dict(seed=-1), dict(max_tokens=2**63), dict(stop_ids=[2**31]), dict(logit_bias={2**32: 1.0})):
            self.assertRaises(OverflowError, session.stream, **wrong)
        self.assertRaises(OverflowError, session.truncate, 2**64)
        self.assertRaises(TypeError, session.truncate, "1")
        self.assertRaises(OverflowError, session.feed_tokens, [2**32])
        self.assertRaises(OverflowError, plain.feed_tokens, [7], [2**63])
        self.assertEqual(session.n_pending, n_pending)
        with session.stream(1000) as stream:
            self.assertEqual(status(session.feed, "more"), "BUSY")
        self.assertEqual(status(stream.next), "CLOSED")
        session.close()
        self.assertEqual(status(session.feed, "more"), "CLOSED")


if __name__ == "__main__":
    unittest.main()
