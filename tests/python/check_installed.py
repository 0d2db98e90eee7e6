"""Uses the package as it is installed in an environment: the first program of its README, then the tests.

    check_installed.py ENVIRONMENT SOURCE
"""

import pathlib
import re
import subprocess
import sys

import quire
from quire._library import lib


def main():
    environment, source = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    for path in (quire.__file__, lib._name):
        assert environment in pathlib.Path(path).resolve().parents, path
    readme = (source / "bindings" / "python" / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", readme, re.S)[1]
    result = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and " 48213." in result.stdout, result
    print(f"{len(program.splitlines())} lines of the README print {result.stdout.strip()!r}")
    return subprocess.run([sys.executable, str(source / "tests" / "python" / "run.py")], cwd=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
