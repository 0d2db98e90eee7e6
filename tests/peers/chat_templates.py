"""The Jinja texts of known chat templates: short ones here, others from packages of PyPI.

    chat_templates.py    prints the table of lib/chat/known_templates.cc

Short texts are those of transformers, llama.cpp and the models' own tokenizer_config.json (Apache 2.0, MIT).
"""

import ast
import datetime
import functools
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import jinja2
import xxhash
from transformers.utils import chat_template_utils

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
          "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
CHATML_UNDEFINED = ("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}" +
                    CHATML)


def chatml_with_default(system):
    return ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
            f"'<|im_start|>system\\n{system}<|im_end|>\\n' }}}}{{% endif %}}" + CHATML.removeprefix("{% for message in messages %}"))


LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]"
    "['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in "
    "loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles "
    "must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = "
    "message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' "
    "[/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}")
LLAMA2_STRIPPED = (
    "{% if messages[0]['role'] == 'system' %}{% set system_message = '<<SYS>>\\n' + messages[0]['content'] | trim + "
    "'\\n<</SYS>>\\n\\n' %}{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}{% for message in "
    "messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must "
    "alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 %}{% set content = system_message + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}")
# Version 7 of Mistral with the tokens' spaces of v7-tekken.
MISTRAL_V7_TEKKEN = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST]' + message['content'] + "
    "'[/INST]' }}{% elif message['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% else %}{{ raise_exception('Only user, "
    "system and assistant roles are supported!') }}{% endif %}{% endfor %}")

ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")

PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == "
    "'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}")
PHI35 = PHI3.replace("message['role'] == 'system' %}", "message['role'] == 'system' and message['content'] %}")
PHI4 = (
    "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] "
    "+ '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + "
    "'<|im_end|>'}}{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + "
    "'<|im_end|>'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}")
PHI4_MINI = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}")
PHI4_MINI_WITHOUT_END = PHI4_MINI.replace("{% else %}{{ eos_token }}{% endif %}", "{% endif %}")


def download(requirement, *options):
    """The one file that pip downloads for a requirement."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *options, requirement],
                       check=True)
        (path,) = pathlib.Path(folder).iterdir()
        return path.read_bytes()


@functools.cache
def llama_cpp():
    """Files of llama.cpp, as the source package of its Python binding carries it, by their paths."""
    wanted = re.compile(r"[^/]+/vendor/llama\.cpp/(models/templates/.*\.jinja|tests/test-chat-template\.cpp)"
                        r"|[^/]+/(llama_cpp/llama_chat_format\.py)")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(download("llama-cpp-python==0.3.36", "--no-binary=:all:"))) as archive:
        for member in archive:
            if match := wanted.fullmatch(member.name):
                files[match[1] or match[2]] = archive.extractfile(member).read().decode()
    return files


@functools.cache
def trl():
    with zipfile.ZipFile(io.BytesIO(download("trl==1.16.0"))) as archive:
        return {pathlib.PurePath(name).stem: archive.read(name).decode() for name in archive.namelist()
                if name.startswith("trl/chat_templates/")}


@functools.cache
def axolotl():
    with zipfile.ZipFile(io.BytesIO(download("axolotl==0.19.0"))) as archive:
        return archive.read("axolotl/utils/chat_templates/templates/mistral_v7_tekken.jinja").decode()


def from_llama_cpp_tests(name):
    """A template that llama.cpp's own test has as a string literal."""
    source = llama_cpp()["tests/test-chat-template.cpp"]
    literal = re.search(r'/\* \.name= \*/ "' + re.escape(name) + r'.*\n(?:\s*//.*\n)*\s*/\* \.template_str= \*/ ("(?:[^"\\]|\\.)*")', source)
    return ast.literal_eval(literal[1])


def from_llama_cpp_python(name):
    source = llama_cpp()["llama_cpp/llama_chat_format.py"]
    return ast.literal_eval(re.search(rf'^{name}_CHAT_TEMPLATE = (".*")$', source, re.MULTILINE)[1])


def model_file(name):
    return llama_cpp()[f"models/templates/{name}.jinja"]


def edit(text, *edits):
    """Each (old, new) once."""
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def qwen25_1m():
    return model_file("Qwen-Qwen2.5-7B-Instruct").replace("You are Qwen, created by Alibaba Cloud. ", "")


def qwen3_thinking_2507():
    """The later edition of Qwen3's, whose answers begin with a thought."""
    return edit(trl()["qwen3"], (
        "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n", "{{- '<|im_start|>assistant\\n<think>\\n' }}\n"))


def between(text, begin, end):
    return text[text.index(begin):text.index(end, text.index(begin))]


