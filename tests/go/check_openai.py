"""Asks the example server by the openai package, with a model that can chat: examples/get_model.sh has the file.

    check_openai.py SERVER_PROGRAM MODEL.gguf

Exit status 77: there is no such package.
"""

import sys

from served import document, served

try:
    import openai
except ImportError:
    print("there is no package openai")
    sys.exit(77)


def check(client, name):
    assert [card.id for card in client.models.list()] == [name]
    question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    answer = client.chat.completions.create(model=name, messages=question, temperature=0, max_tokens=20)
    assert "Paris" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens < 20, answer
    stream = client.chat.completions.create(model=name, messages=question, temperature=0, max_tokens=20, stream=True,
                                            stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == answer.choices[0].message.content, chunks
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens, chunks[-1]
    talk = [*question, {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": document(20) + "What is the pass key? Answer with the number alone."}]
    first = client.chat.completions.create(model=name, messages=talk, temperature=0, max_tokens=20)
    assert "71432" in first.choices[0].message.content, first
    talk += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "Thank you."}]
    again = client.chat.completions.create(model=name, messages=talk, temperature=0, max_tokens=20)
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached > 0.5 * again.usage.prompt_tokens > 0, again.usage
    with client.chat.completions.create(model=name, messages=question, stream=True, max_tokens=10_000,
                                        logit_bias={"2": -100}) as endless:
        next(iter(endless))  # and go away
    for wrong, error in (({"model": "other"}, openai.NotFoundError), ({"n": 2}, openai.BadRequestError)):
        try:
            client.chat.completions.create(**{"model": name, "messages": question, **wrong})
        except error as caught:
            assert caught.body["message"], caught
        else:
            raise AssertionError(wrong)


def main():
    with served(sys.argv[1], model=sys.argv[2]) as address:
        client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        check(client, sys.argv[2].rsplit("/", 1)[1].removesuffix(".gguf"))


if __name__ == "__main__":
    main()
