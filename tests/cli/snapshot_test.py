#!/usr/bin/env python3
"""Tests of quire index, run --document, verify, ls, and of stores."""
import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import unittest

OPTIONS = None  # --quire, --model

TEXT = "There and back again. The sky is blue.\n" * 40  # 519 tokens, for a model of 256
PROMPT = ["-p", "The grass", "-n", 8, "--ignore-eos"]


def run(*arguments, stdin="", cwd=None):
    return subprocess.run([OPTIONS.quire, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=240,
                          check=False, cwd=cwd)


class SnapshotTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.text, self.snapshot = self.folder / "text", self.folder / "text.quire"
        self.text.write_text(TEXT)

    def json(self, *arguments, **options):
        done = run(*arguments, "--json", **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return json.loads(done.stdout)

    def index(self, text=None, *arguments, strategy="dca", **options):
        return self.json("index", text or self.text, "-m", OPTIONS.model, "-s", strategy, "-o", self.snapshot, *arguments,
                         **options)

    def ask(self, *arguments, **options):
        return self.json("run", "-m", OPTIONS.model, *arguments, "--top-logprobs", 2, **options)

    def fails(self, status, part, *arguments, stdin=""):
        done = run(*arguments, stdin=stdin)
        self.assertEqual((done.returncode, done.stdout), (status, ""), (arguments, done.stderr))
        self.assertIn(part, done.stderr)

    def lock(self, folder):
        """Lets nobody make a file there, until the test ends."""
        if os.geteuid() == 0:
            self.skipTest("root writes everywhere")
        os.chmod(folder, 0o500)
        self.addCleanup(os.chmod, folder, 0o700)

    def make(self):
        """A whole snapshot, made once for all tests."""
        if not hasattr(SnapshotTest, "whole"):
            self.index()
            SnapshotTest.whole = self.snapshot.read_bytes()
        self.snapshot.write_bytes(SnapshotTest.whole)


class CiteTest(SnapshotTest):
    NEEDLE = "The pass key is 48213. Remember it. 48213 is the pass key.\n"

    def setUp(self):
        super().setUp()
        self.filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
        self.document = self.filler * 10 + self.NEEDLE + self.filler * 12
        self.text.write_text(self.document)
        self.ask_key = ["-m", OPTIONS.model, "-p", "What is the pass key? The pass key is", "-n", 7]

    def check(self, citations, n, name):
        self.assertEqual(len(citations), n)
        shares = [c["share"] for c in citations]
        self.assertEqual(shares, sorted(shares, reverse=True))
        for c in citations:
            self.assertEqual((c["document"], c["page"], c["part"]), (str(name), None, 0))
            self.assertEqual(c["text"].strip(), self.document.encode()[c["begin"]:c["end"]].decode().strip())
        self.assertIn("48213", citations[0]["text"])

    def test_a_document_and_its_snapshot(self):
        read = self.json("run", "-f", self.text, "-s", "dca", *self.ask_key, "--cite", 2)
        self.check(read["citations"], 2, self.text)
        self.index()
        again = self.json("run", "--document", self.snapshot, *self.ask_key, "--cite", 2)
        self.check(again["citations"], 2, self.snapshot)
        for a, b in zip(read["citations"], again["citations"]):
            self.assertEqual({**a, "document": 0}, {**b, "document": 0})
        plain = self.json("run", "-f", self.text, "-s", "dca", *self.ask_key)
        self.assertNotIn("citations", plain)
        self.assertEqual(plain["tokens"], read["tokens"])

    def test_for_a_person(self):
        done = run("run", "-f", self.text, "-s", "dca", *self.ask_key, "--cite")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        answer, listed = done.stdout.split("\nlooked at:\n")
        self.assertIn("48213", answer)
        lines = listed.splitlines()
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertRegex(line, r'^ *\d+ %  .*text, bytes \d+ to \d+: "\w.*"$')

    def test_a_document_that_has_grown_is_one_text(self):
        self.index()
        self.text.write_text(self.document + "The weather was fine. " * 30)
        self.index()
        found = self.json("run", "--document", self.snapshot, *self.ask_key, "--cite", 100)["citations"]
        self.assertEqual({c["part"] for c in found}, {0})
        document = self.text.read_bytes()
        self.assertTrue(any("weather" in c["text"] for c in found))
        for c in found:
            self.assertEqual(c["text"].strip(), document[c["begin"]:c["end"]].decode().strip())

    def check_pages(self, citations, page, pages):
        """The first citation is of this page, which has the needle; `pages` is the whole document's."""
        self.assertEqual(citations[0]["page"], page)
        self.assertIn(self.NEEDLE, pages[page - 1])
        self.assertGreater(len(citations), 2)
        document = "\f".join(pages).encode()
        for c in citations:
            part = document[c["begin"]:c["end"]]
            self.assertEqual((c["part"], c["text"].strip()), (0, part.decode().strip()))
            first, last = (document[:c[end]].count(b"\f") + 1 for end in ("begin", "end"))
            self.assertTrue(first <= c["page"] <= last, c)
            if first != last:  # most of it, but for the width of a token
                in_page = sum(len(p) for i, p in enumerate(part.split(b"\f")) if first + i == c["page"])
                self.assertGreater(in_page, len(part) // (last - first + 1) - 16)

    def test_pages(self):
        pages = [self.filler * 4, self.filler * 2, "", self.filler * 3 + self.NEEDLE + self.filler * 2, self.filler * 5]
        cite = [*self.ask_key, "--cite", 100, "--top-logprobs", 2]
        self.text.write_text("\f".join(pages))
        read = self.json("run", "-f", self.text, "-s", "dca", *cite)
        self.check_pages(read["citations"], 4, pages)
        # Labels are no part of what is computed.
        plain = self.json("run", "-f", self.text, "-s", "dca", *self.ask_key, "--top-logprobs", 2)
        self.assertEqual((plain["tokens"], plain["top_logprobs"]), (read["tokens"], read["top_logprobs"]))
        # A file that ends each page with a form feed has no page more.
        self.text.write_text("\f".join(pages) + "\f")
        self.check_pages(self.json("run", "-f", self.text, "-s", "dca", *cite)["citations"], 4, pages)
        self.text.write_text("\f".join(pages))
        # From a snapshot, which is then edited.
        self.index()
        asked = self.json("run", "--document", self.snapshot, *cite)
        self.assertEqual(asked["top_logprobs"], read["top_logprobs"])
        self.assertEqual([{**c, "document": 0} for c in asked["citations"]],
                         [{**c, "document": 0} for c in read["citations"]])
        self.assertEqual({c["document"] for c in asked["citations"]}, {str(self.snapshot)})
        done = run("run", "--document", self.snapshot, *self.ask_key, "--cite", 1)
        self.assertRegex(done.stdout, r"text\.quire, page 4, bytes \d+ to \d+: \"\w.*\"\n$")
        self.assertNotIn("\f", done.stdout)
        grown = [pages[0], "A new page.\n", *pages[1:], self.filler]
        self.text.write_text("\f".join(grown))
        for reuse in ("approximate", "exact"):
            self.assertEqual(self.index(None, "--reuse", reuse)["n_pending"], 0)
            self.check_pages(self.json("run", "--document", self.snapshot, *cite)["citations"], 5, grown)
        self.text.write_text(" ".join(pages))
        found = self.json("run", "-f", self.text, "-s", "dca", *cite)["citations"]
        self.assertEqual({c["page"] for c in found}, {None})

    def test_pages_from_a_store(self):
        pages = [self.filler * 4, self.filler * 3 + self.NEEDLE + self.filler * 3]
        options = ["-f", self.text, "-s", "dca", "--store", self.folder / "library", *self.ask_key, "--cite", 100, "--json"]
        for text, is_new in ((pages, True), (pages, False), ([*pages, self.filler * 3], False)):
            self.text.write_text("\f".join(text))
            done = run("run", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.check_pages(json.loads(done.stdout)["citations"], 2, text)
            self.assertEqual("nothing reused" in done.stderr, is_new)

    def test_pages_in_a_message(self):
        pages = [self.filler * 4, self.filler * 3 + self.NEEDLE + self.filler * 3, self.filler]
        ask = ["run", "-f", self.text, "-s", "dca", "--chat", "--chat-template", "llama2", *self.ask_key, "--cite", 100]
        self.text.write_text("\f".join(pages))
        self.check_pages(self.json(*ask)["citations"], 2, pages)
        # What the template strips is part of the file.
        pages = [" \n", *pages]
        self.text.write_text("\f".join(pages))
        self.check_pages(self.json(*ask)["citations"], 3, pages)
        pages[0] = "\u00a0\n"  # more than is looked for
        self.text.write_text("\f".join(pages))
        self.assertEqual({(c["document"], c["page"]) for c in self.json(*ask)["citations"]}, {("messages", None)})

    def test_a_message_that_ends_with_the_document(self):
        self.text.write_text(self.document + "What is the pass key? The pass key is\n")
        found = self.json("run", "-f", self.text, "-s", "dca", "--chat", "--chat-template", "llama2", "-m",
                          OPTIONS.model, "-n", 7, "--cite", 100)["citations"]
        document = self.text.read_bytes()
        for c in found:
            self.assertEqual(c["document"], str(self.text))
            self.assertEqual(c["text"].strip(), document[c["begin"]:c["end"]].decode().strip())

    def test_bad_input(self):
        self.fails(2, "--cite", "run", "-f", self.text, *self.ask_key, "--cite", 0)


class StoreTest(SnapshotTest):
    def setUp(self):
        super().setUp()
        self.store = self.folder / "library"
        self.options = ["-m", OPTIONS.model, "-s", "dca", "--store", self.store]

    def run_json(self, *arguments):
        """What was printed, and what was said on stderr."""
        done = run("run", *self.options, "-f", self.text, *PROMPT, "--json", "--top-logprobs", 2, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr

    def entries(self):
        [store] = self.json("ls", self.store)["stores"]
        return store["entries"]

    def test_a_document_is_read_once(self):
        expected = self.ask("-s", "dca", "-f", self.text, *PROMPT)
        first, said = self.run_json()
        self.assertEqual(said, "quire: nothing reused from the store: the store is empty\n")
        self.assertEqual(first["store"], {"name": "", "n_reused_tokens": 0, "reason": "the store is empty"})
        [entry] = self.entries()
        self.assertEqual((entry["title"], entry["n_tokens"]), ("text", 519))
        second, said = self.run_json("--cite", 2)
        self.assertEqual(said, f"quire: 519 of 522 tokens reused from the store's entry {entry['name']}\n")
        self.assertEqual((first["n_prompt_tokens"], second["n_prompt_tokens"]), (522, 3))
        for found in (first, second):
            self.assertEqual((found["tokens"], found["top_logprobs"]), (expected["tokens"], expected["top_logprobs"]))
        for citation in second["citations"]:
            part = TEXT.encode()[citation["begin"]:citation["end"]].decode()
            self.assertEqual((citation["part"], citation["text"].strip()), (0, part.strip()))
        # Indexed: the same entry, and a document that has grown takes its place.
        done = run("index", self.text, *self.options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"{self.store}/{entry['name']}: 519 tokens, 517 of them reused\n")
        named = run("index", self.text, *self.options, "--title", "late")
        self.assertEqual((named.returncode, named.stderr), (0, "quire: the entry keeps its title, text\n"))
        self.assertEqual(self.json("index", self.text, *self.options, "--title", "late")["title"], "text")
        self.text.write_text(TEXT + "The grass is green. " * 20)
        grown = self.json("index", self.text, *self.options, "--title", "more")
        self.assertEqual((grown["name"], grown["n_reused_tokens"]), (entry["name"], 519))
        self.assertEqual([(e["title"], e["n_tokens"]) for e in self.entries()], [("more", grown["n_tokens"])])
        # What is only alike in the beginning.
        self.text.write_text(TEXT[:1000] + "Another way.")
        other, said = self.run_json()
        self.assertRegex(said, r"^quire: \d+ of \d+ tokens reused")
        self.assertEqual(other["tokens"], self.ask("-s", "dca", "-f", self.text, *PROMPT)["tokens"])
        self.assertEqual(len(self.entries()), 2)

    def test_the_reason_is_said(self):
        self.run_json()
        self.options[3] = "streaming_llm"
        _, said = self.run_json()
        self.assertRegex(said, "none is of this model and strategy; .*its strategy is dca.*here it is streaming_llm")
        self.options[3] = "dca"
        self.text.write_text("A completely different text. " * 30)
        _, said = self.run_json()
        self.assertRegex(said, r"the text differs from that of [0-9a-f]{32} \(text\) from token \d on")

    def test_entries_are_listed_verified_and_removed(self):
        made = self.json("index", self.text, *self.options, "--title", "The\nbook")
        (self.store / "notes.txt").write_text("mine")
        done = run("ls", self.store)
        self.assertEqual((done.returncode, done.stderr), (0, "quire: not the store's: notes.txt\n"))
        self.assertRegex(done.stdout, rf"{made['name']}  +519  .* dca\(.*  The book\n$")
        done = run("verify", self.store)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, rf"^{self.store}/{made['name']}: whole, 519 tokens, ")
        (file,) = self.json("verify", self.store)["files"]
        self.assertEqual((file["path"], file["whole"], file["n_tokens"]), (f"{self.store}/{made['name']}", True, 519))
        # An entry is a snapshot like others.
        snapshot = self.store / f"{made['name']}.quire"
        asked = self.ask("--document", snapshot, *PROMPT)
        self.assertEqual(asked["tokens"], self.ask("-s", "dca", "-f", self.text, *PROMPT)["tokens"])
        self.fails(1, "NOT_FOUND", "rm", self.store, "0" * 32)
        self.fails(1, "INVALID_ARGUMENT", "rm", self.store, "0123")
        done = run("rm", self.store, "--older-than", 1)
        self.assertEqual((done.returncode, done.stdout, len(self.entries())), (0, "", 1))
        data = bytearray(snapshot.read_bytes())
        data[64] ^= 1
        snapshot.write_bytes(data)
        done = run("verify", self.store)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("is damaged", done.stdout)
        done = run("rm", self.store, made["name"][:6])
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"removed {made['name']}\n", ""))
        self.json("index", self.text, *self.options)
        self.assertEqual(self.json("rm", self.store, "--all"), {"removed": [made["name"]], "failed": []})
        (failed,) = json.loads(run("rm", self.store, "0" * 32, "--json").stdout)["failed"]
        self.assertEqual((failed["name"], failed["status"]), ("0" * 32, "NOT_FOUND"))
        self.assertEqual(sorted(path.name for path in self.store.iterdir()), ["notes.txt", "store.lock"])

    def test_an_entry_that_is_removed_meanwhile_is_no_damage(self):
        made = self.json("index", self.text, *self.options)
        self.text.write_text("Another text.\n" * 40)
        other = self.json("index", self.text, *self.options)
        with open(self.store / "store.lock", "r+b") as locks:  # as who removes it holds it (lib/kv/FORMAT.md)
            fcntl.lockf(locks, fcntl.LOCK_EX, 1, 2 + 2 * int(made["name"][:15], 16))
            found = self.json("verify", self.store)
            self.assertEqual(([file["path"] for file in found["files"]], found["whole"]),
                             ([f"{self.store}/{other['name']}"], True))

    def test_a_damaged_entry_is_read_anew(self):
        expected, _ = self.run_json()
        [entry] = self.entries()
        snapshot = self.store / f"{entry['name']}.quire"
        text = self.text.read_text()
        whole = snapshot.read_bytes()

        def damage(at):
            data = bytearray(whole)
            data[at] ^= 1
            snapshot.write_bytes(data)

        for at in (64, len(whole) * 9 // 10):  # keys, seen when they are read, and what loading sees
            damage(at)
            found, said = self.run_json()
            self.assertIn("is damaged: its checksum is another one", said)
            self.assertEqual(found["top_logprobs"], expected["top_logprobs"])
            self.assertTrue(self.json("verify", self.store)["whole"])
        damage(64)
        done = run("index", self.text, *self.options)
        self.assertEqual((done.returncode, done.stdout),
                         (0, f"{self.store}/{entry['name']}: 519 tokens, 0 of them reused\n"), done.stderr)
        self.assertRegex(done.stderr, "^quire: warning: .* is damaged.*; the entry is removed\n$")
        damage(64)
        self.text.write_text(text + "The grass is green. " * 20)
        _, said = self.run_json()
        self.assertIn("the entry is removed", said)
        self.assertTrue(self.json("verify", self.store)["whole"])

    def test_the_deadline_holds(self):
        self.text.write_text(TEXT * 400)
        done = run("run", *self.options, "-f", self.text, *PROMPT, "--deadline", 0.5, "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["finish_reason"]), (1, "deadline"))
        self.assertRegex(done.stderr, r"reading ended by deadline: \d+ of \d+ tokens were read\n$")
        [entry] = self.entries()
        self.assertGreater(entry["n_tokens"], 0)

    def test_the_budget_holds(self):
        size = 0
        for i in range(3):
            self.text.write_text(f"{i} is a number. " + TEXT)
            self.json("index", self.text, *self.options, *(["--store-budget", 5 * size // 2] if size else []))
            size = max(e["bytes"] for e in self.entries())
        self.assertEqual(len(self.entries()), 2)
        self.text.write_text("One more document. " + TEXT)
        done = run("index", self.text, *self.options, "--store-budget", 1000)  # refused before it is read
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"at least \d+ bytes; the store's budget is 1000 \[BUDGET\]\n$")
        done = run("index", self.text, *self.options, "--store-budget", 550_000)  # what only the whole entry exceeds
        self.assertRegex(done.stderr, r"up to \d+ bytes; the store's budget is 550000 \[BUDGET\]\n$")
        # An answer is worth more than its document's place.
        self.text.write_text("Yet another document. " + TEXT)
        found, said = self.run_json("--store-budget", 1000)
        self.assertIn("quire: warning: cannot put the document into the store", said)
        self.assertEqual(len(found["tokens"]), 8)

    def test_what_cannot_be_kept_is_not_read(self):
        index = ["index", self.text, "-s", "dca", "--store", self.store, "-m", "/nowhere/model"]
        for title in ("x" * 1025, "caf\udce9"):  # the second is not UTF-8
            self.fails(2, "--title must be UTF-8", *index, "--title", title)
        self.fails(1, "/nowhere/model", *index, "--title", "x" * 1024)
        lock = self.store / "store.lock"
        lock.chmod(0o400)
        self.lock(self.store)
        self.fails(1, f"cannot write {self.store}/: Permission denied", *index)
        self.store.chmod(0o700)
        self.fails(1, f"cannot write {lock}: Permission denied", *index)

    def test_bad_usage(self):
        self.fails(2, "needs a document", "run", *self.options, "-p", "x")
        self.fails(2, "--chat", "run", *self.options, "-f", self.text, "-p", "x", "--chat")
        self.fails(2, "(--output) or a store", "index", self.text, "-m", OPTIONS.model)
        self.fails(2, "(--output) or a store", "index", self.text, *self.options, "-o", self.snapshot)
        self.fails(2, "--title needs --store", "index", self.text, "-m", OPTIONS.model, "-o", self.snapshot, "--title", "x")
        self.fails(2, "--older-than", "rm", self.store)
        self.fails(2, "--older-than", "rm", self.store, "--all", "x")
        self.fails(1, "no document store", "rm", self.store, "--all")
        self.text.write_text("x")
        self.fails(1, "NOT_FOUND", "run", "-m", OPTIONS.model, "--store", "/no/such/store", "-f", self.text)
        self.fails(1, "", "run", "-m", OPTIONS.model, "--store", self.text, "-f", self.text)


class IndexTest(SnapshotTest):
    def test_answers_are_those_of_reading_again(self):
        for strategy in ("dca", "streaming_llm(sinks=4, recent=124)"):
            made = self.index(strategy=strategy)
            self.assertEqual((made["n_pending"], made["n_prompt_tokens"]), (0, made["n_tokens"]))
            for question in (PROMPT, ["-n", 8, "--ignore-eos"]):
                anew = self.ask("-s", strategy, "-f", self.text, *question)
                asked = self.ask("--document", self.snapshot, *question)
                self.assertEqual(len(anew["tokens"]), 8)
                for key in ("tokens", "text", "top_logprobs", "strategy", "finish_reason", "n_pending_tokens"):
                    self.assertEqual(asked[key], anew[key], (strategy, key))
                self.assertEqual(asked["n_prompt_tokens"], anew["n_prompt_tokens"] - made["n_tokens"])
            self.snapshot.unlink()

    def test_a_document_from_stdin_and_its_control_tokens(self):
        made = self.index("-", "--parse-special", stdin="One</s>two")
        self.assertLess(made["n_tokens"], self.ask("-f", "-", "-n", 0, stdin="One</s>two")["n_prompt_tokens"])
        self.assertEqual(made["n_tokens"],
                         self.ask("-f", "-", "-n", 0, "--parse-special", stdin="One</s>two")["n_prompt_tokens"])
        self.assertEqual(self.index("-", "--parse-special", stdin="One</s>two")["n_prompt_tokens"], 0)
        again = self.index("-", stdin="One</s>two")  # another text, without the control token
        self.assertGreater(again["n_tokens"], made["n_tokens"])

    def test_expects_room_for_questions(self):
        made = self.index(strategy="full + dynamic_ntk(factor=2)")
        self.assertIn(f"length={made['n_tokens'] + 1024},", made["origin"]["strategy"])

    def test_options_of_the_session(self):
        self.make()
        budget = 200 << 10
        asked = self.ask("--document", self.snapshot, *PROMPT, "--kv-budget", budget)
        self.assertLessEqual(asked["kv_bytes_peak"], budget)
        free = self.ask("--document", self.snapshot, *PROMPT, "-s", "dca", "--kv-type", "f16")
        self.assertGreater(free["kv_bytes_peak"], budget)
        self.assertEqual((asked["tokens"], asked["top_logprobs"]), (free["tokens"], free["top_logprobs"]))
        ask = ["run", "-m", OPTIONS.model, "--document", self.snapshot, *PROMPT]
        self.fails(1, "its strategy is dca(", *ask, "-s", "full")
        self.fails(1, "its kv_type is f16; here it is f32", *ask, "--kv-type", "f32")
        self.fails(1, "its kv_old_type is none; here it is int8", *ask, "--kv-old", "int8")

    def test_a_complete_one_stays_as_it_is(self):
        self.make()
        before = self.snapshot.stat()
        done = run("index", self.text, "-m", OPTIONS.model, "-s", "dca", "-o", self.snapshot)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"text\.quire: complete already, \d+ tokens, .* KiB\n$")
        after = self.snapshot.stat()
        self.assertEqual((before.st_ino, before.st_mtime_ns), (after.st_ino, after.st_mtime_ns))
        self.assertEqual(self.index()["n_prompt_tokens"], 0)

    def test_goes_on_behind_a_document_that_has_grown(self):
        self.make()
        n_before = self.index()["n_tokens"]
        self.text.write_text(TEXT + "The grass is green.\n" * 30)
        before = self.snapshot.stat().st_ino
        grown = self.index()
        self.assertGreater(grown["n_tokens"], n_before)
        self.assertTrue(self.snapshot.read_bytes().startswith(SnapshotTest.whole))  # what is new was appended
        self.assertEqual(self.snapshot.stat().st_ino, before)
        self.assertEqual(run("verify", self.snapshot).returncode, 0)
        self.assertEqual(grown["n_prompt_tokens"], grown["n_tokens"] - n_before)
        anew, asked = self.ask("-s", "dca", "-f", self.text, *PROMPT), self.ask("--document", self.snapshot, *PROMPT)
        self.assertEqual(grown["n_tokens"] + asked["n_prompt_tokens"], anew["n_prompt_tokens"])
        self.assertEqual(asked["top_logprobs"], anew["top_logprobs"])

    def test_keeps_what_comes_before_a_change(self):
        self.make()
        n_before = self.index()["n_tokens"]
        changes = [TEXT[:len(TEXT) // 2] + "The road was new. " + TEXT[len(TEXT) // 2:], TEXT[:len(TEXT) // 2], TEXT]
        for text in changes:
            self.text.write_text(text)
            changed = self.index()
            self.assertGreater(changed["n_kept_tokens"], n_before // 3)
            self.assertEqual(changed["n_kept_tokens"] + changed["n_prompt_tokens"], changed["n_tokens"])
            self.assertEqual((changed["n_moved_tokens"], changed["n_approximate"]), (0, 0))
            anew, asked = self.ask("-s", "dca", "-f", self.text, *PROMPT), self.ask("--document", self.snapshot, *PROMPT)
            self.assertEqual((asked["tokens"], asked["top_logprobs"]), (anew["tokens"], anew["top_logprobs"]))

    def test_takes_over_what_comes_behind_a_change(self):
        text = "".join(f"Line {i * i} of the log says {i * 7919 % 1000}. " for i in range(100))
        self.text.write_text(text)
        made = self.index()
        self.text.write_text("The newest line comes first. " + text)
        again = ["index", self.text, "-m", OPTIONS.model, "-s", "dca", "-o", self.snapshot]
        done = run(*again, "--reuse", "approximate")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"tokens, \d+ of them approximate, .*; \d+ tokens kept, \d+ taken over, \d+ computed\n")
        entry = self.json("ls", self.snapshot)["snapshots"][0]
        self.assertGreater(entry["n_approximate"], made["n_tokens"] // 2)
        self.assertIn(str(entry["n_approximate"]), run("ls", self.snapshot).stdout)
        self.assertEqual(run("verify", self.snapshot).returncode, 0)
        self.assertEqual(len(self.ask("--document", self.snapshot, *PROMPT)["tokens"]), 8)
        exact = self.index()  # which reads it exactly
        self.assertGreater(exact["n_prompt_tokens"], made["n_tokens"] // 2)
        self.assertEqual(exact["n_approximate"], 0)
        anew, asked = self.ask("-s", "dca", "-f", self.text, *PROMPT), self.ask("--document", self.snapshot, *PROMPT)
        self.assertEqual(asked["top_logprobs"], anew["top_logprobs"])
        self.fails(2, "a store keeps exact texts only", "index", self.text, "-m", OPTIONS.model, "--store",
                   self.folder / "store", "--reuse", "approximate")

    def test_what_cannot_be_kept_is_not_read(self):
        self.make()
        index = ["index", self.text, "-m", OPTIONS.model, "-o", self.snapshot, "--json"]
        self.snapshot.chmod(0o400)
        self.lock(self.folder)
        self.assertEqual(run(*index).returncode, 0)  # nothing is to be written
        self.text.write_text(TEXT * 400)
        self.fails(1, f"quire: cannot write {self.snapshot}: Permission denied\n", *index)
        self.text.write_text(TEXT + "The grass is green.")
        self.snapshot.chmod(0o600)  # and goes on in the file
        self.assertEqual(self.index()["n_pending"], 0)

    def test_another_document_is_refused(self):
        self.make()
        again = ["index", self.text, "-m", OPTIONS.model, "-o", self.snapshot]
        self.text.write_text("Quite another story, of other people.")
        self.fails(1, "that could be kept", *again)
        self.fails(1, "that could be kept", *again, "--reuse", "approximate")
        self.text.write_text(TEXT[:100] + "Quite another story, of other people.\n" * 40)  # many books begin alike
        self.fails(1, "that could be kept", *again)
        self.text.write_text(TEXT)
        self.fails(1, "its strategy is dca(", *again, "-s", "full")
        self.assertEqual(self.snapshot.read_bytes(), SnapshotTest.whole)

    def test_what_is_no_snapshot_is_not_replaced(self):
        for damage in (b"", b"my notes", b"QUIRESNP" * 100):
            self.snapshot.write_bytes(damage)
            self.fails(1, "[BAD_FILE]", "index", self.text, "-m", "/nowhere/model", "-o", self.snapshot)
            self.assertEqual(self.snapshot.read_bytes(), damage)

    def test_nothing_is_left_behind_by_a_failure(self):
        index = ["index", self.text, "-m", OPTIONS.model, "-o"]
        self.fails(1, "[OVERFLOW]", *index, self.snapshot)
        self.fails(1, "cannot write", *index, self.folder / "none" / "x.quire")
        self.text.write_text("")
        self.fails(1, "is empty", *index, self.snapshot)
        self.text.write_text(" \n\f")
        self.fails(1, "is empty but for white space", *index, self.snapshot)
        self.fails(1, "/nowhere/text", "index", "/nowhere/text", "-m", OPTIONS.model, "-o", self.snapshot)
        self.assertEqual(os.listdir(self.folder), ["text"])

    def test_a_link_that_leads_nowhere(self):
        self.snapshot.symlink_to("nowhere")
        self.index()
        self.assertEqual(set(self.folder.iterdir()), {self.text, self.snapshot})
        self.assertFalse(self.snapshot.is_symlink())

    def test_what_was_read_is_saved_when_reading_fails(self):
        index = ["index", self.text, "-m", OPTIONS.model, "-s", "dca", "-o", self.snapshot]
        self.fails(1, "[BUDGET]", *index, "--kv-budget", 400 << 10)
        self.fails(1, "quire: warning: a document of 519 tokens does not fit: ", *index, "--kv-budget", 400 << 10)
        partial = self.json("ls", self.snapshot)["snapshots"][0]
        self.assertGreater(partial["n_tokens"], 0)
        self.assertGreater(partial["n_pending"], 0)
        self.assertEqual(self.index()["n_prompt_tokens"], partial["n_pending"])
        self.make()
        whole = self.json("ls", self.snapshot)["snapshots"][0]
        self.assertEqual(partial["n_tokens"] + partial["n_pending"], whole["n_tokens"])

    def test_what_ends_at_the_reach_does_not_go_on(self):
        index = ["index", self.text, "-m", OPTIONS.model, "--overflow", "stop"]
        for place in (["-o", self.snapshot], ["--store", self.folder / "library"]):
            for _ in range(2):
                done = run(*index, *place)
                self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                self.assertRegex(done.stderr, r"^quire: reading ended by reach: \S+ has 256 of 519 tokens; .*\[OVERFLOW\]\n"
                                 r"Try -s auto, .*\n$")
        self.assertEqual(self.json("ls", self.snapshot)["snapshots"][0]["n_tokens"], 256)

    def interrupt(self, sent):
        """Starts to read far more than can be read in a test, and presses Ctrl-C when some tokens are read."""
        primary, secondary = pty.openpty()
        with os.fdopen(primary, "rb", buffering=0) as terminal, subprocess.Popen(
                [OPTIONS.quire, "index", self.text, "-m", OPTIONS.model, "-s", "dca", "-o", self.snapshot],
                stdout=subprocess.DEVNULL, stderr=secondary) as process:
            os.close(secondary)
            seen, pressed = b"", False
            while True:
                try:
                    seen += terminal.read(4096)
                except OSError:  # the other end is closed
                    break
                if not pressed and re.search(rb"reading \[.*% +[1-9]\d*/\d+ tokens", seen):
                    process.send_signal(sent)
                    process.send_signal(sent)  # as timeout(1) does, to the program and to its group
                    pressed = True
        self.assertEqual(process.returncode, 130, seen)
        self.assertTrue(seen.endswith(b"the same command goes on from there\r\nquire: interrupted\r\n"), seen)
        saved = self.json("ls", self.snapshot)["snapshots"][0]
        self.assertIn(f"has {saved['n_tokens']} of {saved['n_tokens'] + saved['n_pending']} tokens".encode(), seen)
        return saved

    def test_interrupted_it_goes_on_from_there(self):
        self.text.write_text(TEXT * 200)
        first, second = self.interrupt(signal.SIGINT), self.interrupt(signal.SIGTERM)
        self.assertGreater(first["n_tokens"], 0)
        self.assertGreater(second["n_tokens"], first["n_tokens"])
        self.assertGreater(second["n_pending"], 0)
        self.assertEqual(first["n_tokens"] + first["n_pending"], second["n_tokens"] + second["n_pending"])

    def session(self, strategy):
        """Of the Python binding, where there is one for this library; with the ids of the text."""
        if "QUIRE_LIBRARY" not in os.environ:
            self.skipTest("no Python binding")
        import quire
        model = self.enterContext(self.enterContext(quire.Runtime()).load(OPTIONS.model))
        return self.enterContext(model.session(strategy)), model.tokenizer.encode(TEXT)

    def test_an_incomplete_one_can_be_asked(self):
        session, ids = self.session("dca")
        session.feed_tokens(ids[:100])
        session.prefill()
        session.feed_tokens(ids[100:])
        session.save(self.snapshot)
        done = run("run", "-m", OPTIONS.model, "--document", self.snapshot, *PROMPT, "--json", "--top-logprobs", 2)
        self.assertIn(f"is not complete: {len(ids) - 100} more tokens are read now", done.stderr)
        anew = self.ask("-s", "dca", "-f", self.text, *PROMPT)
        self.assertEqual(json.loads(done.stdout)["top_logprobs"], anew["top_logprobs"])
        self.assertEqual(self.index()["n_prompt_tokens"], len(ids) - 100)
        self.assertEqual(self.ask("--document", self.snapshot, *PROMPT)["top_logprobs"], anew["top_logprobs"])

    def test_what_is_more_than_a_document_is_refused(self):
        """Though its tokens are those of the document."""
        again = ["index", self.text, "-m", OPTIONS.model, "-o", self.snapshot]
        session, ids = self.session("full")
        session.feed_tokens(ids[:100])
        list(session.stream(1, logit_bias={ids[100]: 1000}))
        self.assertEqual(session.n_tokens, 101)
        session.save(self.snapshot)
        self.fails(1, "has generated tokens", *again)
        session.reset()
        session.feed_tokens(ids[:100], [*range(50), *range(60, 110)])
        session.save(self.snapshot)
        self.fails(1, "positions of its own", *again)
        session.reset()
        session.feed_tokens(ids[:100])
        session.save(self.snapshot)
        self.fails(1, "[OVERFLOW]", *again)  # a document's beginning, which goes on

    def test_wrong_usage(self):
        ask = ["run", "-m", "x", "--document", self.snapshot, "-p", "x"]
        self.fails(2, "--document", *ask, "-f", self.text)
        self.fails(2, "--chat", *ask, "--chat")
        self.fails(2, "--output", "index", self.text, "-m", "x")
        self.fails(1, "text.quire", *ask)  # before the model is looked for


class VerifyTest(SnapshotTest):
    def test_finds_damage_and_goes_on(self):
        self.make()
        data = SnapshotTest.whole
        flipped, short = bytearray(data), data[:-1]
        flipped[len(data) // 2] ^= 1
        damaged = [self.folder / "flipped.quire", self.folder / "short.quire", self.folder / "missing.quire", self.text]
        damaged[0].write_bytes(flipped)
        damaged[1].write_bytes(short)
        done = run("verify", *damaged, self.snapshot)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        lines = done.stdout.splitlines()
        for path, line, part in zip(damaged, lines, ("block", "its end is missing", "[NOT_FOUND]", "not a snapshot")):
            self.assertTrue(line.startswith(f"{path}: "), line)
            self.assertIn(part, line)
        whole = f"{self.snapshot}: whole, 519 tokens, "
        self.assertEqual((len(lines), lines[4][:len(whole)]), (5, whole))
        alone = run("verify", self.snapshot)
        self.assertEqual((alone.returncode, alone.stdout), (0, lines[4] + "\n"))
        done = run("verify", "--json", *damaged, self.snapshot)
        found = json.loads(done.stdout)
        self.assertEqual((done.returncode, done.stderr, found["whole"]), (1, "", False))
        for file, path, line in zip(found["files"], damaged, lines):
            self.assertEqual(file["path"], str(path))
            self.assertEqual((file["whole"], f"{file['reason']} [{file['status']}]"), (False, line))
        self.assertEqual(found["files"][4:],
                         [{"path": str(self.snapshot), "whole": True, "bytes": len(data), "n_tokens": 519}])

    def test_every_byte_that_counts_is_looked_at(self):
        """A flipped byte is found in the first and the last block as in the header, the index and the footer."""
        self.make()
        data = SnapshotTest.whole
        for at in (0, 20, 64, data.index(b'"contents"'), len(data) - 1):
            changed = bytearray(data)
            changed[at] ^= 0x10
            self.snapshot.write_bytes(changed)
            self.assertEqual(run("verify", self.snapshot).returncode, 1, at)


class LsTest(SnapshotTest):
    def test_lists_a_directory_and_skips(self):
        self.make()
        (self.folder / "a.quire").write_bytes(SnapshotTest.whole)
        (self.folder / "b.quire").write_text("my notes " * 20)
        (self.folder / "c.copy").write_bytes(SnapshotTest.whole)
        done = run("ls", self.folder)
        self.assertEqual((done.returncode, done.stderr),
                         (0, f"quire: skipped {self.folder}/b.quire: not a snapshot\n"))
        head, *rows = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(head, ["file", "tokens", "pending", "approximate", "size", "kv", "model", "strategy"])
        self.assertEqual([row[:3] for row in rows],
                         [[str(self.folder / name), "519", "0"] for name in ("a.quire", "text.quire")])
        listed = self.json("ls", self.folder)
        self.assertEqual([item["path"] for item in listed["snapshots"]], [row[0] for row in rows])
        self.assertEqual(listed["skipped"],
                         [{"path": f"{self.folder}/b.quire", "reason": f"{self.folder}/b.quire: not a snapshot"}])
        item = listed["snapshots"][0]
        self.assertEqual((item["n_tokens"], item["n_pending"], item["bytes"]), (519, 0, len(SnapshotTest.whole)))
        self.assertEqual(rows[0][6:9], [item["origin"]["kv_type"], item["origin"]["model"][:8], "dca(preset=paper,"])
        here = run("ls", cwd=self.folder)
        self.assertEqual([line.split()[0] for line in here.stdout.splitlines()], ["file", "a.quire", "text.quire"])

    def test_says_how_old_text_is_kept(self):
        self.index(None, "--kv-old", "int8", "--old-after", 100)
        origin = self.json("ls", self.snapshot)["snapshots"][0]["origin"]
        self.assertEqual((origin["kv_type"], origin["kv_old_type"], origin["old_after"]), ("f16", "int8", 100))
        self.assertRegex(run("ls", self.snapshot).stdout, r"  f16, int8 after 100  [0-9a-f]{8}  dca")
        ask = ["run", "-m", OPTIONS.model, "--document", self.snapshot, *PROMPT]
        self.fails(1, "its kv_old_type is int8; here it is int4", *ask, "--kv-old", "int4", "--old-after", 100)
        store = self.folder / "store"
        self.json("index", self.text, "-m", OPTIONS.model, "-s", "dca", "--store", store, "--kv-old", "int4",
                  "--old-after", 0)
        self.assertRegex(run("ls", store).stdout, r"  f16, int4 after 0  [0-9a-f]{8}  ")

    def test_files_by_name_whatever_it_is(self):
        self.make()
        copy = self.folder / "c.copy"
        copy.write_bytes(SnapshotTest.whole)
        self.assertEqual(self.json("ls", copy)["snapshots"][0]["path"], str(copy))
        done = run("ls", self.text, copy, "--json")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        listed = json.loads(done.stdout)
        self.assertEqual([item["path"] for item in listed["snapshots"] + listed["skipped"]], [str(copy), str(self.text)])
        self.assertEqual(run("ls", "/nowhere").returncode, 1)


def main():
    global OPTIONS
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, even where a shell started the tests in the background
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", required=True, help="a Llama directory with a SentencePiece tokenizer")
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.quire = os.path.abspath(OPTIONS.quire)  # some tests run it elsewhere
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
