"""Answers questions about one document over HTTP: it is read once, and each question goes on in a fork of its own.

    server.py MODEL DOCUMENT HOST:PORT

The body of a POST is a question, and that of the response is the answer, which is sent as it comes:

    curl -N --data "What is it about?" http://127.0.0.1:8080/

Several are answered at once. A client that leaves ends its own answer, and Ctrl-C ends the server.
"""

import asyncio
import pathlib
import signal
import sys

import quire

MAX_BYTES = 64 * 1024  # of a question
MAX_TOKENS = 200  # of an answer
MAX_WAITING = 1024  # connections that are not accepted yet; by default one beyond 100 waits a second or more
TIMEOUT = 30  # seconds that a question may take to come


async def read_question(reader):
    """The body of a request, and "", or None and a status that says why it is not read."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "")
    if not method.startswith("POST "):
        return None, "405 Method Not Allowed\r\nAllow: POST"
    if not length.isdecimal():
        return None, "411 Length Required"
    if len(length) > 9 or int(length) > MAX_BYTES:
        return None, "413 Content Too Large"
    body = await reader.readexactly(int(length))
    try:
        return body.decode(), ""
    except UnicodeDecodeError:
        return None, "400 Bad Request"


async def refuse(reader, writer, status):
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    writer.write_eof()
    while await reader.read(MAX_BYTES):  # a client that is still sending would not see the response otherwise
        pass


async def answer(session, question, reader, writer):
    session.feed(" " + question)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
                 b"Connection: close\r\n\r\n")
    async with session.stream(MAX_TOKENS) as stream:
        async for event in stream:
            if reader.at_eof():  # while the question is read, too, when there is nothing to write
                raise EOFError("the client left")
            if event.text:
                piece = event.text.encode()
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()  # fails if the client has left
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def serve(document, reader, writer):
    """Does what one connection asks for."""
    try:
        question, status = await asyncio.wait_for(read_question(reader), TIMEOUT)
        if status:
            await asyncio.wait_for(refuse(reader, writer, status), TIMEOUT)
        else:
            with document.fork() as session:
                await answer(session, question, reader, writer)
    except (quire.QuireError, OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError,
            asyncio.CancelledError) as error:
        print(f"a request ended early: {error!r}", file=sys.stderr)  # so does the response, which has no last chunk
    finally:
        writer.close()


async def listen(document, host, port):
    """Serves until Ctrl-C or SIGTERM; asyncio.run then cancels what is still under way."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = await asyncio.start_server(lambda reader, writer: serve(document, reader, writer), host, port,
                                        backlog=MAX_WAITING)
    print(f"listening at http://{host}:{server.sockets[0].getsockname()[1]}/", flush=True)
    await stopped.wait()
    server.close()


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    path, document_path, address = sys.argv[1:]
    host, _, port = address.rpartition(":")
    with quire.Runtime() as runtime, runtime.load(path) as model, model.session("dca") as document:
        document.feed(pathlib.Path(document_path).read_text(encoding="utf-8"))
        document.prefill()
        asyncio.run(listen(document, host, int(port)))


if __name__ == "__main__":
    main()
