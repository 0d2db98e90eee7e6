"""Quantises a GGUF file with llama.cpp's quantiser: quantize.py SOURCE OUT MIXTURE (Q3_K_M, IQ4_XS, ...; ALL_F32: floats)."""

import ctypes
import os
import sys

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


if __name__ == "__main__":
    _, source, out, mixture = sys.argv
    quantize_by_peer(source, out, mixture if mixture.startswith("ALL_") else f"MOSTLY_{mixture}")
