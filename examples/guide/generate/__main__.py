"""Makes the sources of the site: the pages of this folder with what is generated put into them, and pages that are
generated whole.

    python3 -m generate QUIRE FOLDER      QUIRE: the command; FOLDER: is made anew

A line {{ word argument }} of a page stands for what `fill` makes of it.
"""

import pathlib
import re
import shutil
import sys

from . import commands, measured, repository
from .reference import Reference

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
TRAIN_LEN = 4096  # of the model whose defaults the tables of arguments show
TITLES = {"cpp": "C++", "csharp": "C#", "go": "Go", "lua": "Lua", "node": "Node.js", "python": "Python", "ruby": "Ruby",
          "rust": "Rust"}


class Site:
    def __init__(self, program, folder):
        self.folder = folder
        self.command = commands.Command(program)
        self.reference = Reference(ROOT)
        self.repository = repository.Repository(ROOT)
        self.terms = self.command.strategies(TRAIN_LEN)

    def fill(self, word, argument, page):
        """What a line {{ word argument }} stands for."""
        up = "../" * (len(pathlib.PurePath(page).parts) - 1)
        if word == "arguments":
            return commands.argument_table(next(term for term in self.terms if term["name"] == argument))
        if word == "strategies":
            return commands.strategy_list(self.terms)
        if word == "scalings":
            return commands.scaling_list(self.terms)
        if word == "file":
            return repository.file_block(ROOT, argument)
        if word == "returned_by":
            names = self.reference.functions_that_return(argument)
            linked = [f"[`{n}`]({up}reference/{self.reference.targets[n][0]}#{n})" for n in names]
            return "Named by: " + ", ".join(linked) + "." if linked else ""
        if word == "rows":
            return self.rows(*(part.strip() for part in argument.split(";")), page)
        if word == "languages":
            pages = [page for source, page in self.repository.pages.items() if source.startswith("bindings/")]
            return "\n".join(f"- [{self.title(page)}]({up}{page})" for page in pages)
        raise ValueError(f"{page}: nobody knows what to put for {{{{ {word} }}}}")

    def rows(self, source, heading, *labels_and_page):
        *labels, page = labels_and_page
        found, tables = measured.quote((ROOT / source).read_text(encoding="utf-8"), heading, labels)
        up = "../" * (len(pathlib.PurePath(page).parts) - 1)
        return f"{tables}\n\n[{found}]({up}{self.repository.pages[source]}#{measured.slug(found)})"

    @staticmethod
    def title(page):
        name = pathlib.PurePath(page).stem
        return TITLES.get(name, name)

    def write(self, page, text):
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def own_pages(self):
        for path in sorted((HERE / "pages").rglob("*.md")):
            page = path.relative_to(HERE / "pages").as_posix()
            text = path.read_text(encoding="utf-8")
            self.command.draw(text, self.folder / "figures")
            self.write(page, re.sub(r"^\{\{ (\w+)(?: (.+?))? \}\}$", lambda match: self.fill(match[1], match[2], page), text,
                                    flags=re.M))

    def repositorys_pages(self):
        for source, page in self.repository.pages.items():
            text = self.repository.page(source)
            if page.startswith("languages/"):
                text = f"---\ntitle: {self.title(page)}\n---\n\n{text}\n" + repository.examples(ROOT, pathlib.PurePath(page).stem)
            self.write(page, text)
        shutil.copytree(ROOT / repository.FIGURES[0], self.folder / repository.FIGURES[1])

    def make(self):
        (self.folder / "figures").mkdir(parents=True)
        shutil.copytree(HERE / "pages/assets", self.folder / "assets")
        self.own_pages()
        self.repositorys_pages()
        self.write("command.md", self.command.help_page())
        for name, text in self.reference.pages().items():
            self.write(f"reference/{name}", text)


def main():
    program, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    Site(str(program), folder).make()


if __name__ == "__main__":
    main()
