"""Asks the example server by curl, as a program of another language would.

    check_server.py SERVER_PROGRAM
"""

import concurrent.futures
import json
import shutil
import subprocess
import sys

from served import MODEL, QUESTION, document, served

ENDLESS = {"max_tokens": 10_000_000, "logit_bias": {"2": -100}}  # 2 is </s>


class Client:
    def __init__(self, address):
        self.address = address

    def command(self, path, body, *options):
        data = [] if body is None else ["-H", "Content-Type: application/json", "--data-binary", "@-"]
        return ["curl", "-sS", "--no-progress-meter", *data, *options, self.address + path]

    def curl(self, path, body=None):
        """The status and the answer's text."""
        sent = body if body is None or isinstance(body, str) else json.dumps(body)
        done = subprocess.run(self.command(path, sent, "-w", "\n%{http_code}"), input=sent, capture_output=True, text=True,
                              check=True)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text

    def chat(self, text, **options):
        """The whole answer to one message."""
        status, answer = self.curl("/chat/completions", request(text, **options))
        assert status == 200, answer
        return json.loads(answer)

    def error(self, body, path="/chat/completions"):
        """The status, code and parameter of an error."""
        status, answer = self.curl(path, body)
        found = json.loads(answer)["error"]
        assert found["message"] and found["type"] == "invalid_request_error", answer
        return status, found["code"], found["param"]


def request(text, **options):
    return {"model": "model", "messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0, **options}


def check_whole_answers(client):
    status, models = client.curl("/models")
    assert status == 200 and [card["id"] for card in json.loads(models)["data"]] == ["model"], models
    assert json.loads(client.curl("/models/model")[1])["object"] == "model"
    answer = client.chat(f"The pass key is 4217. {QUESTION}", stop="\n")
    assert answer["object"] == "chat.completion" and answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert "4217" in answer["choices"][0]["message"]["content"], answer
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 20, usage
    short = client.chat("hello", max_tokens=3, logit_bias={"2": -100})
    assert (short["choices"][0]["finish_reason"], short["usage"]["completion_tokens"]) == ("length", 3), short
    whole = client.chat("hello", **{**ENDLESS, "max_tokens": 8})["choices"][0]["message"]["content"]
    cut = client.chat("hello", stop=["never this", whole[2:4]], **{**ENDLESS, "max_tokens": 8})["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == (whole[:whole.index(whole[2:4])], "stop"), (cut, whole)
    drawn = [client.chat("hello", temperature=1.5, top_p=0.95, seed=seed, **ENDLESS | {"max_tokens": 30})["choices"]
             for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2], drawn
    parts = client.chat([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}], **{**ENDLESS, "max_tokens": 8})
    assert parts["choices"][0]["message"]["content"] == whole


def check_stream(client):
    body = request("hello", stream=True, stream_options={"include_usage": True}, **ENDLESS | {"max_tokens": 8})
    status, text = client.curl("/chat/completions", body)
    events = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert status == 200 and events[-1] == "[DONE]", text
    chunks = [json.loads(event) for event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} and len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 8), chunks[-1]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    whole = client.chat("hello", **{**ENDLESS, "max_tokens": 8})["choices"][0]["message"]["content"]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1]) == whole, (chunks, whole)


def check_reuse(client):
    """A long document that is sent again is not read again."""
    first = client.chat(document(60) + QUESTION, stop="\n")
    other = client.chat(document(60) + "What colour is the grass? The grass is", stop="\n")
    again = client.chat(document(60) + QUESTION, stop="\n")
    assert first["choices"] == again["choices"], (first, again)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 100, first
    for usage in (other["usage"], again["usage"]):
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"] > 1000, usage


def check_errors(client):
    assert client.error("{") == (400, None, None)
    assert client.error(request("hello") | {"model": "other"}) == (404, "model_not_found", "model")
    assert client.error(request("hello", n=2)) == (400, None, "n")
    assert client.error(request("hello", tools=[{}])) == (400, None, "tools")
    assert client.error(request("hello", temperature=3)) == (400, None, "temperature")
    assert client.error(request("hello", top_p=2)) == (400, None, "top_p")
    for param in ("max_tokens", "max_completion_tokens"):
        for n in (0, -1):
            assert client.error(request("hello", **{param: n})) == (400, None, param)
    assert client.error(request("hello", logit_bias={"a": 1})) == (400, None, "logit_bias")
    assert client.error(request("hello") | {"messages": []}) == (400, None, "messages")
    assert client.error(request("hello") | {"messages": [{"role": "tool", "content": "x"}]}) == (400, None, "messages")
    assert client.error(request([{"type": "image_url"}])) == (400, None, None)
    assert client.error(request("hello", stop=[""], stream=True)) == (400, None, None)
    assert client.error(None, "/nothing") == (404, "unknown_url", None)
    assert client.error(None, "/models/other") == (404, "model_not_found", "model")
    assert client.error(None, "/chat/completions")[0] == 404  # GET


def check_many(client):
    """Eight at once give what each gives alone."""
    def answer(i):
        return client.chat(f"{i} " * (20 + i), temperature=1, seed=i, **ENDLESS | {"max_tokens": 20})["choices"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(answer, range(8)))
    assert together == [answer(i) for i in range(8)]


def check_disconnect(client):
    """A client that goes away ends its answer, which would take hours; the server answers one at a time here."""
    sent = json.dumps(request("hello", stream=True, **ENDLESS)).encode()
    for _ in range(2):
        with subprocess.Popen(client.command("/chat/completions", sent, "-N"), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as curl:
            curl.stdin.write(sent)
            curl.stdin.close()
            assert curl.stdout.readline().startswith(b"data: ")
            curl.kill()
    client.chat("hello")


def check_stalled(client):
    """A client that takes nothing of its answer loses it, and its turn; the server answers one at a time here."""
    sent = json.dumps(request("hello", stream=True, **ENDLESS)).encode()
    with subprocess.Popen(client.command("/chat/completions", sent, "-N"), stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as curl:
        curl.stdin.write(sent)
        curl.stdin.close()
        assert curl.stdout.readline().startswith(b"data: ")
        client.chat("hello")
        assert curl.stdout.read().count(b"data: ") > 10 and curl.wait() != 0  # it ended in the middle


def main():
    if not shutil.which("curl"):
        print("there is no curl")
        return 77
    options = ("-strategy", "dca", "-template", "llama2")
    with served(sys.argv[1], *options) as address:
        client = Client(address)
        for check in (check_whole_answers, check_stream, check_reuse, check_errors, check_many):
            check(client)
    with served(sys.argv[1], *options, "-parallel", "1") as address:
        check_disconnect(Client(address))
    with served(sys.argv[1], *options, "-parallel", "1", "-patience", "1s") as address:
        check_stalled(Client(address))
    for model, status in (("no/such/model", b"NOT_FOUND"), (MODEL, b"the model cannot chat: UNSUPPORTED")):
        refused = subprocess.run([sys.argv[1], "-listen", "127.0.0.1:0", "-template", "qwen2.5", model], capture_output=True)
        assert refused.returncode == 1 and status in refused.stderr, refused
    return 0


if __name__ == "__main__":
    sys.exit(main())
