"""The texts that documents are made of: the Debian Administrator's Handbook, and the filler of the passkey task."""

import html.parser
import pathlib

# Mohtashami and Jaggi 2023, arXiv:2305.16300, section 4.2.
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"


class Paragraphs(html.parser.HTMLParser):
    """Headings and paragraphs of one page of the handbook, in order, without listings."""

    def __init__(self):
        super().__init__()
        self.paragraphs, self.words = [], []
        self.depth = 0    # of div elements
        self.inside = []  # the depths at which paragraphs are open
        self.listing = 0  # pre elements that are open
        self.links = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "pre":
            self.listing += 1
        if tag == "div":
            self.depth += 1
            if attributes.get("class") == "para":
                self.end_paragraph()
                self.inside.append(self.depth)

    def handle_endtag(self, tag):
        if tag == "pre":
            self.listing -= 1
        if tag == "div":
            if self.inside and self.inside[-1] == self.depth:
                self.end_paragraph()
                self.inside.pop()
            self.depth -= 1

    def handle_data(self, data):
        if self.inside and not self.listing:
            self.words += data.split(" ")

    def end_paragraph(self):
        text = " ".join(" ".join(self.words).split())
        self.words = []
        if text:
            self.paragraphs.append(text + "\n")


def read_page(path):
    page = Paragraphs()
    page.feed(path.read_text())
    page.close()
    return page


def handbook(folder):
    """The paragraphs of the whole book, in the order of its table of contents."""
    folder = pathlib.Path(folder)
    pages = dict.fromkeys(link.split("#")[0] for link in read_page(folder / "index.html").links)
    files = [folder / page for page in pages if page.endswith(".html") and "/" not in page and page != "index.html"]
    return [paragraph for file in files if file.exists() for paragraph in read_page(file).paragraphs]
