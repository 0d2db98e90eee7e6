"""examples/serve with two workers: a conversation has the same tokens whether or not its worker is killed.

run.sh runs this in namespaces of its own.
"""

import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "examples" / "serve"))

import quire
from client import Client

MODEL = SOURCE / "examples" / "embedded_model" / "model"
DOCUMENT = SOURCE / "examples" / "quickstart.txt"
PORT = 8000
QUESTIONS = ["\nWhat is the pass key? The pass key is", "\nWhat is the code? The code is"]
NEWLINE = 13
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def loopback_up():
    """A new network namespace has a loopback interface, but it is down."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def expected(turns):
    """What a session in this process says: the tokens of each answer. turns: (question, options of the stream)."""
    answers = []
    with quire.Runtime(threads=1) as runtime, runtime.load(MODEL) as model, model.session("dca") as session:
        session.feed(DOCUMENT.read_text(encoding="utf-8"))
        for question, options in turns:
            session.feed(question)
            answers.append([event.token for event in session.stream(**options) if event.kind == "token"])
    return answers


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        (folder / "texts").mkdir()
        shutil.copy(DOCUMENT, folder / "texts" / "book.txt")
        cls.folder = folder
        environment = {**os.environ, "HOME": str(folder), "RAY_TMPDIR": str(folder / "ray")}
        command = [sys.executable, str(SOURCE / "examples" / "serve" / "app.py"), str(MODEL), str(folder), f"--port={PORT}"]
        with open(folder / "log", "w", encoding="utf-8") as log:
            cls.server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        cls.addClassCleanup(cls.server.communicate)
        cls.addClassCleanup(cls.server.terminate)
        for line in cls.server.stdout:
            if line.startswith("serving on"):
                return
        raise AssertionError("the server ended:\n" + (folder / "log").read_text(encoding="utf-8")[-4000:])

    def ask(self, client, question, kill_after=None, **options):
        """The tokens of an answer, and the lines that workers began with. kill_after: so many tokens, the worker's end."""
        tokens, begun = [], []
        for part in client.ask(question, **options):
            begun += [part] if "worker" in part else []
            if "token" in part:
                tokens.append(part["token"])
                if len(tokens) == kill_after:
                    os.kill(begun[0]["worker"], signal.SIGKILL)
        return tokens, begun

    def client(self):
        return Client(f"http://127.0.0.1:{PORT}/answer", "book")

    def test_a_worker_dies_between_answers(self):
        options = dict(max_tokens=24, stop_ids=[NEWLINE])
        client, answers, workers = self.client(), [], []
        for question in [*QUESTIONS, QUESTIONS[0]]:
            tokens, begun = self.ask(client, question, **options)
            answers.append(tokens)
            workers += begun
            os.kill(begun[-1]["worker"], signal.SIGKILL)
        self.assertEqual(answers, expected([(question, options) for question in [*QUESTIONS, QUESTIONS[0]]]))
        # Each answer came from another worker, which read the question alone: all before was in the snapshot.
        self.assertEqual(len({begun["worker"] for begun in workers}), 3)
        for begun in workers[1:]:
            self.assertEqual(begun["n_tokens"] - begun["n_kept"], len(begun["asked"]))

    def test_a_worker_dies_while_it_answers(self):
        short, long = dict(max_tokens=24, stop_ids=[NEWLINE]), dict(max_tokens=1500, ignore_eos=True, temperature=0.8, seed=7)
        client = self.client()
        first, _ = self.ask(client, QUESTIONS[0], **short)
        second, begun = self.ask(client, QUESTIONS[1], kill_after=20, **long)
        third, _ = self.ask(client, QUESTIONS[0], **short)
        self.assertEqual(len(begun), 2, "one worker died, and only after it had begun")
        self.assertNotEqual(begun[0]["worker"], begun[1]["worker"])
        self.assertEqual([first, second, third], expected([(QUESTIONS[0], short), (QUESTIONS[1], long), (QUESTIONS[0], short)]))
        # The second worker had the conversation before this answer, and read what the first one had said of it.
        self.assertGreaterEqual(begun[1]["n_tokens"] - begun[0]["n_tokens"], 20)
        self.assertEqual(begun[1]["n_kept"], begun[0]["n_kept"])

    def test_an_answer_goes_on_while_others_take_its_place(self):
        """A worker keeps 16 conversations; one that it lets go may have an answer in the making."""
        options = dict(max_tokens=8000, ignore_eos=True, temperature=0.8, seed=7)
        answer = self.client().ask(QUESTIONS[0], **options)
        parts = [next(answer) for _ in range(2)]
        for _ in range(60):
            self.ask(self.client(), QUESTIONS[1], max_tokens=1)
        parts += answer
        self.assertEqual(len([part for part in parts if "worker" in part]), 1)
        self.assertEqual(parts[-1].get("finish"), "max_tokens")
        self.assertEqual([part["token"] for part in parts if "token" in part], expected([(QUESTIONS[0], options)])[0])

    def test_a_document_is_read_once(self):
        for _ in range(2):
            self.ask(self.client(), QUESTIONS[0], max_tokens=2)
        documents = quire.Store(self.folder / "documents").describe()["entries"]
        self.assertEqual([entry["title"] for entry in documents], ["book"])
        _, begun = self.ask(self.client(), QUESTIONS[0], max_tokens=2)
        self.assertEqual(begun[0]["n_tokens"] - begun[0]["n_kept"], len(begun[0]["asked"]))

    def test_what_a_worker_cannot_do_is_an_error_line(self):
        client = Client(f"http://127.0.0.1:{PORT}/answer", "no-such-book")
        with self.assertRaisesRegex(RuntimeError, "FileNotFoundError.*no-such-book"):
            self.ask(client, QUESTIONS[0], max_tokens=1)
        with self.assertRaisesRegex(RuntimeError, "QuireError.*top_p"):
            self.ask(self.client(), QUESTIONS[0], max_tokens=1, top_p=2.0)


if __name__ == "__main__":
    loopback_up()
    unittest.main()
