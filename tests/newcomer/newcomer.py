"""Runs the first five minutes of each language's README on a fresh Debian, as they stand there; and `chat`: the commands of
the README's section "Chat", from nothing to the answer about a PDF of thirty pages, in less than ten minutes.

    newcomer.py FOLDER [LANGUAGE|chat...]

A Debian 12 without anything is made by debootstrap in FOLDER, which wants 3 GB; each language gets a copy of it with a
checkout of this repository in the home of its root, and a shell there runs the commands under the README's heading "Five
minutes". In the last lines that they print must stand what the README says. The lines by which several READMEs build and
install the library are run once. Prints all that was typed and printed. Exit status 77: not root, or no debootstrap.

QUIRE_DEBIAN_MIRROR: where Debian comes from, else debootstrap's own choice. Pip in the system is told what pip is told
here (PIP_... in the environment).
"""

import collections
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass

from pdf import write_pdf

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "tests" / "quality" / "real"))

from texts import handbook  # noqa: E402

HOME = pathlib.PurePath("/", "root")  # in the fresh system
CERTIFICATES = HOME / "certificates.pem"
# What the READMEs that need an installed library begin with.
INSTALL = """\
bash cmake/debian-packages.sh build
cmake --preset release -DQUIRE_TESTS=OFF -DQUIRE_UNITY=ON && cmake --build --preset release
cmake --install build/release --prefix /usr/local && ldconfig
"""


@dataclass
class Language:
    folder: str  # of bindings
    expected: str  # stands in one of the last lines that are printed
    blocks: int = 1  # of commands that are run, of those under the heading
    program: str = ""  # the file that the reader writes what is shown between the first two blocks to, in ~/hello


LANGUAGES = {
    "rust": Language("rust", " 48213."),
    "go": Language("go", " 71432", blocks=2, program="main.go"),
    "csharp": Language("csharp", " 4217."),
    "python": Language("python", " 48213."),
    "cpp": Language("cpp", " 48213."),
    "lua": Language("lua", " 48213."),
    "ruby": Language("ruby", " 48213."),
    "node": Language("node", " 48213."),
}


