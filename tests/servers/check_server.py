"""Checks an example server as its clients see it.

    check_server.py COMMAND...      what starts it, without the arguments MODEL DOCUMENT HOST:PORT
"""

import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
MODEL = EXAMPLES / "embedded_model" / "model"
DOCUMENT = EXAMPLES / "quickstart.txt"
KEY_QUESTION = "What is the pass key? The pass key is"
KEY = "48213"
LONG_QUESTION = "Once upon a time"  # whose answer does not end by itself
QUESTIONS = [KEY_QUESTION, "The grass is", LONG_QUESTION]
MAX_TOKENS = 200
MAX_BYTES = 64 * 1024
TIMEOUT = 60  # seconds; nothing here takes as long


class Server:
    """A server that runs, until it is told to end."""

    def __init__(self, command):
        self._name = pathlib.Path(command[0]).name
        self._complaints = tempfile.TemporaryFile("a+")  # of which both sides have one position
        self._process = subprocess.Popen([*command, MODEL, DOCUMENT, "127.0.0.1:0"], stdout=subprocess.PIPE,
                                         stderr=self._complaints, text=True)
        line = self._process.stdout.readline()
        found = re.fullmatch(r"listening at http://127\.0\.0\.1:(\d+)/\n", line)
        if not found:
            self.__exit__()
            raise AssertionError(f"the server says {line!r}")
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.kill()
        self._process.communicate()
        print(*self.complaints(), sep="", end="", file=sys.stderr)
        self._complaints.close()

    def complaints(self):
        """The lines of its standard error."""
        self._complaints.seek(0)
        return self._complaints.readlines()

    def let_grow(self, n_bytes):
        """So much more memory it may map from now on; a thread takes some 8 MiB."""
        status = pathlib.Path(f"/proc/{self._process.pid}/status").read_text()
        mapped = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) * 1024
        resource.prlimit(self._process.pid, resource.RLIMIT_AS, (mapped + n_bytes, resource.RLIM_INFINITY))

    def seconds(self):
        """What it has computed so far."""
        fields = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, number):
        self._process.send_signal(number)
        rest, _ = self._process.communicate(timeout=TIMEOUT)
        # Lua's own library knows Ctrl-C alone: SIGTERM ends the program at once.
        wanted = -number if number == signal.SIGTERM and "lua" in self._name else 0
        assert (self._process.returncode, rest) == (wanted, ""), (number, self._process.returncode, rest)


def head(method="POST", length=None):
    """The beginning of a request."""
    length = "" if length is None else f"Content-Length: {length}\r\n"
    return f"{method} / HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n".encode()


class Client:
    """A connection, with one request."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._file = self._socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._file.close()
        self._socket.close()

    def send(self, data):
        self._socket.sendall(data)

    def ask(self, question):
        self.send(head(length=len(question.encode())) + question.encode())

    def leave(self):
        """Goes away as a program does that is killed."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.__exit__()

    def head(self):
        """The status of the response, and its headers."""
        version, status, _ = self._file.readline().decode().split(" ", 2)
        assert version == "HTTP/1.1", version
        headers = {}
        while (line := self._file.readline().decode()) != "\r\n":
            name, _, value = line.partition(":")
            assert value, f"the response ends in its head: {line!r}"
            headers[name.lower()] = value.strip()
        return int(status), headers

    def chunks(self):
        """Those of the body, up to the last one."""
        while size := int(self._file.readline(), 16):
            data = self._file.read(size + 2)
            assert len(data) == size + 2 and data.endswith(b"\r\n"), data
            yield data[:-2]
        assert self._file.readline() == b"\r\n"

    def answer(self):
        """The pieces of an answer."""
        status, headers = self.head()
        assert status == 200, status
        assert headers["content-type"] == "text/plain; charset=utf-8", headers
        assert headers["transfer-encoding"] == "chunked" and "content-length" not in headers, headers
        return [piece.decode() for piece in self.chunks()]


def ask(port, question):
    with Client(port) as client:
        client.ask(question)
        return "".join(client.answer())


def check_answers(port):
    assert ask(port, KEY_QUESTION).lstrip().startswith(KEY)
    with Client(port) as client:
        client.ask(LONG_QUESTION)
        pieces = client.answer()
    assert MAX_TOKENS // 2 < len(pieces) <= MAX_TOKENS, pieces
    ask(port, "")


