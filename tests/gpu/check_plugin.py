"""What libquire-cuda.so exports and needs of a machine: it must load where there is no driver and no CUDA Toolkit.

    check_plugin.py PLUGIN
"""

import re
import subprocess
import sys

NEEDED = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    plugin = sys.argv[1]
    faults = []
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", plugin).splitlines()}
    if exported != {"quire_cuda_entry"}:
        faults.append(f"it exports {sorted(exported)} rather than quire_cuda_entry alone")
    dynamic = run("readelf", "-dW", plugin)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    faults += [f"it needs {name}" for name in sorted(needed - NEEDED)]
    if re.search(r"\((RPATH|RUNPATH)\)", dynamic):
        faults.append("it has a search path of the machine that built it")
    if "NODELETE" not in dynamic:
        faults.append("it can be unloaded, which the CUDA runtime in it does not expect")
    faults += [f"{line.split()[-1]} is unique in the process" for line in run("nm", "-C", plugin).splitlines()
               if " u " in line]
    for fault in faults:
        print(fault)
    sys.exit(bool(faults))


main()
