"""Blocks of each quantised type with random bytes, and what the gguf package makes of them: tests/data/quantization.

    pip install gguf numpy
    make_quantization.py OUTPUT_FILE

A line: type, bytes of a block, the float32 elements (both as hexadecimal bytes).
"""

import sys

import gguf
import numpy as np

TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"]
# Where a block of the type has its float16 numbers.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0]}


def main():
    random = np.random.default_rng(1)
    with open(sys.argv[1], "w") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            for _ in range(256 // elements * 2):
                block = random.integers(0, 256, size, dtype=np.uint8)
                for at in HALVES[name]:
                    block[at:at + 2] = np.frombuffer(np.float16(random.normal()).tobytes(), np.uint8)
                values = gguf.quants.dequantize(block[None], kind).astype(np.float32)
                assert values.size == elements
                out.write(f"{name.lower()} {block.tobytes().hex()} {values.tobytes().hex()}\n")


if __name__ == "__main__":
    main()
