"""Writes what the Python binding gives into the conformance files: the values of the keys that `expect` has already, and
the status, offset and message of errors.

    QUIRE_LIBRARY=build/release/lib/abi/libquire.so python3 tests/conformance/update.py
"""

import json
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(SOURCE / "bindings" / "python"), str(SOURCE / "tests" / "python")]

import conformance  # noqa: E402
import quire  # noqa: E402


def written(file):
    """A line for each step."""
    lines = ["{" + f'"about": {json.dumps(file["about"])},', f' "model": {json.dumps(file["model"])},', ' "cases": [']
    cases = []
    for case in file["cases"]:
        steps = ",\n".join("   " + json.dumps(step, ensure_ascii=False) for step in case["steps"])
        cases.append("  {" + f'"name": {json.dumps(case["name"])}, "steps": [\n{steps}]' + "}")
    return "\n".join(lines) + "\n" + ",\n".join(cases) + "]}\n"


def update(case, step):
    try:
        result = case.do(step)
    except quire.QuireError as error:
        assert "error" in step, (step, str(error))
        found = {"status": error.status, "offset": error.offset, "message": error.message}
        step["error"] = {key: found[key] for key in step["error"]}
        return
    assert "error" not in step, step
    if "expect" in step:
        step["expect"] = {key: result[key] for key in step["expect"]}


for path, file in conformance.files():
    with quire.Runtime(threads=1) as runtime:
        model = runtime.load(SOURCE / file["model"])
        for described in file["cases"]:
            case = conformance.Case(model)
            for step in described["steps"]:
                update(case, step)
            case.close()
    path.write_text(written(file))