def check_several(port):
    """Each of several at once gets what it gets alone, while the request of a slow one is half there."""
    alone = [ask(port, question) for question in QUESTIONS]
    together = [None] * len(QUESTIONS)

    def fill(i):
        together[i] = ask(port, QUESTIONS[i])

    with Client(port) as slow:
        request = head(length=len(KEY_QUESTION)) + KEY_QUESTION.encode()
        slow.send(request[:-10])
        threads = [threading.Thread(target=fill, args=(i,)) for i in range(len(QUESTIONS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        slow.send(request[-10:])
        assert "".join(slow.answer()) == alone[0]
    assert together == alone, (together, alone)


def check_refused(port):
    long_head = head(length=MAX_BYTES + 1)
    for request, wanted in ((head("GET"), 405), (head("PUT", 1) + b"?", 405), (head(), 411), (long_head, 413),
                            (long_head + b"?" * (MAX_BYTES + 1), 413), (head(length=1) + b"\xff", 400)):
        with Client(port) as client:
            client.send(request)
            status, headers = client.head()
            assert status == wanted, (request[:80], status)
            assert status != 405 or headers["allow"] == "POST", headers


def check_long_headers(port):
    """One that is longer than what a server reads at once is no end of the head: the length behind it counts."""
    question = KEY_QUESTION.encode()
    first, rest = head(length=len(question)).split(b"Content-Length", 1)
    for n_bytes in (8190, 8191, 8192):
        with Client(port) as client:
            client.send(first + b"X: ".ljust(n_bytes, b"x") + b"\r\nContent-Length" + rest + question)
            status, _ = client.head()
            assert status in (200, 431), (n_bytes, status)


def check_leaving(port):
    """Clients leave within their request and within the answer, and the next one is answered."""
    wanted = ask(port, KEY_QUESTION)
    for _ in range(3):
        for request in (b"", b"POST", head(length=100), head(length=100) + b"What"):
            with Client(port) as client:
                client.send(request)
            with Client(port) as client:
                client.send(request)
                client.leave()
        with Client(port) as client, Client(port) as other:
            client.ask(LONG_QUESTION)
            other.ask(KEY_QUESTION)
            assert client.head()[0] == 200
            next(client.chunks())
            client.leave()
            assert "".join(other.answer()) == wanted
    assert ask(port, KEY_QUESTION) == wanted


def check_many(port):
    """More connections than select takes descriptors: a server may turn some away, and answers when they have gone."""
    wanted = ask(port, KEY_QUESTION)
    clients = []
    for i in range(min(1100, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3)):
        if i % 100 == 99:
            time.sleep(0.05)  # for the server to accept these: what a full queue drops tries again after seconds
        clients.append(Client(port))
    for client in clients:
        client.__exit__()
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            assert ask(port, KEY_QUESTION) == wanted
            return
        except (OSError, ValueError):  # it was turned away
            assert time.monotonic() < deadline
            time.sleep(0.1)


def check_leaving_while_the_question_is_read(server):
    """Which takes a core some twenty seconds; nothing can be sent meanwhile."""
    begun, n_complaints = server.seconds(), len(server.complaints())
    with Client(server.port) as client:
        client.ask("x" * MAX_BYTES)
        assert client.head()[0] == 200
        while server.seconds() < begun + 0.2:
            time.sleep(0.01)
    while len(server.complaints()) == n_complaints:
        assert server.seconds() < begun + 5, "it goes on for nobody"
        time.sleep(0.01)


def check_end(command, number):
    """The signal comes while one client is answered, and another one has said little."""
    with Server(command) as server, Client(server.port) as silent, Client(server.port) as asking:
        silent.send(b"POST")
        asking.ask(LONG_QUESTION)
        assert asking.head()[0] == 200
        server.end(number)


def main():
    # A shell starts what runs in its background with SIGINT ignored, and the server would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 1 << 14), most))  # the server's, too
    command = sys.argv[1:]
    with Server(command) as server:
        for check in (check_answers, check_several, check_refused, check_long_headers, check_leaving, check_many):
            check(server.port)
        check_leaving_while_the_question_is_read(server)
        # A thread for each client, and there are no more. (Ruby itself stops where it can map nothing.)
        if pathlib.Path(command[0]).name in ("cpp_server", "server"):
            server.let_grow(400 << 20)
            check_many(server.port)
        server.end(signal.SIGINT)
    check_end(command, signal.SIGINT)
    check_end(command, signal.SIGTERM)
    return 0


if __name__ == "__main__":
    sys.exit(main())
