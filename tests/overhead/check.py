"""That overhead.py compares and reports whole, with C against C. Nothing is said of time.

    check.py OVERHEAD_PY MODEL_DIR C_PROGRAM
"""

import json
import pathlib
import subprocess
import sys
import tempfile


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def main():
    script, model, program = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        result = run(script, model, program, f"again={program}", "--tokens", "20", "--rounds", "5", "--json", str(report))
        assert result.returncode == 0, result.stderr
        found = json.loads(report.read_text())
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["program", "c", "again", "medians"], lines
    assert (found["tokens"], found["rounds"]) == (20, 5), found
    c, again = found["programs"]
    assert (c["name"], c["ratio"], c["quartiles"], c["allocations_per_token"]) == ("c", 1, [1, 1], 0), c
    assert again["name"] == "again" and again["quartiles"][0] <= again["ratio"] <= again["quartiles"][1], again
    assert min(again["ratio"], again["tokens_per_second"], c["tokens_per_second"]) > 0, found
    for wrong in (f"short={sys.executable} -c pass", "named", f"early={program} nowhere"):
        assert run(script, model, program, wrong, "--rounds", "2").returncode != 0, wrong
    return 0


if __name__ == "__main__":
    sys.exit(main())