def mistral_small_2501():
    """Axolotl's edition with texts alone, where that takes lists of parts, too."""
    text = axolotl()
    return edit(
        text,
        (between(text, "    {%- if messages[0]['content'] is string", "    {%- set loop_messages = messages[1:]"),
         "    {%- set system_message = messages[0]['content'] %}\n"),
        (between(text, "        {%- if message['content'] is string %}\n            {{- '[INST]", "    {%- elif message['role'] == 'system'"),
         "        {{- '[INST]' + message['content'] + '[/INST]' }}\n"),
        (between(text, "        {%- if message['content'] is string %}\n            {{- '[SYSTEM", "    {%- elif message['role'] == 'assistant'"),
         "        {{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}\n"),
        (between(text, "        {%- if message['content'] is string %}\n            {{- message", "    {%- else %}\n        {{- raise_exception('Only user"),
         "        {{- message['content'] + eos_token }}\n"))


def mistral_small_2503():
    """Lists of parts are taken; a system text that is none is a mistake of the program's, which fails with it."""
    tab = 4 * " "
    blocks = ("{%- if message['content'] is string %}", "{{- '[INST]' + message['content'] + '[/INST]' }}", "{%- else %}",
              2 * tab + "{{- '[INST]' }}", 2 * tab + "{%- for block in message['content'] %}",
              4 * tab + "{%- if block['type'] == 'text' %}", 6 * tab + "{{- block['text'] }}",
              4 * tab + "{%- elif block['type'] == 'image' or block['type'] == 'image_url' %}", 6 * tab + "{{- '[IMG]' }}",
              5 * tab + "{%- else %}",
              6 * tab + "{{- raise_exception('Only text and image blocks are supported in message content!') }}",
              5 * tab + "{%- endif %}", 3 * tab + "{%- endfor %}", 2 * tab + "{{- '[/INST]' }}", tab + "{%- endif %}")
    system, rest = "{%- set system_message = messages[0]['content']", "{%- set loop_messages = messages[1:] %}\n"
    answer = "{{- message['content'] + eos_token }}\n"
    return edit(
        mistral_small_2501(),
        (f"{tab}{system} %}}\n{tab}{rest}",
         f"{tab}{{%- if messages[0] is string %}}\n{tab * 2}{system} %}}\n{tab * 2}{rest}{tab}{{%- else %}} \n"
         f"{tab * 2}{system}[0]['text'] %}}\n{tab * 2}{rest}{tab}{{%- endif %}}\n"),
        (f"{tab * 2}{blocks[1]}\n", "".join(f"{tab * 3}{line}\n" for line in blocks)),
        (tab * 2 + answer, f"{tab * 2}{blocks[0]}\n{tab * 3}{answer}{tab * 2}{{%- else %}}\n{tab * 3}"
         f"{answer.replace('] +', '][0][' + repr('text') + '] +')}{tab * 2}{{%- endif %}}\n"))


def smollm3_as_published():
    """Unsloth's edition with its edits taken back."""
    return edit(
        model_file("HuggingFaceTB-SmolLM3-3B"), *[
            ('    {%- set custom_instructions = system_message.replace("/no_think", "") -%}\n'
             '    {%- set custom_instructions = custom_instructions.replace("/think", "") -%}\n'
             '    {%- set custom_instructions = custom_instructions.rstrip() -%}\n{%- endif -%}\n',
             '    {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}\n'
             '{%- endif -%}\n{%- if "/system_override" in system_message -%}\n'
             '  {{- custom_instructions.replace("/system_override", "").rstrip() -}}\n  {{- "<|im_end|>\\n" -}}\n'
             '{%- else -%}\n'),
            ('{{- "Knowledge Cutoff Date: June 2025\\n" -}}\n',
             '{{- "Knowledge Cutoff Date: June 2025\\n" -}}\n{%- set today = strftime_now("%d %B %Y") -%}\n'
             '{{- "Today Date: " ~ today ~ "\\n" -}}\n'),
            ('{{- "<|im_end|>\\n" -}}\n{# ───── main', '{%- endif -%}\n{# ───── main')])


def qwq():
    """Without llama.cpp's way not to think."""
    return edit(model_file("Qwen-QwQ-32B"), (
        "    {%- if not enable_thinking -%}{{- '</think>' -}}{%- endif -%}\n", ""))


def granite_30():
    """The program of many lines, whose strings have newlines in them as such or as \\n."""
    text = from_llama_cpp_tests("ibm-granite/granite-3.0-8b-instruct")
    return [text, text.replace("|>\n'", "|>\\n'").replace("'\n\n'", "'\\n\\n'")]


def granite_33_of_lines():
    """An edition whose default system message has newlines where the file's has spaces."""
    text = model_file("ibm-granite-granite-3.3-2B-Instruct")
    return text.replace("April 2024. Today", "April 2024.\\nToday").replace(". You are Granite", ".\\nYou are Granite")


