"""What the `quire` command says of itself: its help texts, and the strategies it lists and draws."""

import json
import re
import shlex
import subprocess

from . import markdown


class Command:
    def __init__(self, program):
        self.program = program

    def run(self, *arguments, **more):
        return subprocess.run([self.program, *arguments], check=True, capture_output=True, text=True, **more).stdout

    def help(self, *names):
        """[(names, text)] of a command and those below it."""
        text = self.run(*names, "--help").strip()
        listed = re.search(r"^Subcommands:\n((?: +\S.*\n?)+)", text, re.M)
        below = re.findall(r"^  (\w+)", listed[1], re.M) if listed else []
        return [(names, text), *(page for name in below for page in self.help(*names, name))]

    def help_page(self):
        parts = ["# The quire command", "What `quire --help` and the `--help` of each of its commands print."]
        for names, text in self.help():
            title = " ".join(["quire", *names])
            parts.append(f"## {title} {{#{'-'.join(['quire', *names])}}}\n\n```text\n{text}\n```")
        return "\n\n".join(parts) + "\n"

    def draw(self, page_text, folder):
        """Runs the `quire plan` commands of a page that draw, so that their pictures are in the folder."""
        for line in re.findall(r"^quire plan .*--svg .*$", page_text, re.M):
            self.run(*shlex.split(line)[1:], cwd=folder)

    def strategies(self, train_len):
        return json.loads(self.run("strategies", "--train-len", str(train_len), "--json"))["terms"]


def spoken(value):
    if isinstance(value, int) and value >= 1 << 20 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else json.dumps(value)


def argument_table(term):
    """The arguments of a strategy or a scaling, for a model that was trained for 4,096 tokens."""
    if not term["arguments"]:
        return "It takes no arguments."
    rows = []
    for argument in term["arguments"]:
        choices = ", ".join(f"`{choice}`" for choice in argument.get("choices", []))
        values = f"{spoken(argument['min'])} to {spoken(argument['max'])}" if "min" in argument else choices or argument["type"]
        default = f"`{spoken(argument['default'])}`" if "default" in argument else "required" if argument["required"] else ""
        with_ = f" (with `{argument['with']}`)" if "with" in argument else ""
        rows.append([f"`{argument['name']}`", values, default, markdown.escape(argument["description"]) + with_])
    return markdown.table(["argument", "values", "default", ""], rows)


def strategy_list(terms):
    return markdown.table(["strategy", "what a token sees"], [
        [f"[`{term['name']}`]({term['name']}.md)", markdown.escape(term["description"])]
        for term in terms if term["kind"] == "visibility"])


def scaling_list(terms):
    parts = []
    for term in terms:
        if term["kind"] != "visibility":
            parts.append(f"### `{term['name']}` {{#{term['name']}}}\n\n{markdown.escape(term['description'])}.\n\n"
                         + argument_table(term))
    return "\n\n".join(parts)
