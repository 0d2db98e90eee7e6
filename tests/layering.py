"""Who may include whom (the rule of lib/README.md), checked over the #include lines of lib and kernels.

    layering.py SOURCE_DIR
"""

import pathlib
import re
import sys

# Folder: the folders that its files may include, besides their own.
ALLOWED = {
    "lib/abi": {"lib/session", "lib/model", "lib/strategy", "lib/kv", "lib/backend", "lib/plan", "lib/support",
                "lib/chat", "lib/format", "lib/tokenizer", "include/quire"},
    "lib/session": {"lib/model", "lib/strategy", "lib/kv", "lib/backend", "lib/plan", "lib/support", "lib/chat",
                    "lib/tokenizer", "lib/format"},
    "lib/model": {"lib/strategy", "lib/kv", "lib/backend", "lib/plan", "lib/support", "lib/format", "lib/tokenizer"},
    "lib/strategy": {"lib/plan", "lib/support"},
    "lib/kv": {"lib/backend", "lib/plan", "lib/support"},
    "lib/backend": {"lib/plan", "lib/support", "kernels"},
    "lib/plan": {"lib/support"},
    "lib/chat": {"lib/tokenizer", "lib/format", "lib/support"},
    "lib/format": {"lib/support"},
    "lib/tokenizer": {"lib/format", "lib/support", "lib/third_party"},
    "lib/third_party": set(),
    "lib/support": set(),
    "kernels": set(),
}
KERNELS_MAY_INCLUDE = {"lib/support/types.h", "lib/support/element.h", "lib/support/int4.h",
                       "lib/support/os_cpu_features.h", "lib/support/quantization.h"}

# Headers of the operating system stay in lib/support/os_*.
OS_HEADER = re.compile(r"<(sys/.*|unistd\.h|fcntl\.h|dirent\.h|dlfcn\.h|pthread\.h|sched\.h|signal\.h|poll\.h|"
                       r"semaphore\.h|spawn\.h|windows\.h|linux/.*|csignal)>")
OS_EXCEPTIONS = {"lib/support/thread_pool.cc": {"<pthread.h>", "<signal.h>"},
                 # Part of the plugin, which contains nothing of lib.
                 "kernels/cuda/blas.cc": {"<dlfcn.h>"}}
# The only file that may include the headers of a folder.
ONE_FILE = {"lib/third_party": "lib/tokenizer/sentencepiece_encoder.cc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|(<[^>]+>))', re.MULTILINE)


def layer(path):
    """The layer of a file of the project, or None."""
    return next((name for name in ALLOWED if path.startswith(name + "/")),
                "include/quire" if path.startswith("include/quire/") else None)


def check_project_include(path, target, root):
    own, other = layer(path), layer(target)
    if other is None or not (root / target).is_file():
        return f'{path} includes "{target}": not a file of the project by its path from the root'
    if own == "kernels" and target in KERNELS_MAY_INCLUDE:
        return None
    if own != other and other not in ALLOWED[own]:
        return f"{path} includes {target}: {own} may not include {other}"
    if own != other and path != ONE_FILE.get(other, path):
        return f"{path} includes {target}: only {ONE_FILE[other]} may"
    return None


def check_system_include(path, target):
    if OS_HEADER.match(target) and not path.startswith("lib/support/os_") and \
            target not in OS_EXCEPTIONS.get(path, set()):
        return f"{path} includes {target}: only lib/support/os_* files call the operating system"
    return None


def find_cycle(graph):
    """A list of files that include each other in a ring, or None."""
    state = {}

    def visit(path, trail):
        state[path] = "open"
        for target in graph.get(path, ()):
            if state.get(target) == "open":
                return trail[trail.index(target):] + [target]
            if target not in state and (found := visit(target, trail + [target])):
                return found
        state[path] = "done"
        return None

    return next((cycle for path in sorted(graph) if path not in state and (cycle := visit(path, [path]))), None)


def main():
    root = pathlib.Path(sys.argv[1])
    graph, failures = {}, []
    files = [f for folder in ("lib", "kernels") for f in sorted((root / folder).rglob("*")) if f.suffix in (".h", ".cc", ".c", ".cu")]
    for file in files:
        path = file.relative_to(root).as_posix()
        if layer(path) is None:
            failures.append(f"{path} belongs to no layer that this script knows")
            continue
        graph[path] = []
        for project, system in INCLUDE.findall(file.read_text()):
            failures.append(check_project_include(path, project, root) if project else check_system_include(path, system))
            # Highway includes a file into itself, once per target.
            if project and project != path:
                graph[path].append(project)
    if cycle := find_cycle(graph):
        failures.append("files include each other: " + " > ".join(cycle))
    failures = [failure for failure in failures if failure]
    print(f"{len(files)} files, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures or not files else 0


if __name__ == "__main__":
    sys.exit(main())