def known():
    """(name, texts): the texts that are recognised as that name."""
    return [
        ("chatml", [CHATML, CHATML_UNDEFINED, trl()["qwen3_instruct_2507"]]),
        ("qwen1.5", [chatml_with_default("You are a helpful assistant")]),
        ("qwen2", [chatml_with_default("You are a helpful assistant."), qwen25_1m()]),
        ("qwen2.5", [model_file("Qwen-Qwen2.5-7B-Instruct"), trl()["qwen2_5"]]),
        ("qwen3", [model_file("Qwen-Qwen3-0.6B"), trl()["qwen3"]]),
        ("qwen3-thinking-2507", [qwen3_thinking_2507()]),
        ("smollm2", [chatml_with_default("You are a helpful AI assistant named SmolLM, trained by Hugging Face")]),
        ("smollm3-unsloth", [model_file("HuggingFaceTB-SmolLM3-3B")]),
        ("llama2", [LLAMA2]),
        ("llama2-stripped", [LLAMA2_STRIPPED]),
        ("llama3", [from_llama_cpp_python("LLAMA3_INSTRUCT"), trl()["llama3"]]),
        ("llama3-answering", [from_llama_cpp_tests("Llama-3")]),
        ("llama3.1", [model_file("meta-llama-Llama-3.1-8B-Instruct"), model_file("meta-llama-Llama-3.3-70B-Instruct")]),
        ("llama3.2", [model_file("meta-llama-Llama-3.2-3B-Instruct")]),
        ("mistral-v0.1", [from_llama_cpp_python("MISTRAL_INSTRUCT")]),
        ("mistral-v0.2", [from_llama_cpp_python("MIXTRAL_INSTRUCT")]),
        ("mistral-v1", [from_llama_cpp_tests("mistralai/Mistral-7B-Instruct-v0.2 (mistralai 'v1'")]),
        ("mistral-v3", [from_llama_cpp_tests("Mistral-Large-Instruct-2407")]),
        ("mistral-v3-tekken", [model_file("mistralai-Mistral-Nemo-Instruct-2407")]),
        ("mistral-v7", [from_llama_cpp_tests("mistralai/Mistral-Large-Instruct-2411")]),
        ("mistral-small-3", [mistral_small_2501(), mistral_small_2503(), axolotl()]),
        ("mistral-small-3.2", [model_file("Mistral-Small-3.2-24B-Instruct-2506")]),
        ("phi3", [PHI3]),
        ("phi3.5", [PHI35]),
        ("phi4", [PHI4]),
        ("phi4-answering", [from_llama_cpp_tests("phi-4")]),
        ("phi4-mini", [PHI4_MINI, PHI4_MINI_WITHOUT_END]),
        ("granite3.0", granite_30()),
        ("granite3.3", [model_file("ibm-granite-granite-3.3-2B-Instruct")]),
        ("qwq", [qwq()]),
        ("deepseek-r1", [model_file("deepseek-ai-DeepSeek-R1-Distill-Llama-8B"), trl()["deepseek_r1_distill"]]),
        ("deepseek-r1-2501", [edit(trl()["deepseek_r1_distill"], ("<｜Assistant｜><think>\\n", "<｜Assistant｜>"))]),
        ("zephyr", [ZEPHYR]),
        ("openchat", [from_llama_cpp_tests("openchat/openchat-3.5-0106")]),
        ("gemma3", [trl()["gemma3"]]),
    ]


def rendered():
    """(name, text) of every template: also of those that no checkpoint is known to carry letter by letter."""
    return [(name, text) for name, texts in known() for text in texts] + [
        ("smollm3", smollm3_as_published()), ("mistral-v7-tekken", MISTRAL_V7_TEKKEN),
        ("granite3.3-lines", granite_33_of_lines())]


DATE = datetime.date(2025, 3, 9)


class _FixedDay(datetime.datetime):
    """The day that a program is told, which asks what day it is."""

    @classmethod
    def now(cls, tz=None):
        return cls(DATE.year, DATE.month, DATE.day, tzinfo=tz)


def write(program, messages, answer, thinking, dated=True):
    """What transformers' Jinja writes for (role, text) messages on DATE; None where the program refuses them.

    Phi's programs end a conversation that no answer follows with the end of the sequence; the library goes on."""
    chat_template_utils.datetime = _FixedDay
    dates = {"date_string": DATE.strftime("%d %b %Y")} if dated else {}
    try:
        return chat_template_utils._compile_jinja_template(program).render(
            messages=[{"role": role, "content": text} for role, text in messages], bos_token="<s>",
            eos_token="" if "<|end|>" in program else "</s>",
            add_generation_prompt=answer, enable_thinking=thinking, **dates)
    except jinja2.exceptions.TemplateError:
        return None


def normalised(text):
    """As lib/chat/known_templates.cc compares: what Jinja itself does to a program's text."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def spellings(text):
    """A newline in a string of the program may be written as such; in a program of one line all are in strings."""
    text = normalised(text)
    if re.search(r"[%}#]}\n|\n *{[%{#]", text):
        return {text}
    return {text.replace("\n", "\\n"), text.replace("\\n", "\n")}


def table():
    for name, texts in known():
        for text in sorted(set().union(*map(spellings, texts))):
            yield f'    {{"{xxhash.xxh3_128_hexdigest(text.encode())}", {len(text.encode())}, "{name}"}},'


if __name__ == "__main__":
    print("\n".join(table()))
