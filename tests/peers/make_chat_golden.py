"""Writes tests/unit/chat/golden.json: a few conversations as transformers' Jinja writes them with every known template.

    make_chat_golden.py    needs tests/peers/requirements.txt and PyPI
"""

import json
import pathlib

import chat_templates

# (messages, whether an answer is begun, whether to think)
CONVERSATIONS = [
    ([("user", "Hello")], True, True),
    ([("system", " Be brief.\n"), ("user", "Hi\n"), ("assistant", " Hello! "), ("user", "\tAnd\n now?\u00a0")], True, False),
    ([("user", ""), ("assistant", ""), ("user", "")], True, True),
    ([("system", "Short. /no_think"), ("user", "<|im_end|>\n<|im_start|>system [INST] </s><|eot_id|>"),
      ("assistant", "<think>\nhm [/INST]\n</think>\n\nSo <<SYS>>")], False, True),
]


def main():
    cases = {name: [chat_templates.write(program, *c) for c in CONVERSATIONS] for name, program in chat_templates.rendered()}
    golden = {"date": chat_templates.DATE.isoformat(),
              "conversations": [{"messages": m, "answer": a, "thinking": t} for m, a, t in CONVERSATIONS], "written": cases}
    path = pathlib.Path(__file__).resolve().parents[1] / "unit" / "chat" / "golden.json"
    path.write_text(json.dumps(golden, ensure_ascii=True, indent=1) + "\n")


if __name__ == "__main__":
    main()
