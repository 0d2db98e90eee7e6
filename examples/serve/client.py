"""Asks a served document, with the standard library alone.

    client.py DOCUMENT QUESTION... [--url URL]
"""

import argparse
import json
import urllib.request
import uuid


class Client:
    """A conversation. Its tokens are kept here, so no worker need live on for it."""

    def __init__(self, url, document):
        self.url, self.document, self.name, self.tokens = url, document, uuid.uuid4().hex, []

    def ask(self, question, max_tokens=64, **options):
        """Yields what comes, as dicts: {"token", "text"} and others that README.md has."""
        body = {"document": self.document, "conversation": self.name, "tokens": self.tokens, "question": question,
                "max_tokens": max_tokens, "options": options}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as lines:
            for line in lines:
                part = json.loads(line)
                if "error" in part:
                    raise RuntimeError(part["error"])
                self.tokens += part.get("asked", [])
                self.tokens += [part["token"]] if "token" in part else []
                yield part


def main():
    parser = argparse.ArgumentParser(description="Asks a served document.")
    parser.add_argument("document")
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000/answer")
    parser.add_argument("--stop-id", type=int, action="append", default=[], help="a token that ends an answer")
    arguments = parser.parse_args()
    client = Client(arguments.url, arguments.document)
    for question in arguments.questions:
        print(question, end="", flush=True)
        for part in client.ask("\n" + question, stop_ids=arguments.stop_id):
            print(part.get("text", ""), end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
