"""Every status of failure, raised and caught."""

import copy
import ctypes
import gc
import json
import pickle
import shutil
import struct
import sys
import unittest
import weakref

import quire
from quire import _ffi
from quire._calls import _call, _options
from quire._library import lib
from with_model import MODEL, WithModel

LONG = [3 + i % 300 for i in range(50_000)]


def with_nan(folder):
    """The model, but for its last norm, which makes NaN of everything."""
    path = folder / "nan"
    shutil.copytree(MODEL, path)
    weights = bytearray((path / "model.safetensors").read_bytes())
    (n_header,) = struct.unpack_from("<Q", weights)
    begin, end = json.loads(weights[8:8 + n_header])["model.norm.weight"]["data_offsets"]
    weights[8 + n_header + begin:8 + n_header + end] = b"\xff" * (end - begin)
    (path / "model.safetensors").write_bytes(weights)
    return path


class Failing:
    """A binary file object on which nothing works."""

    def seek(self, *_):
        return 100

    def read(self, n):
        raise OSError(5, "the shelf is gone")


class Errors(WithModel):
    def reported(self, code):
        """What nothing can ask for: what a function that reports it is made into."""
        def report(error):
            error.contents.message = b"it is so"
            return code
        _call(ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_ffi.Error))(report))

    def internal(self):
        """A bug of the library."""
        self.reported(_ffi.ERROR_INTERNAL)

    def device(self):
        """It takes a GPU."""
        self.reported(_ffi.ERROR_DEVICE)

    def invalid_argument(self):
        quire.Runtime(threads=-1)

    def out_of_memory(self):
        """An allocator that has nothing; Runtime takes none, so C is asked."""
        allocate, free = _ffi.AllocCallback(lambda *_: None), _ffi.FreeCallback(lambda *_: None)
        runtime, model, path = ctypes.c_void_p(), ctypes.c_void_p(), str(MODEL).encode()
        _call(lib.quire_runtime_create, _options(_ffi.RuntimeOptions, n_threads=1, alloc=allocate, free=free),
              ctypes.byref(runtime))
        try:
            _call(lib.quire_model_load, runtime, path, len(path), None, ctypes.byref(model))
        finally:
            _call(lib.quire_runtime_close, runtime)  # afterwards nothing uses the allocator
            lib.quire_runtime_release(runtime)

    def io(self):
        quire.verify_snapshot(Failing())

    def not_found(self):
        self.runtime.load("/no/such/folder")

    def bad_file(self):
        path = self.folder() / "damaged.quire"
        path.write_bytes(b"no snapshot at all")
        quire.describe_snapshot(path)

    def unsupported(self):
        self.runtime.check(MODEL, "beacon")

    def busy(self):
        session = self.session()
        session.feed("Rain")
        with session.stream(5):
            session.feed("more")

    def closed(self):
        session = self.session()
        session.close()
        session.feed("more")

    def cancelled(self):
        cancel = quire.Cancel()
        cancel.trigger()
        self.runtime.load(MODEL, cancel=cancel)

    def overflow(self):
        session = self.session("full")
        session.feed_tokens(LONG[:250])
        session.stream(100)

    def budget(self):
        session = self.session(kv_host_budget_bytes=1000)
        session.feed_tokens(LONG[:250])
        session.prefill()

    def bad_strategy(self):
        self.model.session("full(")

    def invalid_text(self):
        self.session().feed(b"half a \xe9\x9b")

    def invalid_token(self):
        self.session().feed_tokens([5, 320])

    def numeric(self):
        with self.runtime.load(with_nan(self.folder())) as model, model.session() as session:
            session.feed("Rain")
            "".join(session.generate(1))

    def empty(self):
        self.session().stream(1)

    def buffer_too_small(self):
        """Only C can be asked for less than there is."""
        session, ids, needed = self.session(), (ctypes.c_int32 * 1)(), ctypes.c_size_t()
        session.feed_tokens([5, 6, 7])
        _call(lib.quire_session_get_tokens, session._handle, ids, 1, ctypes.byref(needed))

    def test_every_status(self):
        statuses = {name.removeprefix("ERROR_"): value for name, value in vars(_ffi).items()
                    if name.startswith("ERROR_") and name != "ERROR_MESSAGE_BYTES"}
        self.assertEqual(len(statuses), 19)
        for status, code in statuses.items():
            with self.subTest(status=status), self.assertRaises(quire.QuireError) as caught:
                getattr(self, status.lower())()
            error = caught.exception
            self.assertEqual((error.status, error.code), (status, code))
            self.assertTrue(error.message)
            self.assertIn(error.message, str(error))

    def test_what_an_error_points_at(self):
        for function, offset in ((self.invalid_token, 1), (self.invalid_text, 7), (self.bad_strategy, 5)):
            with self.assertRaises(quire.QuireError) as caught:
                function()
            self.assertEqual(caught.exception.offset, offset)
        with self.assertRaises(quire.QuireError) as caught:
            self.io()
        self.assertEqual(caught.exception.os_error, 5)
        self.assertIsInstance(caught.exception.__cause__, OSError)

    def test_an_error_crosses_to_another_process(self):
        """A pool of processes pickles what its workers raise; where that fails, it breaks."""
        with self.assertRaises(quire.QuireError) as caught:
            self.invalid_text()
        for again in (pickle.loads(pickle.dumps(caught.exception)), copy.copy(caught.exception)):
            self.assertEqual((str(again), vars(again)), (str(caught.exception), vars(caught.exception)))

    def test_a_session_goes_on_after_an_error(self):
        session = self.session()
        session.feed("Rain fell")
        n = session.n_pending
        for function, argument in ((session.feed, b"\xff"), (session.feed_tokens, [320])):
            self.assertRaises(quire.QuireError, function, argument)
        self.assertEqual((session.n_tokens, session.n_pending), (0, n))
        self.assertTrue("".join(session.generate(3, ignore_eos=True)))


