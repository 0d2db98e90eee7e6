"""Conversations about documents, served by several workers with Ray Serve.

    app.py MODEL FOLDER [--workers N] [--port P]

FOLDER is shared by the workers; its texts/NAME.txt are the documents. README.md says what is asked and answered, and how a
conversation moves when its worker dies.
"""

import argparse
import asyncio
import json
import os
import pathlib
import re
import threading

# What Ray is told before it is imported: nothing is reported, and its parts talk over 127.0.0.1, as everything is on one
# machine here.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import ray
import ray.exceptions
from ray import serve
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

import quire

STRATEGY = "dca"
OPTIONS = {"temperature", "top_k", "top_p", "seed", "stop_ids", "ignore_eos"}  # of Session.stream, that a client may give


class Conversation:
    """A session, and where its snapshot is."""

    def __init__(self, session, path):
        self.session, self.path, self.lock, self.n_answers = session, path, asyncio.Lock(), 0

    def __del__(self):
        """Ray Serve calls it when a worker has too many, and Python does when nobody has it: an answer may be at work."""
        if self.n_answers == 0:
            self.session.close()


@serve.deployment(max_ongoing_requests=32, health_check_period_s=1, graceful_shutdown_timeout_s=1)
class Worker:
    """Has the model, and sessions of some conversations."""

    def __init__(self, model, folder):
        self.folder = pathlib.Path(folder)
        self.model = quire.Runtime(threads=1).load(model)
        self.store = quire.Store(self.folder / "documents")
        self.texts = {}

    def document(self, name):
        """The tokens of a document."""
        if name not in self.texts:
            text = (self.folder / "texts" / f"{name}.txt").read_text(encoding="utf-8")
            self.texts[name] = self.model.tokenizer.encode(text)
        return self.texts[name]

    def read(self, ids, name):
        """A session that has read a document: mounted from the store where any worker has put it there."""
        try:
            session = self.store.load(self.model, ids, STRATEGY)
        except quire.QuireError as error:
            if error.status != "NOT_FOUND":
                raise
            session = self.model.session(STRATEGY)
        session.edit(ids)
        if session.n_pending:
            session.prefill()
            self.store.put(session, title=name)
        return session

    # Ray Serve keeps a conversation with the worker that has it, as it keeps a model where it is loaded.
    @serve.multiplexed(max_num_models_per_replica=16)
    async def conversation(self, key):
        name, conversation = key.split("/")
        path = self.folder / "conversations" / f"{name}.{conversation}.quire"
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            session = await asyncio.to_thread(self.model.load_session, path)
        else:
            session = await asyncio.to_thread(self.read, self.document(name), name)
        return Conversation(session, path)

    async def answer(self, key, tokens, question, options):
        """Goes on behind the document and the conversation's `tokens`: with a question, then with its answer."""
        conversation = await self.conversation(key)
        conversation.n_answers += 1
        try:
            async for part in self.answer_in(conversation, key, tokens, question, options):
                yield part
        finally:
            conversation.n_answers -= 1

    async def answer_in(self, conversation, key, tokens, question, options):
        async with conversation.lock:
            session = conversation.session
            asked = self.model.tokenizer.encode(question, bos=False, continued=True) if question else []
            # The session keeps what it has of this text and reads the rest. So the tokens do not depend on which
            # snapshot was found, or whether one was.
            edited = session.edit([*self.document(key.split("/")[0]), *tokens, *asked])
            yield {"asked": asked, "worker": os.getpid(), "n_kept": edited.n_kept, "n_tokens": edited.n_tokens}
            async with session.stream(**options) as stream:
                async for event in stream:
                    if event.kind == "token":
                        yield {"token": event.token, "text": event.text}
                    elif event.kind == "end":
                        yield {"finish": event.finish_reason, "text": event.text}
            await asyncio.to_thread(session.save, conversation.path)


@serve.deployment(health_check_period_s=1, graceful_shutdown_timeout_s=1)
class Front:
    """What clients talk to. It keeps nothing of a conversation."""

    def __init__(self, workers):
        self.workers = workers

    async def __call__(self, request: Request) -> Response:
        try:
            asked = await request.json()
            key = f"{asked['document']}/{asked['conversation']}"
            tokens, question, max_tokens = list(asked["tokens"]), str(asked["question"]), int(asked["max_tokens"])
            options = dict(asked.get("options", {}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return PlainTextResponse(f"the body is not what README.md says: {error!r}\n", status_code=400)
        if not re.fullmatch(r"[\w-]+/[\w-]+", key) or not OPTIONS.issuperset(options):
            return PlainTextResponse("names are letters, digits, _ and -; options are those of app.py\n", status_code=400)
        lines = self.answer(key, tokens, question, max_tokens, options)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def answer(self, key, tokens, question, max_tokens, options):
        """The lines of an answer. If its worker dies, another one goes on behind what was said."""
        workers = self.workers.options(stream=True, multiplexed_model_id=key)
        for attempt in range(30):
            try:
                parts = workers.answer.remote(key, tokens, question, {**options, "max_tokens": max_tokens})
                async for part in parts:
                    tokens, question = tokens + part.get("asked", []), ""
                    if "token" in part:
                        tokens, max_tokens = tokens + [part["token"]], max_tokens - 1
                    yield json.dumps(part) + "\n"
                return
            except ray.exceptions.RayActorError:
                await asyncio.sleep(0.1 * attempt)  # until Ray Serve knows that it is dead
            except ray.exceptions.RayTaskError as error:  # the worker lives, and would say the same again
                yield json.dumps({"error": f"{type(error.cause).__name__}: {error.cause}"}) + "\n"
                return
        yield json.dumps({"error": "no worker answers"}) + "\n"


def start(model, folder, workers=2, port=8000):
    """Serves on 127.0.0.1; returns at once."""
    ray.init(include_dashboard=False, num_cpus=workers + 1, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    served = Worker.options(num_replicas=workers).bind(str(model), str(folder))
    serve.run(Front.bind(served), route_prefix="/answer")


def main():
    parser = argparse.ArgumentParser(description="Serves conversations about documents.")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    start(arguments.model.resolve(), arguments.folder.resolve(), arguments.workers, arguments.port)
    print(f"serving on http://127.0.0.1:{arguments.port}/answer", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
