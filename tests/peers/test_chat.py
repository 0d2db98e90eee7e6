"""Chat templates: generated conversations written by transformers' Jinja and by the library, every known template.

The templates' programs come from PyPI (chat_templates.py). QUIRE_SEED repeats a run. Where Jinja refuses a conversation,
so must the library; it also refuses a system message that a program would leave out without a word.
"""

import os
import pathlib
import random

import pytest
import quire

import chat_templates

EMBEDDED = pathlib.Path(__file__).resolve().parents[2] / "examples" / "embedded_model" / "model"
SEED = int(os.environ.get("QUIRE_SEED", random.randrange(1 << 31)))
N_CONVERSATIONS = 300
TEMPLATES = chat_templates.rendered()
LEAVE_OUT_SYSTEM = {"llama2", "llama2-stripped", "smollm3", "smollm3-unsloth"}
WORDS = ["", " ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", "\x1c", "Hello", "world", "naïve", "日本語", "🙂", "e\u0301",
         "<|im_end|>", "<|im_start|>", "<|im_start|>system\n", "[INST]", "[/INST]", "<s>", "</s>", "<|eot_id|>",
         "<|start_header_id|>", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "<think>", "</think>", "<think>\nso\n</think>\n\n",
         "/think", "/no_think", "/system_override", "<tool_response>", "</tool_response>", "{{ messages }}", "{% if %}", "\\n", "'",
         '"', "\r\n", "\0"]


@pytest.fixture(scope="module")
def tokenizer():
    with quire.Runtime(threads=1) as runtime:
        yield runtime.tokenizer(EMBEDDED)


def some_text(source):
    return "".join(source.choice(WORDS) for _ in range(source.choice([0, 1, 1, 2, 3, 6])))


def some_conversation(source):
    """Mostly a system message or not, then turns; sometimes roles in any order."""
    if source.random() < 0.2:
        roles = source.choices(["system", "user", "assistant"], k=source.randint(1, 5))
    else:
        turns = ["user", "assistant"] * 4
        roles = ["system"] * source.choice([0, 1]) + turns[:source.randint(1, 7)]
    return [(role, some_text(source)) for role in roles]


@pytest.mark.parametrize("name, program", TEMPLATES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(TEMPLATES)])
def test_rendered_prompts_are_equal(name, program, tokenizer):
    print(f"QUIRE_SEED={SEED}")
    source = random.Random(f"{SEED} {name}")
    n_equal = n_refused = 0
    for _ in range(N_CONVERSATIONS):
        conversation, answer, thinking = some_conversation(source), source.random() < 0.7, source.random() < 0.5
        if "messages[0] is string" in program and conversation[0][0] == "system":
            continue  # this program fails with any system text
        dated = name != "llama3.1" or source.random() < 0.5  # llama3.1 alone has a fixed date of its own
        drops = name in LEAVE_OUT_SYSTEM and any(role == "system" for role, _ in conversation[1:])
        expected = chat_templates.write(program, conversation, answer, thinking, dated)
        try:
            date = chat_templates.DATE.isoformat() if dated else None
            found = tokenizer.render_chat(conversation, template=name, date=date, answer=answer, thinking=thinking)
        except quire.QuireError as error:
            assert error.status == "INVALID_ARGUMENT" and name in error.message
            assert expected is None or drops, (conversation, expected)
            n_refused += 1
            continue
        assert found == expected, (conversation, answer, thinking, dated)
        n_equal += 1
    print(f"{name}: {n_equal} equal, {n_refused} refused")
    assert n_equal > N_CONVERSATIONS / 4


def test_every_template_is_compared():
    assert {template["name"] for template in quire.chat_templates()} == {name for name, _ in TEMPLATES}


def test_the_table_of_known_texts_is_that_of_these_programs():
    source = (EMBEDDED.parents[2] / "lib" / "chat" / "known_templates.cc").read_text(encoding="utf-8")
    listed = [line for line in source.splitlines() if line.startswith('    {"')]
    assert listed == list(chat_templates.table())
