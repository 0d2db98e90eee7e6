#!/usr/bin/env python3
"""Tests of quire chat and quire run --chat. The embedded model has no chat template: it answers by that of Llama 2."""
import argparse
import json
import os
import pathlib
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

    def test_the_second_answer_depends_on_the_first_message(self):
        first, second = chat("Hello\nAgain\n"), chat("Once upon a time\nAgain\n")
        self.assertEqual((first.returncode, second.returncode), (0, 0))
        self.assertNotEqual(first.stdout.splitlines()[-1], second.stdout.splitlines()[-1])
        self.assertEqual(first.stdout, chat("Hello\nAgain\n").stdout)

    def test_a_document_is_part_of_the_next_message(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The reader turns the leaves.\n")
            file.flush()
            read = answer("-f", file.name, "-p", "What?")
            self.assertEqual(read["text"], answer("-p", "The reader turns the leaves.\n\nWhat?")["text"])
            done = self.assert_chat([read], f"/file {file.name}\nWhat?\n")
            self.assertIn("29 bytes", done.stderr)
            self.assert_chat([answer("-p", "What?")], f"/file {file.name}\n/reset\nWhat?\n")

    def test_commands(self):
        self.assertIn("/file PATH", chat("/help\n").stderr)
        for wrong in ("/nothing\n", "/file /nowhere\n", "/file -\n", "/file\n"):
            done = chat(wrong)
            self.assertEqual((done.returncode, done.stdout), (1, ""), wrong)
            self.assertTrue(done.stderr.startswith("quire: "), done.stderr)
        self.assert_chat([answer("-p", "/help")], "//help\n")
        listed = run("chat", "--templates")
        self.assertEqual(listed.returncode, 0)
        self.assertIn("llama3.1 ", listed.stdout)

    def test_a_failed_message_leaves_the_conversation_as_it_was(self):
        done = chat("word " * 300 + "\nHello\n")
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
        for template, part in ((None, "NOT_FOUND"), ("chatml", "<|im_start|>, <|im_end|>"), ("llama", "INVALID_ARGUMENT")):
            done = chat("Hello\n", template=template)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(part, done.stderr)
        done = chat("Hello\n", "--system", "Be brief.", template="mistral-v0.2")
        self.assertEqual(done.returncode, 1)
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


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", required=True, help="a Llama directory with a SentencePiece tokenizer")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
