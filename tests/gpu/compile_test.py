"""Compiles the CUDA kernels with nvcc, and looks at what the assembler says: those that keep their numbers in
registers may not spill any, nor have arrays in local memory, and products of warpgroups must not wait for each other.

    compile_test.py SOURCE_DIR [ARCHITECTURE...]

ARCHITECTURE: 90a and so on; all that are released for if none is given. Ends with status 77 without nvcc.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

RELEASED = ["80", "90a", "120"]
IN_REGISTERS = {"attend_in_chunks.cu", "attention.cu", "attention_by_keys.cu", "attention_by_warpgroups.cu", "attention_by_warps.cu",
                "attention_shares.cu", "choose_chunks.cu", "dequantize_rows.cu", "elementwise.cu", "gather.cu", "list_chosen.cu",
                "matmul_rows.cu", "matmul_rows_quantized.cu", "narrow_kv.cu", "rank_logits.cu", "representations.cu", "rms_norm.cu",
                "store_kv.cu"}
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_(root, source, architecture, folder):
    """What is wrong with a source: a text, empty if nothing."""
    command = ["nvcc", "-std=c++20", "--expt-relaxed-constexpr", "-Xcompiler=-Wall,-Wextra", "-Werror=all-warnings",
               f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-Xptxas=-v", f"-I{root}", "-c", source,
               "-o", folder / "object.o"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        return run.stdout + run.stderr
    kernel, faults = "", []
    for line in run.stderr.splitlines():
        if "Compiling entry function" in line:
            kernel = line.split("'")[1]
        memory = MEMORY.search(line)
        if source.name in IN_REGISTERS and memory and memory.groups() != ("0", "0", "0"):
            faults.append(f"{kernel}: {line.strip()}")
        if "wgmma" in line and "serialized" in line:
            faults.append(line.strip())
    return "\n".join(faults)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which("nvcc"):
        print("no nvcc: the CUDA kernels were not compiled")
        sys.exit(77)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((root / "kernels/cuda").glob("*.cu")):
            for architecture in sys.argv[2:] or RELEASED:
                fault = compile_(root, source, architecture, pathlib.Path(folder))
                print(f"{source.name} for sm_{architecture}: {fault or 'ok'}", flush=True)
                failed = failed or bool(fault)
    sys.exit(failed)


main()