def five_minutes(language):
    """The commands that a reader types, and the program that is shown (empty: none)."""
    text = (SOURCE / "bindings" / language.folder / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Five minutes\n(.*?)(?=^## )", text, re.M | re.S).group(1)
    fences = re.findall(r"^```([\w,]+)\n(.*?)^```$", section, re.M | re.S)
    commands = [body for kind, body in fences if kind == "sh"][: language.blocks]
    assert len(commands) == language.blocks, f"{language.folder}: expected {language.blocks} blocks of commands"
    program = next((body for kind, body in fences if kind == language.folder), "") if language.program else ""
    if language.program:
        commands[1] = f"mkdir ~/hello && mv ~/{language.program} ~/hello && cd ~/hello\nexport QUIRE=~/quire\n" + commands[1]
    return "".join(commands), program


PAGES, PAGE_LINES = 30, 27  # of the report that is asked about: the beginning of the Debian Administrator's Handbook
FOUNDER = "Ian Murdock"
CHAT_SECONDS = 600  # at most, from the first command to the answer


def chat_commands():
    """The README's, with what it shows to be typed to `quire chat` behind them."""
    section = re.search(r"^## Chat\n(.*?)(?=^## )", (SOURCE / "README.md").read_text(encoding="utf-8"), re.M | re.S).group(1)
    shell, dialogue = re.findall(r"^```\w*\n(.*?)^```$", section, re.M | re.S)[:2]
    *before, chat = shell.splitlines(keepends=True)
    typed = re.findall(r"^> (.*)$", dialogue, re.M)
    assert "quire chat" in chat and "founded" in typed[-1], "the README's section Chat has changed"
    return f"{''.join(before)}printf '%s\\n' {shlex.join(typed)} | {chat}"


def write_report(path, work):
    """work: a folder that the handbook's package is kept in."""
    if not list(work.glob("debian-handbook_*.deb")):
        subprocess.run(["apt-get", "download", "debian-handbook"], cwd=work, check=True)
    unpacked = work / "handbook"
    subprocess.run(["dpkg-deb", "-x", next(work.glob("debian-handbook_*.deb")), unpacked], check=True)
    text = " ".join("".join(handbook(unpacked / "usr/share/doc/debian-handbook/html/en-US")).split())
    lines = textwrap.wrap(text.encode("ascii", "ignore").decode(), 85)[:PAGES * PAGE_LINES]
    assert write_pdf(path, lines, PAGE_LINES) == PAGES


class Systems:
    """Folders with a Debian each. A copy is made for what changes one."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        head = subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        self.commit = head.stdout.strip()

    def fresh(self):
        """A Debian that was just installed, with the checkout."""
        system = self.folder / f"fresh-{self.commit}"
        if not system.exists():
            base = self.folder / "debian"
            if not base.exists():
                mirror = [os.environ["QUIRE_DEBIAN_MIRROR"]] if "QUIRE_DEBIAN_MIRROR" in os.environ else []
                making = self.folder / "debian.part"
                shutil.rmtree(making, ignore_errors=True)
                subprocess.run(["debootstrap", "--variant=minbase", "bookworm", making, *mirror], check=True, stdout=subprocess.DEVNULL)
                making.rename(base)
            making = self.copy(base, f"{system.name}.part")
            checkout = making / HOME.relative_to("/") / "quire"
            subprocess.run(["git", "clone", "--quiet", SOURCE, checkout], check=True)
            subprocess.run(["git", "-C", checkout, "reset", "--quiet", "--hard", self.commit], check=True)
            shutil.copy("/etc/resolv.conf", making / "etc/resolv.conf")
            if certificates := os.environ.get("PIP_CERT"):  # where no package of the system will write
                shutil.copy(certificates, making / CERTIFICATES.relative_to("/"))
            making.rename(system)
        return system

    def copy(self, system, name):
        made = self.folder / name
        shutil.rmtree(made, ignore_errors=True)
        subprocess.run(["cp", "-a", system, made], check=True)
        return made

    def with_library(self):
        fresh = self.fresh()
        system = self.folder / f"library-{hashlib.sha256(f'{fresh.name} {INSTALL}'.encode()).hexdigest()[:16]}"
        if not system.exists():
            making = self.copy(fresh, f"{system.name}.part")
            run(making, INSTALL)
            making.rename(system)
        return system


def run(system, commands, most_seconds=None):
    """Runs commands as root in the checkout, in at most so many seconds. Returns the last lines that they print."""
    environment = {"HOME": str(HOME), "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
                   "DEBIAN_FRONTEND": "noninteractive"} | {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    if "PIP_CERT" in environment:
        environment["PIP_CERT"] = str(CERTIFICATES)
    inside = ["unshare", "--mount", "--pid", "--fork", f"--root={system}", "--mount-proc", f"--wd={HOME / 'quire'}"]
    begin = time.monotonic()
    shell = subprocess.Popen([*inside, "bash", "-euo", "pipefail", "-c", "PS4='$ '; set -x\n" + commands], env=environment,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    last = collections.deque(maxlen=3)
    for line in shell.stdout:
        print(line, end="", flush=True)
        if line.strip() and not line.startswith("$ "):
            last.append(line)
    if shell.wait() != 0:
        raise RuntimeError(f"the commands ended with status {shell.returncode}")
    seconds = time.monotonic() - begin
    print(f"({seconds:.0f} s)", flush=True)
    if most_seconds is not None and seconds > most_seconds:
        raise RuntimeError(f"the commands took {seconds:.0f} s; expected at most {most_seconds} s")
    return "".join(last)


def check(systems, name):
    language = LANGUAGES[name]
    commands, program = five_minutes(language)
    if commands.startswith(INSTALL):
        parent, commands = systems.with_library(), commands.removeprefix(INSTALL)
    else:
        parent = systems.fresh()
    system = systems.copy(parent, name)
    try:
        if program:
            (system / HOME.relative_to("/") / language.program).write_text(program, encoding="utf-8")
        last = run(system, commands)
        if language.expected not in last:
            raise RuntimeError(f"expected {language.expected!r} in the last lines, found {last!r}")
    finally:
        shutil.rmtree(system)


def check_chat(systems):
    system = systems.copy(systems.fresh(), "chat")
    try:
        write_report(system / HOME.relative_to("/") / "quire" / "report.pdf", systems.folder)
        last = run(system, chat_commands(), CHAT_SECONDS)
        if FOUNDER not in last:
            raise RuntimeError(f"expected {FOUNDER} in the last lines, found {last!r}")
    finally:
        shutil.rmtree(system)


def main():
    names = [*LANGUAGES, "chat"]
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(names):
        sys.exit(f"usage: newcomer.py FOLDER [NAME...]; there are {', '.join(names)}")
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        print("skipped: a fresh Debian is made by debootstrap, as root")
        sys.exit(77)
    systems = Systems(pathlib.Path(sys.argv[1]).resolve())
    failed = []
    for name in sys.argv[2:] or names:
        print(f"== {name}", flush=True)
        try:
            check_chat(systems) if name == "chat" else check(systems, name)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
