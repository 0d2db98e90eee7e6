#!/usr/bin/env python3
"""Tests of the quire command and of examples/c_minimal, run as programs."""
import argparse
import json
import os
import pathlib
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

OPTIONS = None  # --quire, --c-minimal, --model

PLAN = ["plan", "-s", "dca(chunk=4, cap=7)", "--train-len", "8", "--tokens", "12"]


def run(*arguments, program=None, stdin=""):
    return subprocess.run([program or OPTIONS.quire, *map(str, arguments)], input=stdin, capture_output=True,
                          text=True, timeout=240, check=False)


class UsageTest(unittest.TestCase):
    def assert_usage_error(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, f"{arguments}: {done.stdout}{done.stderr}")
        self.assertTrue(done.stderr.startswith("quire: "), done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_mistakes_exit_2(self):
        self.assert_usage_error()
        self.assertIn('"frobnicate" is no command of quire', self.assert_usage_error("frobnicate"))
        self.assertIn('"frobnicate" is no command of eval', self.assert_usage_error("eval", "frobnicate"))
        for wrong, meant in ((["evla", "x"], None), (["eval", "needles"], "needle"), (["run", "--strategey=dca"], "--strategy"),
                             (["run", "--temp", "1"], "--temperature"), (["run", "book.txt"], "-f book.txt"), (["run", "-t", "4"], None)):
            message = self.assert_usage_error(*wrong)
            self.assertIn(f"; did you mean {meant}?\n" if meant else f"{wrong[-2]}", message)
            self.assertEqual("did you mean" in message, meant is not None, message)
        self.assertIn("required", self.assert_usage_error("eval"))
        self.assert_usage_error("plan", "-s", "full", "--tokens", "12")
        self.assert_usage_error("plan", "-s", "full", "--train-len", "8", "--tokens", "0")
        self.assert_usage_error("plan", "-s", "full", "--train-len", "8", "--tokens", "2", "--expected-tokens", "0")
        self.assert_usage_error("plan", "-s", "full", "--train-len", "8", "--tokens", "257", "--svg", "plan.svg")
        self.assert_usage_error("plan", "-s", "full", "--train-len", "8", "--tokens", "twelve")
        self.assertIn("0 to 3", self.assert_usage_error("plan", "--train-len", "8", "--tokens", "2", "--heads", "4", "--head", "4"))
        self.assert_usage_error("run", "-m", "x", "-p", "x", "--kv-type", "f64")
        self.assert_usage_error("run", "-m", "x")
        for wrong in ("5", "=1", "5=", "x=1", "5=x", "5=nan", "99999999999=1"):
            self.assertIn(wrong, self.assert_usage_error("run", "-m", "x", "-p", "x", "--logit-bias", wrong))
        self.assert_usage_error("run", "-m", "x", "-p", "x", "--top-logprobs", "2")  # without --json
        self.assert_usage_error("run", "-m", "x", "-p", "x", "--json", "--top-logprobs", "65")
        self.assert_usage_error("run", "-m", "x", "-p", "x", "--draft", "32")
        self.assert_usage_error("run", "-m", "x", "-p", "x", "--dry-base", "0.5")
        self.assert_usage_error("run", "-m", "x", "-p", "x", "--typical", "1.5")
        self.assert_usage_error("run", "-m", "x", "-p", "x", "--deadline", "-1")
        for option, wrong, expected in (
                ("--temperature", "nan", "from 0 to 1e+06"), ("--temperature", "-1", "from 0"), ("--top-p", "nan", "from 0 to 1"),
                ("--repeat-penalty", "nan", "more than 0"), ("--repeat-penalty", "1e-300", "more than 0"),
                ("--frequency-penalty", "inf", "from -1e+06 to 1e+06"), ("--kv-budget", "-5", "such as 500MB"),
                ("--kv-budget", "-5MB", "such as 500MB"), ("--kv-budget", "16EB", "such as 500MB"), ("--stop", "", "1 to 1024 bytes"),
                ("--dry-breaker", "x" * 1025, "1 to 1024 bytes"), ("--deadline", "1e300", "from 0 to 1e+09"),
                ("--deadline", "inf", "from 0 to 1e+09"), ("--top-k", "99999999999", "from 0 to 2147483647"),
                ("--max-tokens", "99999999999999999999", "0 or more"), ("--max-tokens", "-3", "0 or more"),
                ("--max-tokens", "1.5", "0 or more"), ("--expected-tokens", "0", "1 or more"),
                ("--seed", "99999999999999999999", "of 64 bits"), ("--seed", "-1", "of 64 bits")):
            message = self.assert_usage_error("run", "-m", "x", "-p", "x", option, wrong)
            self.assertTrue(message.startswith(f"quire: {option}"), message)
            self.assertIn(expected, message)
        self.assertIn("1 to 1099511627776", self.assert_usage_error("plan", "--train-len", "0", "--tokens", "4"))
        self.assertIn("q4_k_m", self.assert_usage_error("quantize", "x", "y", "-t", "foo"))
        self.assertIn("is the model itself", self.assert_usage_error("quantize", OPTIONS.model, OPTIONS.model))
        if (weights := pathlib.Path(OPTIONS.model) / "model.safetensors").is_file():
            copy = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "model"
            shutil.copytree(OPTIONS.model, copy)
            self.assertIn("is the model itself", self.assert_usage_error("quantize", copy, copy / "model.safetensors"))
            self.assertEqual((copy / "model.safetensors").read_bytes(), weights.read_bytes())
            self.assertIn("no GGUF file", self.assert_usage_error("quantize", copy, copy / "config.json"))
            self.assertEqual((copy / "config.json").read_bytes(), weights.with_name("config.json").read_bytes())
        self.assert_usage_error("eval", "needle", "-m", "x", "--tokens", "64", "--depths", "nan")
        self.assert_usage_error("eval", "ppl", "-m", "x", "-f", "x", "--tokens", "64", "--window", "32")
        self.assert_usage_error("eval", "ppl", "-m", "x", "-f", "x", "--tokens", "64", "--target-tokens", "64")

    def test_values_that_the_model_or_the_library_refuses_exit_2(self):
        asked = ["run", "-m", OPTIONS.model, "-p", "The grass is", "-n", 1]
        self.assertIn("--logit-bias 99999=", self.assert_usage_error(*asked, "--logit-bias", "99999=1"))
        self.assertIn("--logit-bias -1=", self.assert_usage_error(*asked, "--logit-bias", "-1=1"))
        self.assertIn("foo", self.assert_usage_error(*asked, "--device", "foo"))
        self.assertIn("scale", self.assert_usage_error(*asked, "--merge-adapter", "/nowhere=0"))
        self.assertIn("nope", self.assert_usage_error(*asked, "--chat", "--chat-template", "nope"))

    def test_wrong_strategy_exits_2_and_says_why(self):
        message = self.assert_usage_error("plan", "-s", "dca(chink=4)", "--train-len", "8", "--tokens", "12")
        self.assertIn("BAD_STRATEGY", message)
        self.assertIn("chink", message)

    def test_help_and_version_exit_0(self):
        for arguments in (["--help"], ["run", "--help"], ["plan", "--help"], ["eval", "passkey", "--help"],
                          ["index", "--help"], ["verify", "--help"], ["ls", "--help"]):
            done = run(*arguments)
            self.assertEqual(done.returncode, 0)
            self.assertIn("Example", done.stdout)
        self.assertRegex(run("--version").stdout, r"^quire \d+\.\d+\.\d+\n$")

    def test_help_says_the_default_strategy(self):
        for command, default in (("run", "full, or auto where"), ("chat", "auto)"), ("index", "full)")):
            self.assertIn("(default: " + default, run(command, "--help").stdout, command)

    def test_missing_model_exits_1_and_names_it(self):
        for arguments in (["info", "/nowhere/model"], ["run", "-m", "/nowhere/model", "-p", "x"]):
            done = run(*arguments)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, r"^quire: .*/nowhere/model.*\[NOT_FOUND\]\n$")

    def test_missing_document_exits_1_and_names_it(self):
        done = run("run", "-m", OPTIONS.model, "-f", "/nowhere/text", "-p", "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/text", done.stderr)


