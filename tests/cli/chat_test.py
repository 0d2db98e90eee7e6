#!/usr/bin/env python3
"""Tests of quire chat and quire run --chat. The embedded model has no chat template: it answers by that of Llama 2."""
import argparse
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import unittest

OPTIONS = None  # --quire, --model

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
    "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' "
    "%}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}")


def run(*arguments, stdin=""):
    return subprocess.run([OPTIONS.quire, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=240,
                          check=False)


def chat(stdin, *arguments, template="llama2", model=None):
    named = ["--chat-template", template] if template else []
    return run("chat", "-m", model or OPTIONS.model, "-n", 8, "--ignore-eos", *named, *arguments, stdin=stdin)


def answer(*arguments):
    done = run("run", "-m", OPTIONS.model, "--chat", "--chat-template", "llama2", "-n", 8, "--ignore-eos", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def model_with_template(folder, text):
    """A model directory like the embedded one, with a chat template."""
    for path in pathlib.Path(OPTIONS.model).resolve().iterdir():
        os.symlink(path, pathlib.Path(folder) / path.name)
    (pathlib.Path(folder) / "chat_template.jinja").write_text(text)
    return folder


def line(text):
    return text if text.endswith("\n") else text + "\n"


class ChatTest(unittest.TestCase):
    def assert_chat(self, expected, stdin, *arguments, **options):
        done = chat(stdin, *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "".join(line(result["text"]) for result in expected))
        return done

    def test_the_first_answer_is_that_of_run(self):
        hello, brief = answer("-p", "Hello"), answer("-p", "Hello", "--system", "Be brief.")
        self.assertGreater(brief["n_prompt_tokens"], hello["n_prompt_tokens"])
        done = self.assert_chat([hello], "Hello\n")
        self.assertIn("[ended by max_tokens]", done.stderr)
        self.assert_chat([brief], "Hello", "--system", "Be brief.")  # the last line need not end
        self.assert_chat([hello, hello], "Hello\n\n/reset\nHello\n/quit\nHello\n")
        self.assert_chat([hello, hello], "Hello\r\n/reset\r\nHello\r\n/quit\r\nHello\r\n")  # as Windows ends lines

    def test_the_second_answer_depends_on_the_first_message(self):
        first, second = chat("Hello\nWhat is next?\n"), chat("Seven ships\nWhat is next?\n")
        self.assertEqual((first.returncode, second.returncode), (0, 0))
        self.assertNotEqual(first.stdout.splitlines()[-1], second.stdout.splitlines()[-1])
        self.assertEqual(first.stdout, chat("Hello\nWhat is next?\n").stdout)

    def test_a_document_is_part_of_the_next_message(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The reader turns the leaves.\n")
            file.flush()
            read = answer("-f", file.name, "-p", "What?")
            self.assertEqual(read["text"], answer("-p", "The reader turns the leaves.\n\nWhat?")["text"])
            done = self.assert_chat([read], f"/file {file.name}\nWhat?\n")
            self.assertRegex(done.stderr, r"goes with the next message: 29 bytes, \d+ tokens]")
            self.assert_chat([answer("-p", "What?")], f"/file {file.name}\n/reset\nWhat?\n")
            for typed in (f'/file "{file.name}" \r', f"/file  '{file.name}'"):
                self.assert_chat([read], f"{typed}\nWhat?\n")

    def test_what_is_no_text_is_not_attached(self):
        for data, reason in ((b"%PDF-1.7\n\xe2\xe3", "is a PDF file, not text; `pdftotext"), (b"caf\xe9", "at byte 3"),
                             (b"", "is empty")):
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                done = chat(f"/file {file.name}\nHello\n")
            self.assertEqual((done.returncode, done.stdout), (1, line(answer("-p", "Hello")["text"])))
            self.assertIn(file.name, done.stderr)
            self.assertIn(reason, done.stderr)
            self.assertNotIn("goes with", done.stderr)

    def test_a_document_may_be_longer_than_the_window(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The reader turns the leaves. " * 40)  # of 256 tokens
            file.flush()
            done = chat(f"/file {file.name}\nWhat?\n")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("auto chose", done.stderr)
            self.assertNotEqual(done.stdout, "")
            done = chat(f"/file {file.name}\nWhat?\n", "-s", "full")
            self.assertEqual(done.returncode, 1)
            self.assertIn("[OVERFLOW]", done.stderr)

    def test_commands(self):
        self.assertIn("/file PATH", chat("/help\n").stderr)
        for wrong in ("/nothing\n", "/file /nowhere\n", "/file -\n", "/file\n"):
            done = chat(wrong)
            self.assertEqual((done.returncode, done.stdout), (1, ""), wrong)
            self.assertTrue(done.stderr.startswith("quire: "), done.stderr)
        self.assert_chat([answer("-p", "/help")], "//help\n \t\n")  # a blank line is no message
        listed = run("chat", "--templates")
        self.assertEqual(listed.returncode, 0)
        self.assertIn("llama3.1 ", listed.stdout)

    def test_a_long_line_costs_its_length(self):
        """And not its square, which is minutes of the processor's time."""
        limited = lambda: resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
        done = subprocess.run([OPTIONS.quire, "chat", "-m", OPTIONS.model, "--chat-template", "llama2"], capture_output=True,
                              input=b" " * (100 << 20) + b"\n", timeout=240, check=False, preexec_fn=limited)
        self.assertEqual((done.returncode, done.stdout), (0, b""), done.stderr)

    def test_a_failed_message_leaves_the_conversation_as_it_was(self):
        done = chat("word " * 300 + "\nHello\n", "-s", "full")
        self.assertEqual(done.returncode, 1)
        self.assertIn("[OVERFLOW]", done.stderr)
        self.assertEqual(done.stdout, line(answer("-p", "Hello")["text"]))

    def test_the_checkpoints_own_template(self):
        with tempfile.TemporaryDirectory() as folder:
            model_with_template(folder, MISTRAL + "\n")
            own, named = chat("Hello\n", template=None, model=folder), chat("Hello\n", template="mistral-v0.2")
            self.assertEqual((own.returncode, own.stdout), (0, named.stdout), own.stderr)
        for text, part in (("{{ messages }}", "{{ messages }}"), ("x" * (1 << 20), "1048576 bytes")):
            with tempfile.TemporaryDirectory() as folder:
                model_with_template(folder, text)
                done = chat("Hello\n", template=None, model=folder)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(part, done.stderr)
                self.assertEqual(chat("Hello\n", model=folder).stdout, line(answer("-p", "Hello")["text"]))

    def test_templates_that_do_not_work(self):
        for template, status, part in ((None, 1, "NOT_FOUND"), ("chatml", 1, "<|im_start|>, <|im_end|>"),
                                       ("llama", 2, "INVALID_ARGUMENT")):
            done = chat("Hello\n", template=template)
            self.assertEqual((done.returncode, done.stdout), (status, ""))
            self.assertIn(part, done.stderr)
            self.assertEqual("--chat-template NAME names one" in done.stderr, template is None)
        done = chat("Hello\n", "--system", "Be brief.", template="mistral-v0.2")
        self.assertEqual(done.returncode, 2)
        self.assertIn("messages[0] (system)", done.stderr)

    def test_wrong_usage(self):
        for wrong in (["run", "-m", "x", "-p", "x", "--system", "y"], ["run", "-m", "x", "-p", "x", "--chat-template", "llama2"],
                      ["run", "-m", "x", "-p", "x", "--chat", "--parse-special"], ["chat"], ["chat", "-m", "x", "-n", "0"],
                      ["chat", "-m", "x", "--top-logprobs", "2"]):
            done = run(*wrong)
            self.assertEqual((done.returncode, done.stdout), (2, ""), wrong)

    def test_interrupt_stops_the_answer_and_at_the_prompt_leaves(self):
        with tempfile.TemporaryFile() as answers:  # a file takes all that is written, where a pipe could be full
            process = subprocess.Popen(
                [OPTIONS.quire, "chat", "-m", OPTIONS.model, "--chat-template", "llama2", "-s", "streaming_llm", "-n",
                 "100000000", "--ignore-eos"], stdin=subprocess.PIPE, stdout=answers, stderr=subprocess.PIPE)
            with process:
                for message in (b"Hello\n", b"Again\n"):
                    n_before = os.fstat(answers.fileno()).st_size
                    process.stdin.write(message)
                    process.stdin.flush()
                    while os.fstat(answers.fileno()).st_size == n_before and process.poll() is None:
                        os.sched_yield()  # until it generates
                    process.send_signal(signal.SIGINT)
                    self.assertEqual(process.stderr.readline(), b"[stopped]\n")
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.stderr.read(), b"quire: interrupted\n")
                self.assertEqual(process.wait(60), 130)

    def test_an_end_is_not_forgotten_with_an_interrupt_before_it(self):
        document = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "document"
        document.write_text("There and back again. The sky is blue.\n" * 10_000)  # read in steps, of some time each
        process = subprocess.Popen([OPTIONS.quire, "chat", "-m", OPTIONS.model, "--chat-template", "llama2"],
                                   stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with process:
            process.stdin.write(f"/file {document}\nHello\n".encode())
            process.stdin.flush()
            self.assertIn(b"goes with the next message", process.stderr.readline())
            self.assertIn(b"auto chose", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            status = pathlib.Path(f"/proc/{process.pid}/status")
            while int(re.search(r"ShdPnd:\s*(\w+)", status.read_text())[1], 16) != 0:
                pass  # of two that wait the system has SIGTERM seen first
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(60), 130)
            self.assertTrue(process.stderr.read().endswith(b"quire: interrupted\n"))


class Terminal:
    """quire chat on a terminal of its own; what it shows is read until a text comes."""

    def __init__(self, *arguments):
        self.process, self.fd = pty.fork()
        if self.process == 0:
            os.execv(OPTIONS.quire, [OPTIONS.quire, *map(str, arguments)])
        self.shown = ""

    def wait_for(self, text):
        while text not in self.shown:
            ready, _, _ = select.select([self.fd], [], [], 240)
            if not ready:
                raise AssertionError(f"{text!r} does not come; shown: {self.shown!r}")
            try:
                self.shown += os.read(self.fd, 4096).decode(errors="replace")
            except OSError as error:  # the other end is closed
                raise AssertionError(f"{text!r} did not come; shown: {self.shown!r}") from error
        before, self.shown = self.shown.split(text, 1)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        """The exit status."""
        while True:
            try:
                if not os.read(self.fd, 4096):
                    break
            except OSError:
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


class TerminalTest(unittest.TestCase):
    def test_a_conversation_about_a_document(self):
        with tempfile.TemporaryDirectory() as folder:
            document = pathlib.Path(folder) / "leaves.txt"
            document.write_text("The reader turns the leaves. " * 40)
            terminal = Terminal("chat", "-m", OPTIONS.model, "--chat-template", "llama2", "-n", 8, "--ignore-eos")
            self.assertIn("/help lists commands.", terminal.wait_for("> "))
            terminal.type("/file /nowhere\n")
            terminal.wait_for("quire: cannot open /nowhere")
            terminal.wait_for("> ")
            terminal.type(f"/file {document}\n")
            terminal.wait_for("goes with the next message: 1.1 KiB, ")
            terminal.wait_for("> ")
            terminal.type("What does the reader do?\n")
            self.assertRegex(terminal.wait_for("[ended by max_tokens]"), r"reading \[#.*\d+/\d+ tokens")
            terminal.wait_for("> ")
            terminal.type("And then?\n")  # only this is read
            self.assertNotIn("leaves.txt", terminal.wait_for("[ended by max_tokens]"))
            terminal.wait_for("> ")
            terminal.type("\x03")  # Ctrl-C at the prompt
            terminal.wait_for("quire: interrupted")
            self.assertEqual(terminal.end(), 130)

    def test_pasted_lines_are_one_message_and_cut_ones_none(self):
        terminal = Terminal("chat", "-m", OPTIONS.model, "--chat-template", "llama2", "-n", 8, "--ignore-eos")
        terminal.wait_for("> ")
        terminal.type("Hello\n\nAgain\n")
        terminal.wait_for("Again\r\n")
        shown = terminal.wait_for("[ended by max_tokens]\r\n> ")
        self.assertIn(answer("-p", "Hello\n\nAgain")["text"].replace("\n", "\r\n"), shown)
        terminal.type("x" * 5000 + "\n")  # a terminal gives out 4095 bytes of it
        terminal.wait_for("not sent: a terminal cuts lines")
        terminal.wait_for("> ")
        terminal.type("/quit\n")
        self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_in_a_document_says_what_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            document = pathlib.Path(folder) / "leaves.txt"
            document.write_text("The reader turns the leaves. " * 20000)
            terminal = Terminal("chat", "-m", OPTIONS.model, "--chat-template", "llama2", "-n", 8, "--ignore-eos")
            terminal.wait_for("> ")
            terminal.type(f"/file {document}\n")
            terminal.wait_for("goes with the next message")
            terminal.wait_for("> ")
            terminal.type("What?\n")
            terminal.wait_for("reading [")
            terminal.type("\x03")
            self.assertRegex(terminal.wait_for("/reset forgets all]"), r"\[stopped: \d+ tokens are not read yet")
            terminal.type("/reset\nHello\n")
            self.assertIn(answer("-p", "Hello")["text"].replace("\n", "\r\n"), terminal.wait_for("[ended by max_tokens]"))
            terminal.type("/quit\n")
            self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_stops_the_answer_only(self):
        terminal = Terminal("chat", "-m", OPTIONS.model, "--chat-template", "llama2", "-s", "streaming_llm", "-n", 100000000,
                            "--ignore-eos")
        terminal.wait_for("> ")
        terminal.type("Hello\n")
        terminal.wait_for("Hello\r\n")  # the echo
        while not terminal.shown.strip():
            terminal.shown += os.read(terminal.fd, 4096).decode(errors="replace")
        terminal.type("\x03")
        terminal.wait_for("[stopped]")
        terminal.wait_for("> ")
        terminal.type("/quit\n")
        self.assertEqual(terminal.end(), 0)


def main():
    global OPTIONS
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, even where a shell started the tests in the background
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", required=True, help="a Llama directory with a SentencePiece tokenizer")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
