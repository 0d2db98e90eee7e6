"""llama.cpp's quantiser."""

import ctypes
import os

import llama_cpp


@llama_cpp.llama_log_callback
def no_log(*_):
    pass


def quantize_by_peer(source, out, file_type):
    """file_type: what follows LLAMA_FTYPE_ in llama.h."""
    llama_cpp.llama_log_set(no_log, None)  # it tells of every tensor
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = len(os.sched_getaffinity(0))
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{file_type}")
    parameters.allow_requantize = True
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(parameters)) == 0