class OutputTest(unittest.TestCase):
    """What cannot be written is no success: status 1 and the reason, from every subcommand."""

    def commands(self):
        yield ["--help"]
        yield ["eval", "passkey", "--help"]
        yield ["--version"]
        yield PLAN
        yield [*PLAN, "--json"]
        yield ["ls", self.text.parent]
        yield ["ls", self.text.parent, "--json"]
        if not (pathlib.Path(OPTIONS.model) / "model.safetensors").is_file():
            return
        model, text = ["-m", OPTIONS.model], self.text
        for arguments in (["info", OPTIONS.model],
                          ["run", *model, "-p", "The grass is", "-n", "3", "--ignore-eos"],
                          ["index", text, *model, "-s", "dca", "-o", text.with_suffix(".quire")],
                          ["eval", "passkey", *model, "--tokens", "160", "--trials", "1"],
                          ["eval", "needle", *model, "--tokens", "160", "--trials", "1", "--depths", "0.5"],
                          ["eval", "multikey", *model, "--tokens", "200", "--trials", "1", "--keys", "1"],
                          ["eval", "topics", *model, "--tokens", "100", "--trials", "1", "--topics", "1"],
                          ["eval", "ppl", *model, "-f", text, "--tokens", "32"],
                          ["bench", *model, "-p", "4", "-n", "2", "-r", "1"]):
            yield arguments
            yield [*arguments, "--json"]
        yield ["verify", text.with_suffix(".quire")]

    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.text = pathlib.Path(folder) / "text"
        self.text.write_text("There and back again. The sky is blue.\n" * 20)

    def fails(self, arguments, stdout, reason, **more):
        done = subprocess.run([OPTIONS.quire, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, text=True, timeout=240, check=False, **more)
        self.assertEqual(done.returncode, 1, f"{arguments}: {done.stderr}")
        self.assertEqual(done.stderr, f"quire: cannot write to standard output: {reason}\n", arguments)

    def test_a_full_disk(self):
        with open("/dev/full", "wb") as full:
            for arguments in self.commands():
                self.fails(arguments, full, "No space left on device")

    def test_a_limit_for_the_size_of_files(self):
        """Standard output stands at the limit; the other files that the commands write are shorter."""
        most = 1 << 26
        limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        with open(self.text.parent / "output", "wb") as output:
            output.truncate(most)
            output.seek(most)
            for arguments in self.commands():
                self.fails(arguments, output, "File too large", preexec_fn=limited)

    def test_a_reader_that_went_away(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        for arguments in self.commands():
            self.fails(arguments, writer, "Broken pipe")

    def test_a_closed_output(self):
        """No file that is opened, such as that of chunks, takes its place and has what is printed."""
        spill = ["--kv-budget", "200KB", "--spill-dir", self.text.parent]
        commands = list(self.commands())
        commands += [[*each, *spill] for each in commands if each[0] == "run"]
        for arguments in commands:
            self.fails(arguments, None, "Bad file descriptor", preexec_fn=lambda: os.close(1))

    def test_stops_at_once(self):
        """Neither would come to an end within the tests' time."""
        if not (pathlib.Path(OPTIONS.model) / "model.safetensors").is_file():
            self.skipTest(f"no model in {OPTIONS.model}")
        with open("/dev/full", "wb") as full:
            self.fails(["run", "-m", OPTIONS.model, "-s", "streaming_llm", "-p", "The grass is", "-n", 10**9,
                        "--overflow", "extrapolate", "--ignore-eos"], full, "No space left on device")
            self.fails(["eval", "passkey", "-m", OPTIONS.model, "-s", "streaming_llm", "--trials", 1, "--tokens", 160,
                        *[16000] * 1000], full, "No space left on device")

    def test_files_that_cannot_be_written(self):
        if not (pathlib.Path(OPTIONS.model) / "model.safetensors").is_file():
            self.skipTest(f"no model in {OPTIONS.model}")
        for arguments in self.commands():
            if arguments[0] != "eval" or "--json" in arguments or "--help" in arguments:
                continue
            done = run(*arguments, "--svg", "/dev/full")
            self.assertEqual(done.returncode, 1, arguments)
            self.assertEqual(done.stderr, "quire: cannot write /dev/full: No space left on device\n", arguments)
            self.assertTrue(done.stdout, arguments)  # what was found out is not lost


class ModelTest(unittest.TestCase):
    def setUp(self):
        if not (pathlib.Path(OPTIONS.model) / "model.safetensors").is_file():
            self.skipTest(f"no model in {OPTIONS.model}")

    def run_json(self, *arguments, stdin=""):
        done = run(*arguments, "--json", stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_info(self):
        facts = self.run_json("info", OPTIONS.model)
        config = json.loads((pathlib.Path(OPTIONS.model) / "config.json").read_text())
        self.assertEqual(facts["n_layers"], config["num_hidden_layers"])
        self.assertEqual(facts["train_len"], config["max_position_embeddings"])
        shown = run("info", OPTIONS.model).stdout
        self.assertIn(str(config["num_hidden_layers"]), shown)
        self.assertEqual(facts["chat_template"], "")
        self.assertRegex(shown, r"(?m)^chat_template +none$")
        self.assertRegex(shown, r"(?m)^sliding_window +none$")
        some = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models" / "qwen2_window_layers"
        facts = self.run_json("info", some)
        self.assertEqual((facts["sliding_window_layers"], facts["sliding_window_tokens"]), (2, 40))
        self.assertRegex(run("info", some).stdout, r"(?m)^sliding_window +not in all layers$")

    def test_bench_counts_windows_of_some_layers(self):
        model = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models" / "qwen2_window_layers"
        config = json.loads((model / "config.json").read_text())
        layer = 2 * 2 * config["num_key_value_heads"] * config["hidden_size"] // config["num_attention_heads"]
        bench = ["bench", "-m", model, "-p", 0, "-n", 1, "-r", 1, "--depth", "10,1000", "-s", "full(kv_chunk=16)"]
        found = self.run_json(*bench)
        self.assertEqual(found["kv_bytes_per_token"], 2 * layer)
        near, far = (row["decode"]["bytes_per_token"] for row in found["rows"])
        self.assertEqual(far - near, 2 * layer * (1001 - 11) + 2 * layer * (40 - 11))
        # Of each of two layers 63 chunks, and with a window those from token 889 on, which is seen from 928 on.
        self.assertEqual(found["rows"][1]["kv_bytes"], 16 * 2 * layer * (63 + 8))
        keeping = self.run_json(*bench, "--keep-behind-windows")
        self.assertEqual(keeping["kv_bytes_per_token"], 4 * layer)
        self.assertEqual([row["kv_bytes"] for row in keeping["rows"]], [16 * 4 * layer, 16 * 4 * layer * 63])
        self.assertEqual([row["decode"]["bytes_per_token"] for row in keeping["rows"]], [near, far])

    def test_bench_counts_old_text_in_its_type(self):
        bench = ["bench", "-m", OPTIONS.model, "-p", 0, "-n", 1, "-r", 1, "--depth", 60, "-s", "full(kv_chunk=16)"]
        full = self.run_json(*bench)
        self.assertNotIn("kv_old_type", full)
        old = self.run_json(*bench, "--kv-old", "int8", "--old-after", 20)
        self.assertEqual((old["kv_old_type"], old["old_after"]), ("int8", 20))
        self.assertLess(old["kv_bytes_per_old_token"], old["kv_bytes_per_token"])
        # Token 60 is of the chunk that begins with token 48, so tokens before 16 are old.
        saved = 16 * (old["kv_bytes_per_token"] - old["kv_bytes_per_old_token"])
        read = [each["rows"][0]["decode"]["bytes_per_token"] for each in (full, old)]
        self.assertEqual(read[0] - read[1], saved)
        self.assertIn(" in int8 after 20", run(*bench, "--kv-old", "int8", "--old-after", 20).stdout)
        narrower = self.run_json(*bench, "--kv-old", "int4", "--old-after", 20)
        self.assertEqual(narrower["kv_old_type"], "int4")
        self.assertLess(narrower["kv_bytes_per_old_token"], old["kv_bytes_per_old_token"])

    def test_strategies(self):
        terms = {term["name"]: term for term in self.run_json("strategies", "--train-len", 1024)["terms"]}
        self.assertIn("yarn", terms)
        chunk = next(a for a in terms["dca"]["arguments"] if a["name"] == "chunk")
        self.assertEqual((chunk["type"], chunk["default"], chunk["min"], chunk["max"]), ("integer", 768, 1, 1024))
        text = run("strategies").stdout
        self.assertRegex(text, r"dca: .*\n +preset=paper  \[paper\|")
        self.assertEqual(run("strategies", "--train-len", 0).returncode, 2)

    def test_estimate(self):
        arguments = ["estimate", "-m", OPTIONS.model, "-s", "longheads", "--tokens", 20000]
        all_in_memory = self.run_json(*arguments)
        self.assertGreater(all_in_memory["prefill_seconds"], 0)
        self.assertEqual(all_in_memory["kv_file_bytes"], 0)
        self.assertEqual(all_in_memory["decode_token_seconds"], all_in_memory["decode_token_cold_seconds"])
        budget = all_in_memory["kv_host_bytes"] // 2
        with tempfile.TemporaryDirectory() as directory:
            spilled = self.run_json(*arguments, "--kv-budget", budget, "--spill-dir", directory)
            shown = run(*arguments, "--kv-budget", budget, "--spill-dir", directory).stdout
        self.assertEqual(spilled["kv_host_bytes"], budget)
        self.assertGreater(spilled["decode_token_cold_seconds"], spilled["decode_token_seconds"])
        self.assertRegex(shown, r"in the file +\d.*\n\nreading +\d.*\nanswering +\d.* if nothing that it chooses")
        # Of a GPU, which this is not.
        self.assertEqual(self.run_json(*arguments, "--device-budget", 1000)["kv_host_bytes"],
                         all_in_memory["kv_host_bytes"])
        refused = run(*arguments, "--kv-budget", 1000)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("does not fit: the KV cache needs", refused.stderr)

    def test_estimate_beyond_the_reach(self):
        arguments = ["estimate", "-m", OPTIONS.model, "-s", "full", "--tokens"]
        within = self.run_json(*arguments, 256)
        self.assertEqual((within["reach"], within["within_reach"]), (256, True))
        for overflow in ("error", "stop"):
            refused = run(*arguments, 257, "--overflow", overflow, "--json")
            self.assertEqual(refused.returncode, 1)
            self.assertRegex(refused.stderr, r"^quire: a document of 257 tokens does not fit: the reach of full.* is 256 "
                             "tokens\n$")
            found = json.loads(refused.stdout)
            self.assertEqual((found["reach"], found["within_reach"]), (256, False))
        shown = run(*arguments, 1000)
        self.assertEqual(shown.returncode, 1)
        self.assertRegex(shown.stdout, r"^full.*, 1000 tokens\n\nbeyond the reach +of 256 tokens; .*\n\nmemory\n")
        allowed = run(*arguments, 1000, "--overflow", "extrapolate")
        self.assertEqual((allowed.returncode, allowed.stderr), (0, ""))
        self.assertIn("beyond the reach", allowed.stdout)
        unlimited = self.run_json("estimate", "-m", OPTIONS.model, "-s", "streaming_llm", "--tokens", 1000)
        self.assertEqual((unlimited["reach"], unlimited["within_reach"]), (None, True))

    def test_devices(self):
        devices = self.run_json("info", "--devices")
        self.assertEqual((devices[0]["name"], devices[0]["usable"]), ("cpu", True))
        self.assertTrue(run("info", "--devices").stdout.startswith("cpu "))
        self.assertEqual(self.run_json("info", OPTIONS.model)["device"], "cpu")
        self.assertEqual(run("info").returncode, 2)
        arguments = ["run", "-m", OPTIONS.model, "-p", "The grass is", "-n", 1]
        self.assertEqual(run(*arguments, "--device", "cpu").returncode, 0)
        refused = run(*arguments, "--device", "cuda:0")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("no plugin is looked for", refused.stderr)

    def test_auto_says_what_it_chose(self):
        arguments = ["run", "-m", OPTIONS.model, "-s", "auto", "-p", "The grass is", "-n", 4]
        done = run(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"^quire: auto chose full\(.* because the expected \d+ tokens are within .*\n$")
        self.assertTrue(json.loads(done.stdout)["strategy"].startswith("full("))
        long = run(*arguments, "--expected-tokens", 100000)
        self.assertRegex(long.stderr, r"^quire: auto chose dca\(.* because the expected 100000 tokens exceed .*\n$")
        self.assertTrue(self.run_json("info", OPTIONS.model)["auto_strategy"].startswith("dca("))

    def test_adapters_beside_and_merged(self):
        golden = pathlib.Path(__file__).resolve().parents[1] / "golden"
        adapter = golden / "adapters" / "attention"
        arguments = ["run", "-m", golden / "models" / "text_256", "-p", "Rain fell", "-n", 12, "--ignore-eos", "--json",
                     "--kv-type", "f32"]
        plain, beside = run(*arguments), run(*arguments, "--adapter", adapter)
        merged = run(*arguments, "--merge-adapter", f"{adapter}=1")
        weak = run(*arguments, "-s", "full + base(theta=10000)", "--adapter", f"{adapter}=-0.01")
        tokens = [json.loads(done.stdout)["tokens"] for done in (plain, beside, merged)]
        self.assertEqual(tokens[1], tokens[2])
        self.assertNotEqual(tokens[0], tokens[1])
        warning = r"^quire: warning: the adapter changes queries or keys, .*base\(theta=\.\.\.\).*\n$"
        self.assertRegex(beside.stderr, warning)  # once
        self.assertRegex(merged.stderr, warning)
        self.assertEqual((plain.stderr, weak.stderr, weak.returncode), ("", "", 0))
        missing = run(*arguments, "--adapter", "no=such")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("no=such", missing.stderr)
        self.assertEqual(run(*arguments, "--adapter", f"{adapter}=0").returncode, 2)

    def test_run_prepares_for_the_length_of_its_text(self):
        answer = self.run_json("run", "-m", OPTIONS.model, "-s", "full + dynamic_ntk(factor=2)", "-f", "-", "-n", 4,
                               stdin="The sky is blue.\n" * 100)
        n_tokens = answer["n_prompt_tokens"] + 4
        self.assertIn(f"length={n_tokens}, original=256", answer["strategy"])

    def test_run_streams_what_json_reports(self):
        arguments = ["run", "-m", OPTIONS.model, "-p", "The grass is", "-n", 12, "--ignore-eos"]
        answer = self.run_json(*arguments)
        self.assertEqual(len(answer["tokens"]), 12)
        self.assertEqual(answer["finish_reason"], "max_tokens")
        self.assertEqual(run(*arguments).stdout.rstrip("\n"), answer["text"].rstrip("\n"))

    def test_run_says_where_the_kv_cache_lies(self):
        arguments = ["run", "-m", OPTIONS.model, "-s", "dca", "-f", "-", "-n", 8, "--ignore-eos"]
        text = "There and back again. The sky is blue.\n" * 60
        whole = self.run_json(*arguments, "--stats", stdin=text)
        self.assertEqual(list(whole["tiers"]), ["host"])
        self.assertEqual(whole["tiers"]["host"]["bytes_peak"], whole["kv_bytes_peak"])
        with tempfile.TemporaryDirectory() as folder:
            arguments += ["--kv-budget", whole["kv_bytes_peak"] // 2, "--compressed-budget", whole["kv_bytes_peak"],
                          "--spill-dir", folder, "--stats"]
            spilled = self.run_json(*arguments, stdin=text)
            table = run(*arguments, stdin=text)
            self.assertNotIn("tiers", self.run_json(*arguments[:-1], stdin=text))
        self.assertEqual(spilled["tokens"], whole["tokens"])
        self.assertEqual(list(spilled["tiers"]), ["host", "compressed", "file"])
        for tier in ("host", "compressed"):
            self.assertLessEqual(spilled["tiers"][tier]["bytes_peak"], spilled["tiers"][tier]["budget_bytes"])
        self.assertGreater(spilled["tiers"]["compressed"]["n_hits"], 0)
        self.assertEqual([line.split()[0] for line in table.stderr.splitlines()[-4:]],
                         ["tier", "host", "compressed", "file"])

    def test_run_is_the_same_for_any_number_of_threads(self):
        arguments = ["run", "-m", OPTIONS.model, "-s", "dca", "-f", "-", "-n", 16, "--temperature", 1, "--seed", 3]
        text = "There and back again. The sky is blue.\n" * 40
        answers = [self.run_json(*arguments, "--threads", n, stdin=text) for n in (1, 2)]
        self.assertEqual(answers[0]["tokens"], answers[1]["tokens"])
        self.assertGreater(answers[0]["n_prompt_tokens"], 256)

    def test_stop_string_ends_before_it(self):
        arguments = ["run", "-m", OPTIONS.model, "-p", "The grass is", "-n", 24, "--ignore-eos"]
        text = self.run_json(*arguments)["text"]
        stop = text[len(text) // 2:len(text) // 2 + 3]
        answer = self.run_json(*arguments, "--stop", stop)
        self.assertEqual(answer["text"], text[:text.index(stop)])
        self.assertEqual(answer["finish_reason"], "stop_string")

    def test_texts_in_square_brackets_are_no_lists(self):
        arguments = ["run", "-m", OPTIONS.model, "-p", "The grass is", "--ignore-eos"]
        plain = self.run_json(*arguments, "-n", 24)["tokens"]
        for text in ("[END]", "[ a, e ]", "[a,e]", "[]"):
            for option in ("--stop", "--dry-breaker"):
                self.assertEqual(self.run_json(*arguments, option, text, "-n", 24)["tokens"], plain, (option, text))
        done = run(*arguments, "--logit-bias", "[70=500]", "-n", 24)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("[70=500]", done.stderr)

    def test_drafts_change_no_token(self):
        arguments = ["run", "-m", OPTIONS.model, "-p", "The grass is green. The grass is", "-n", 24, "--ignore-eos"]
        plain = self.run_json(*arguments, "--draft", 0)
        self.assertEqual((plain["n_drafted_tokens"], plain["n_accepted_tokens"]), (0, 0))
        for more in ([], ["--draft", 31, "--draft-match", 1], ["--draft", 2, "--temperature", 0]):
            answer = self.run_json(*arguments, *more)
            self.assertEqual(answer["tokens"], plain["tokens"], more)
            self.assertGreater(answer["n_drafted_tokens"], 0)
            self.assertLessEqual(answer["n_accepted_tokens"], answer["n_drafted_tokens"])

    def test_sampling_options(self):
        arguments = ["run", "-m", OPTIONS.model, "-p", "The grass is green. The grass is", "-n", 16, "--ignore-eos"]
        greedy = self.run_json(*arguments, "--top-logprobs", 3)
        self.assertEqual(self.run_json(*arguments)["top_logprobs"], [])
        self.assertEqual([top[0][0] for top in greedy["top_logprobs"]], greedy["tokens"])
        for top in greedy["top_logprobs"]:
            self.assertEqual(sorted((logprob for _, logprob in top), reverse=True), [logprob for _, logprob in top])
        banned = self.run_json(*arguments, "--logit-bias", f"{greedy['tokens'][0]}=-inf")
        self.assertEqual(banned["tokens"][0], greedy["top_logprobs"][0][1][0])
        forced = self.run_json(*arguments, "--logit-bias", "70=500", "--logit-bias", "71=-2.5")
        self.assertEqual(forced["tokens"], [70] * 16)
        once = self.run_json(*arguments, "--presence-penalty", 1000)
        self.assertEqual(len(set(once["tokens"])), 16)
        for more in (["--dry-multiplier", 1000, "--dry-length", 1],
                     ["--repeat-penalty", 5, "--penalty-range", 32], ["--frequency-penalty", 50]):
            self.assertNotEqual(self.run_json(*arguments, *more)["tokens"], greedy["tokens"], more)
        dry = [*arguments, "--dry-multiplier", 1000, "--dry-length", 1]
        free = self.run_json(*dry, *(x for letter in "aeiou " for x in ("--dry-breaker", letter)))
        self.assertNotEqual(free["tokens"], self.run_json(*dry)["tokens"])
        drawn = [*arguments, "--temperature", 3, "--seed", 2]
        self.assertNotEqual(self.run_json(*drawn, "--typical", 0.2)["tokens"], self.run_json(*drawn)["tokens"])
        self.assertEqual(self.run_json(*drawn, "--top-k", 20, "--typical", 1)["tokens"],
                         self.run_json(*drawn, "--top-k", 20)["tokens"])

    def test_min_tokens_holds_the_end_back(self):
        info = self.run_json("info", OPTIONS.model)
        end = int(str(info["eos_token_ids"]).strip("[]").split(",")[0])
        arguments = ["run", "-m", OPTIONS.model, "-p", "The grass is", "-n", 9, "--logit-bias", f"{end}=500"]
        at_once, later = self.run_json(*arguments), self.run_json(*arguments, "--min-tokens", 4)
        self.assertEqual((at_once["finish_reason"], at_once["tokens"]), ("eos", []))
        self.assertEqual((later["finish_reason"], len(later["tokens"])), ("eos", 4))

    def test_deadline(self):
        answer = self.run_json("run", "-m", OPTIONS.model, "-s", "dca", "-p", "The", "-n", 100000000, "--ignore-eos",
                               "--deadline", 0.2)
        self.assertEqual(answer["finish_reason"], "deadline")
        self.assertGreater(len(answer["tokens"]), 0)

    def test_overflow(self):
        arguments = ["run", "-m", OPTIONS.model, "-s", "full", "-f", "-", "-n", 4]
        text = "The sky is blue.\n" * 100
        refused = run(*arguments, stdin=text)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("[OVERFLOW]", refused.stderr)
        self.assertEqual(refused.stdout, "")
        stopped = run(*arguments, "--overflow", "stop", "--json", stdin=text)
        self.assertEqual((stopped.returncode, json.loads(stopped.stdout)["finish_reason"]), (1, "reach"))
        self.assertRegex(stopped.stderr, r"^quire: reading ended by reach: 256 of \d+ tokens were read\n$")
        self.assertTrue(refused.stderr.endswith("\nTry -s auto, which chooses a strategy that reaches so far.\n"))
        few = run("run", "-m", OPTIONS.model, "-s", "auto", "--expected-tokens", 5, "-f", "-", stdin=text)
        self.assertTrue(few.stderr.endswith("\nTry -s auto, without --expected-tokens or with more.\n"), few.stderr)
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "x.quire"
            self.run_json("index", "-", "-m", OPTIONS.model, "-s", "full", "-o", saved, stdin="The sky is blue.")
            asked = run("run", "-m", OPTIONS.model, "--document", saved, "-p", text)
            self.assertIn("[OVERFLOW]\nTry quire index with -s auto and another file", asked.stderr)
        # Where no strategy is named, one is taken that reaches so far; what needs none is read as ever.
        unnamed = ["run", "-m", OPTIONS.model, "-f", "-", "-n", 4, "--ignore-eos"]
        self.assertEqual(self.run_json(*unnamed, stdin=text)["finish_reason"], "max_tokens")
        self.assertIn("auto chose dca", run(*unnamed, stdin=text).stderr)
        self.assertTrue(self.run_json(*unnamed, stdin=text)["strategy"].startswith("dca("))
        self.assertTrue(self.run_json(*unnamed, stdin="The sky is")["strategy"].startswith("full("))

    def test_a_text_beyond_a_budget_is_refused_before_it_is_read(self):
        arguments = ["run", "-m", OPTIONS.model, "-s", "dca", "-f", "-", "-n", 4, "--kv-budget", 400 << 10]
        text = "The sky is blue.\n" * 200
        refused = run(*arguments, stdin=text)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertRegex(refused.stderr, r"^quire: a document of \d+ tokens does not fit: .* \[BUDGET\]\nTry .*--spill-dir")
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(len(self.run_json(*arguments, "--spill-dir", folder, stdin=text)["tokens"]), 4)
            less = run(*arguments[:-1], 10 << 10, "--spill-dir", folder, stdin=text)
            self.assertTrue(less.stderr.endswith(" [BUDGET]\nTry a larger --kv-budget.\n"), less.stderr)
        estimate = ["estimate", "-m", OPTIONS.model, "-s", "dca", "--tokens", 1 << 36]
        done = run(*estimate)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"it takes 64\.\d TiB of memory, and the machine has ")
        done = run(*estimate, "--kv-budget", "50MB", "--spill-dir", tempfile.gettempdir())
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"takes 6\d\.\d TiB of .*, which has room for .*\[IO\]")

    def test_what_is_no_text_in_utf8_is_refused(self):
        for data, reason in ((b"one\ncaf\xe9 and more", "at byte 7 (line 2)"), ("hi".encode("utf-16"), "UTF-16"),
                             ("Some text".encode("utf-16-le"), "UTF-16"), (b"%PDF-1.7\n", "pdftotext"), (b"PK\3\4\0", "ZIP"),
                             (b"\xed\xa0\x80", "at byte 0"), (b"\xc0\x80", "at byte 0"), (b"a\xf4\x90\x80\x80", "at byte 1"),
                             ("\u20ac".encode()[:2], "at byte 0"), (b" \n", "white space"), (b"", "is empty")):
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                done = run("run", "-m", "/nowhere/model", "-f", file.name, "-p", "What?")
            self.assertEqual((done.returncode, done.stdout), (1, ""), data)
            self.assertIn(f"quire: {file.name} ", done.stderr)
            self.assertIn(reason, done.stderr)

    def test_text_in_utf8_is_read(self):
        text = "\x00 caf\u00e9 \u20ac \ud7ff \ue000 \U00010000 \U0010ffff"
        self.assertEqual(self.run_json("run", "-m", OPTIONS.model, "-f", "-", "-n", 1, stdin=text)["finish_reason"], "max_tokens")

    def test_interrupt_exits_130(self):
        process = subprocess.Popen([OPTIONS.quire, "run", "-m", OPTIONS.model, "-s", "dca", "-p", "The", "-n",
                                    "100000000", "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            process.stdout.read(1)  # it generates
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(errors, b"quire: interrupted\n")

    def started(self, **options):
        """`quire run`, which waits for its document, and the file to write that to."""
        fifo = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "fifo"
        os.mkfifo(fifo)
        process = subprocess.Popen([OPTIONS.quire, "run", "-m", OPTIONS.model, "-f", fifo, "-p", "x", "-n", "1", "--ignore-eos"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
        return process, open(fifo, "wb", buffering=0)  # from here on the command has opened it, too

    def test_interrupt_while_a_document_comes(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, document = self.started()
            with document:
                document.write(b"Once upon")
                process.send_signal(number)
                _, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, errors), (130, b"quire: interrupted\n"), number)

    def test_an_interrupt_that_the_parent_ignores_is_ignored(self):
        """As a shell without job control says it to what runs in the background."""
        for number in (signal.SIGINT, signal.SIGTERM):
            process, document = self.started(preexec_fn=lambda number=number: signal.signal(number, signal.SIG_IGN))
            with document:
                process.send_signal(number)
                document.write(b"Once upon")
            _, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, errors), (0, b""), number)

    def test_interrupt_while_rates_are_measured(self):
        primary, secondary = pty.openpty()  # whose progress bar tells when the model is loaded
        process = subprocess.Popen([OPTIONS.quire, "estimate", "-m", OPTIONS.model, "-s", "dca", "--tokens", "100000"],
                                   stdout=subprocess.PIPE, stderr=secondary)
        os.close(secondary)
        shown = b""
        with process, os.fdopen(primary, "rb", buffering=0) as terminal:
            while not shown.endswith(b"\x1b[K") or b"100%" not in shown:
                shown += terminal.read(4096)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.stdout.read(), b"")
            self.assertEqual(process.wait(60), 130)

    def test_progress_only_on_a_terminal(self):
        arguments = ["eval", "passkey", "-m", OPTIONS.model, "--tokens", "200", "--trials", "2"]
        self.assertEqual(run(*arguments).stderr, "")
        primary, secondary = pty.openpty()
        with os.fdopen(primary, "rb") as terminal:
            subprocess.run([OPTIONS.quire, *arguments], stdout=subprocess.DEVNULL, stderr=secondary, check=True,
                           timeout=240)
            os.close(secondary)
            self.assertIn(b"passkey [####", os.read(terminal.fileno(), 1 << 16))

    def test_passkey_is_deterministic_and_fits(self):
        arguments = ["eval", "passkey", "-m", OPTIONS.model, "-s", "dca", "--tokens", 200, 512, "--trials", 3,
                     "--seed", 5]
        first, second = self.run_json(*arguments), self.run_json(*arguments)
        for row, again in zip(first["rows"], second["rows"]):
            self.assertEqual(row["trials"], again["trials"])
            self.assertEqual(row["accuracy"], sum(t["correct"] for t in row["trials"]) / 3)
            for trial in row["trials"]:
                self.assertLessEqual(trial["n_prompt_tokens"], row["n_tokens"] - 8)
                self.assertGreaterEqual(trial["n_prompt_tokens"], row["n_tokens"] * 7 // 8 - 8 - 10)
                self.assertRegex(trial["key"], r"^[1-9]\d{4}$")
                self.assertEqual(trial["correct"], trial["answer"] == trial["key"])
        self.assertEqual(len({t["key"] for t in first["rows"][0]["trials"]}), 3)

    def test_window_that_holds_everything_scores_as_the_whole(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The grass is green. The sky is blue. The sun is yellow.\n" * 60)
            file.flush()
            arguments = ["eval", "ppl", "-m", OPTIONS.model, "-f", file.name, "--tokens", 200, "--target-tokens", 40]
            whole = self.run_json(*arguments)
            windows = self.run_json(*arguments, "--window", 240, "--stride", 40)
            strided = self.run_json(*arguments, "--window", 240, "--stride", 15)
        self.assertEqual(whole["n_targets"], 40)
        self.assertAlmostEqual(whole["nll"], windows["nll"], places=6)
        self.assertAlmostEqual(whole["nll"], strided["nll"], places=5)

    def test_c_minimal(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The grass is green. The sky is blue.\n" * 40)
            file.flush()
            done = run(OPTIONS.model, file.name, "The sky", program=OPTIONS.c_minimal)
            expected = self.run_json("run", "-m", OPTIONS.model, "-s", "dca", "-f", file.name, "-p", "The sky", "-n",
                                     48)
            wrong = run(OPTIONS.model, file.name, "The sky", "dca(", program=OPTIONS.c_minimal)
            with open("/dev/full", "wb") as full:
                unwritten = subprocess.run([OPTIONS.c_minimal, OPTIONS.model, file.name, "The sky"], stdout=full,
                                           stderr=subprocess.PIPE, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, expected["text"] + "\n")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("BAD_STRATEGY", wrong.stderr)
        self.assertEqual((unwritten.returncode, unwritten.stderr), (1, "the answer could not be written\n"))


class CMinimalTest(unittest.TestCase):
    def test_errors(self):
        self.assertEqual(run(program=OPTIONS.c_minimal).returncode, 2)
        done = run("/nowhere/model", __file__, "x", program=OPTIONS.c_minimal)
        self.assertEqual(done.returncode, 1)
        self.assertIn("NOT_FOUND", done.stderr)
        self.assertEqual(run("/nowhere/model", "/nowhere/text", "x", program=OPTIONS.c_minimal).returncode, 1)


def main():
    global OPTIONS
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, even where a shell started the tests in the background
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--c-minimal", required=True)
    parser.add_argument("--model", required=True, help="a Llama directory with a SentencePiece tokenizer")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
