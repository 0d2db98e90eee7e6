"""Runs a test of the C# binding; 77 (skipped) where there is no compiler or runtime for it.

    run.py TEST LIBRARY_FOLDER WORK_FOLDER

TEST is one of the functions below. LIBRARY_FOLDER has libquire.so.0; what is built goes to WORK_FOLDER.
"""

import http.client
import importlib.util
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
import zipfile

import terminal

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
BINDING = SOURCE / "bindings" / "csharp"
EXAMPLES = SOURCE / "examples" / "csharp"
MODEL = SOURCE / "examples" / "embedded_model" / "model"
SENTENCES = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUESTION = "What is the pass key? The pass key is"


class Skip(Exception):
    pass


class Toolchain:
    """Mono's compiler, and a runtime: Mono itself, or .NET Core where its Python package is installed."""

    def __init__(self, library, work, core=False):
        for tool in ("mcs", "mono"):
            if not shutil.which(tool):
                raise Skip(f"there is no {tool} here (Debian: mono-mcs)")
        self.work = work
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "QUIRE_SOURCE": str(SOURCE), "TERM": "xterm"}
        self.references, self.suffix, self.command = ["-r:System.Core.dll"], ".exe", ["mono"]
        if core:
            self._use_core()
        work.mkdir(parents=True, exist_ok=True)

    def _use_core(self):
        package = importlib.util.find_spec("dotnetcore2")
        if not package:
            raise Skip("there is no .NET Core runtime here (PyPI: dotnetcore2)")
        root = pathlib.Path(package.origin).parent / "bin"
        shared = next((root / "shared" / "Microsoft.NETCore.App").iterdir())
        libraries = [path for path in shared.glob("*.dll") if re.match(r"System\.(?!Private\.(?!CoreLib))", path.name)]
        self.references = ["-nostdlib", "-noconfig", "-nowarn:1702", *(f"-r:{path}" for path in libraries)]
        self.suffix = ".dll"
        self.work.mkdir(parents=True, exist_ok=True)
        config = self.work / "core.runtimeconfig.json"
        config.write_text(json.dumps({"runtimeOptions": {
            "framework": {"name": "Microsoft.NETCore.App", "version": shared.name},
            "configProperties": {"System.Globalization.Invariant": True}}}))
        dotnet = root / "dotnet"
        if not os.access(dotnet, os.X_OK):  # wheels do not keep it
            dotnet.chmod(dotnet.stat().st_mode | 0o111)
        self.command = [str(dotnet), "exec", "--runtimeconfig", str(config)]

    def compile(self, name, sources, *options):
        command = ["mcs", "-langversion:7.2", "-optimize+", "-warnaserror", f"-out:{self.work / name}", *options,
                   *self.references, *map(str, sources)]
        subprocess.run(command, check=True, env=self.environment)
        return self.work / name

    def library(self, *more):
        sources = [*sorted((BINDING / "Quire").rglob("*.cs")), *more]
        return self.compile("Quire.dll", sources, "-target:library", "-unsafe", f"-doc:{self.work / 'Quire.xml'}")

    def program(self, name, sources, *options):
        library = f"-r:{self.work / 'Quire.dll'}"
        return self.compile(name + self.suffix, sources, "-target:exe", library, *options)

    def start(self, program, *arguments):
        return [*self.command, str(program), *map(str, arguments)]

    def run(self, program, *arguments, **options):
        return subprocess.run(self.start(program, *arguments), check=True, env=self.environment, text=True, **options)


def generated(library, work):
    """The generated layer is what the generator writes."""
    return subprocess.run([sys.executable, str(BINDING / "generate_native.py"), "--check"]).returncode


def run_tests(tools, **more):
    """`more`: of the environment, while the tests run."""
    tools.library(HERE / "VisibleToTests.cs")
    sources = [path for path in sorted(HERE.glob("*.cs")) if path.name not in ("Overhead.cs", "VisibleToTests.cs")]
    tests = tools.program("Tests", sources, "-unsafe")
    subprocess.run(tools.start(tests), check=True, env={**tools.environment, **more})
    for _ in range(5):
        left = tools.run(tests, "--leave", capture_output=True)
        assert (left.stdout, left.stderr) == ("leaving\n", ""), left


def mono(library, work):
    """All tests, on Mono, which must have looked up every function of the header on the way."""
    tools = Toolchain(library, work)
    # Threads of the library block signals, by which Mono would otherwise stop those that run callbacks.
    tools.environment["MONO_THREADS_SUSPEND"] = "coop"
    log = work / "mono.log"
    log.unlink(missing_ok=True)
    run_tests(tools, MONO_LOG_LEVEL="debug", MONO_LOG_MASK="dll", MONO_LOG_DEST=str(log))
    used = set(re.findall(r"Found as '(quire_\w+)'", log.read_text()))
    interface = json.loads((SOURCE / "bindings" / "interface.json").read_text(encoding="utf-8"))
    unused = {function["name"] for function in interface["functions"]} - used
    assert not unused, f"never used: {sorted(unused)}"
    print(f"all {len(used)} functions were used")


def core(library, work):
    """All tests, compiled against .NET Core and run there."""
    run_tests(Toolchain(library, work, core=True))


