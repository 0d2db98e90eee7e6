"""The type hints of the Python binding, by mypy: the package itself, and what a caller's mistakes give."""

import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "bindings" / "python"

CALLER = '''
import quire

with quire.Runtime(threads=1) as runtime:
    model = runtime.load("model", device="cpu")
    session = model.session("dca", kv_type="bf16", expected_tokens=5)
    session.feed("text", labels=[(0, 1, 2)])
    for event in session.stream(5, stop="x", seed=3):
        text: str = event.text


async def read() -> int:
    async with session.stream(3) as stream:
        async for event in stream:
            return event.token
    return -1


session.stream(5, temprature=0.5)  # wrong
session.feed(5)  # wrong
model.session("dca", kv_typ="bf16")  # wrong
name: str = session.n_tokens  # wrong
'''


def mypy(*arguments):
    done = subprocess.run([sys.executable, "-m", "mypy", *map(str, arguments)], cwd=PACKAGE, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_the_package():
    assert mypy("quire")[-1].startswith("Success")


def test_a_caller(tmp_path):
    caller = tmp_path / "caller.py"
    caller.write_text(CALLER)
    found = {int(line.split(":")[1]) for line in mypy("--config-file", "pyproject.toml", caller) if "caller.py" in line and ": error:" in line}
    assert found == {i for i, line in enumerate(CALLER.split("\n"), 1) if line.endswith("# wrong")}