class Callbacks(WithModel):
    """What functions of Python's raise while C calls them."""

    def test_progress(self):
        class Enough(Exception):
            pass

        def report(done, total):
            raise Enough(done, total)

        path = self.folder() / "saved.quire"
        session = self.session()
        session.feed("Rain fell")
        session.prefill()
        session.save(path)
        for call in (lambda: self.runtime.load(MODEL, progress=report),
                     lambda: quire.quantize(MODEL, path.parent / "model.gguf", "q8_0", progress=report),
                     lambda: session.save(path.parent / "other.quire", progress=report),
                     lambda: quire.verify_snapshot(path, progress=report)):
            self.assertRaises(Enough, call)
        cancel = quire.Cancel()
        with self.assertRaises(KeyboardInterrupt):
            self.runtime.load(MODEL, progress=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt), cancel=cancel)
        self.assertEqual(sorted(p.name for p in path.parent.iterdir()), ["saved.quire"])
        quire.verify_snapshot(path)

    def test_what_raises_leaves_nothing(self):
        """Not even the model that was loaded when the last report raised."""
        class Late:
            def __call__(self, done, total):
                if done == total:
                    raise ValueError(done, total)

        def models():
            gc.collect()
            return sum(isinstance(one, quire.Model) for one in gc.get_objects())

        n_models = models()
        late = Late()
        alive = weakref.ref(late)
        try:
            self.runtime.load(MODEL, progress=late)
            self.fail("it was loaded")
        except ValueError:
            pass
        del late
        self.assertEqual(models(), n_models)
        self.assertIsNone(alive())

    def test_log(self):
        """Python tells sys.unraisablehook, and the library goes on."""
        seen = []
        before, sys.unraisablehook = sys.unraisablehook, seen.append
        try:
            with quire.Runtime(threads=1, log=lambda level, message: 1 / 0, log_level="info") as runtime:
                runtime.load(MODEL).close()
        finally:
            sys.unraisablehook = before
        self.assertEqual({type(problem.exc_value) for problem in seen}, {ZeroDivisionError})


if __name__ == "__main__":
    unittest.main()