def documents(work):
    paths = []
    for key in ("4217", "9083"):
        path = work / f"{key}.txt"
        path.write_text(SENTENCES * 10 + f"The pass key is {key}. Remember it. {key} is the pass key. " + SENTENCES * 6)
        paths.append(path)
    return paths


def post(address, text):
    with urllib.request.urlopen(address, text.encode(), timeout=60) as response:
        return response.read().decode()


def refusal(address, method, header):
    """The status of a response to a request whose body is not sent."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=60)
    connection.putrequest(method, "/")
    connection.putheader(*header)
    connection.endheaders()
    with connection.getresponse() as response:
        status = response.status
    connection.close()
    return status


def check_readme(tools, document):
    """The program of the README, its first block."""
    text = (BINDING / "README.md").read_text(encoding="utf-8")
    source = tools.work / "Program.cs"
    source.write_text(re.search(r"```csharp\n(.*?)```", text, re.DOTALL)[1], encoding="utf-8")
    program = tools.program("Program", [source])
    assert "4217" in tools.run(program, MODEL, document, QUESTION, stdout=subprocess.PIPE).stdout


def check_server(tools, server, document):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/"
    process = subprocess.Popen(tools.start(server, MODEL, document, address), env=tools.environment, text=True,
                               stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline().startswith("listening"), "the server listens"
        for _ in range(3):
            assert "4217" in post(address, QUESTION)
        for method, header, wanted in (("GET", ("Content-Length", "0"), 405), ("POST", ("Content-Length", "65537"), 413),
                                       ("POST", ("Transfer-Encoding", "chunked"), 411)):
            assert refusal(address, method, header) == wanted, wanted
    finally:
        process.kill()
        process.communicate()
    terminal.run(tools.start(server, MODEL, document, address), tools.environment, "listening", "\x03")


def examples(library, work):
    """The examples answer, in forks, over HTTP, and after an answer was cancelled by Ctrl-C."""
    tools = Toolchain(library, work)
    tools.library()
    ask, forks, server = (tools.program(name, [EXAMPLES / f"{name}.cs"]) for name in ("Ask", "Forks", "Server"))
    one, two = documents(work)
    answers = tools.run(ask, MODEL, one, input=f"{QUESTION}\n{QUESTION}\n", stdout=subprocess.PIPE).stdout
    assert answers.count("4217") == 2, answers
    answers = tools.run(forks, MODEL, one, two, "--", QUESTION, "The pass key is", stdout=subprocess.PIPE).stdout
    found = [line.rpartition("key is ")[2][:4] for line in answers.splitlines() if line]
    assert found == ["4217", "4217", "9083", "9083"], answers
    long_question = "The sky is blue. " * 7000
    seen = terminal.run(tools.start(ask, MODEL, one, long_question, QUESTION), tools.environment, "read 256 of", "\x03")
    assert re.search(r"\(cancelled\).*4217", seen, re.DOTALL), seen
    check_server(tools, server, one)
    check_readme(tools, one)


def package(library, work):
    """A program runs with what the package holds, and with nothing else of ours."""
    tools = Toolchain(library, work)
    assembly = tools.library()
    result = subprocess.run([sys.executable, str(BINDING / "pack.py"), str(assembly), str(library / "libquire.so.0"), str(work)],
                            check=True, capture_output=True, text=True)
    unpacked = work / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(result.stdout.strip()) as nupkg:
        nupkg.extractall(unpacked)
    application = work / "application"
    shutil.rmtree(application, ignore_errors=True)
    application.mkdir()
    # A program gets the assembly and the native library of its system beside it, as `dotnet publish` puts them.
    shutil.copy(unpacked / "lib" / "netstandard2.0" / "Quire.dll", application)
    shutil.copy(unpacked / "runtimes" / "linux-x64" / "native" / "libquire.so.0", application)
    tools.work = application
    del tools.environment["LD_LIBRARY_PATH"]
    ask = tools.program("Ask", [EXAMPLES / "Ask.cs"])
    document = documents(work)[0]
    assert "4217" in tools.run(ask, MODEL, document, QUESTION, stdout=subprocess.PIPE).stdout
    # A library with another ABI is refused, and one that is missing is named.
    native = application / "libquire.so.0"
    subprocess.run(["cc", "-shared", "-fPIC", str(SOURCE / "tests" / "abi" / "other_version.c"), "-o", str(native)], check=True)
    failed = subprocess.run(tools.start(ask, MODEL, document, QUESTION), env=tools.environment, capture_output=True, text=True)
    assert "is of version 0.2.0; this assembly needs 0.1.0, or" in failed.stderr, failed
    native.unlink()
    failed = subprocess.run(tools.start(ask, MODEL, document, QUESTION), env=tools.environment, capture_output=True, text=True)
    assert "System.DllNotFoundException: libquire.so.0" in failed.stderr, failed


def overhead(library, work):
    """Builds the program for the comparison with C, and lets it measure once."""
    tools = Toolchain(library, work)
    tools.library()
    program = tools.program("Overhead", [HERE / "Overhead.cs"])
    lines = tools.run(program, MODEL, 20, input="\n\n", stdout=subprocess.PIPE).stdout.splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [["ready"], *[["allocations", "seconds", "tokens"]] * 2], lines


def main():
    name, library, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    try:
        return globals()[name](library, work) or 0
    except Skip as reason:
        print(f"skipped: {reason}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
