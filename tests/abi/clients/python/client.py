"""A client over the raw layer of the Python binding, _ffi.py. Prints what ../README.md says."""

import ctypes
import os
import sys

import _ffi

lib = ctypes.CDLL(os.environ["QUIRE_LIBRARY"])
for name, (result, arguments) in _ffi.FUNCTIONS.items():
    getattr(lib, name).restype = result
    getattr(lib, name).argtypes = arguments
error = _ffi.Error()


def call(function, *arguments):
    status = function(*arguments, ctypes.byref(error))
    if status < 0:
        sys.exit(f"{function.__name__}: {error.message.decode()}")
    return status


def made(function, *arguments):
    handle = ctypes.c_void_p()
    call(function, *arguments, ctypes.byref(handle))
    return handle


def options(cls, init, **fields):
    """Options with the library's defaults, and these fields."""
    struct = cls()
    init(ctypes.byref(struct), ctypes.sizeof(struct))
    for field, value in fields.items():
        setattr(struct, field, value)
    return ctypes.byref(struct)


def print_answer(session):
    stream = made(lib.quire_stream_open, session, options(
        _ffi.StreamOptions, lib.quire_stream_options_init, max_tokens=16, flags=_ffi.STREAM_IGNORE_EOS))
    event = _ffi.Event()
    lib.quire_event_init(ctypes.byref(event), ctypes.sizeof(event))
    tokens = []
    while call(lib.quire_stream_next, stream, -1, ctypes.byref(event)) != _ffi.END:
        if event.kind == _ffi.EVENT_TOKEN:
            tokens.append(event.token)
    print(*tokens)
    n_tokens, n_pending = ctypes.c_int64(), ctypes.c_int64()
    call(lib.quire_session_get_token_counts, session, ctypes.byref(n_tokens), ctypes.byref(n_pending))
    finish = "MAX_TOKENS" if event.finish_reason == _ffi.FINISH_MAX_TOKENS else "another"
    print(finish, n_tokens.value, n_pending.value)
    lib.quire_stream_release(stream)


def print_error():
    strategy = b"full(wheels=3)"
    wrong = options(_ffi.StrategyOptions, lib.quire_strategy_options_init, strategy=strategy, strategy_len=len(strategy),
                    train_len=4096)
    status = lib.quire_strategy_describe(wrong, None, 0, ctypes.byref(ctypes.c_size_t()), ctypes.byref(error))
    print(lib.quire_get_status_name(status).decode(), error.offset)


def main(path):
    runtime = made(lib.quire_runtime_create, options(_ffi.RuntimeOptions, lib.quire_runtime_options_init, n_threads=1))
    model = made(lib.quire_model_load, runtime, path, len(path), None)
    session = made(lib.quire_session_create, model, options(
        _ffi.SessionOptions, lib.quire_session_options_init, strategy=b"dca", strategy_len=3))
    text = b"Once upon a time"
    call(lib.quire_session_feed_text, session, text, len(text), 0)
    print_answer(session)
    print_error()
    lib.quire_session_release(session)
    lib.quire_model_release(model)
    lib.quire_runtime_release(runtime)


main(os.fsencode(sys.argv[1]))
