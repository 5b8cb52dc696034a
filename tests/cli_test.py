#!/usr/bin/env python3
"""Drives the built `adder` command the way users and scripts do.

Usage: cli_test.py ADDER SOURCE_DIR [unittest arguments]
"""

import array
import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

ADDER = SOURCE = None  # set by main
LIMIT = 120  # seconds for anything: sanitizers and emulation are slow


def golden(name):
    return SOURCE / "tests/golden" / name


def default_signals():
    # A test that was started in the background would hand on an ignored SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def adder(*arguments, stdin=b"", preexec=None, **options):
    """Result of the command, with stdout as bytes and stderr as text."""
    def prepare():
        default_signals()
        if preexec:
            preexec()
    result = subprocess.run([ADDER, *map(str, arguments)], input=stdin, preexec_fn=prepare,
                            stdout=options.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                            timeout=LIMIT, **options)
    result.stderr = result.stderr.decode()
    return result


def start(*arguments, **options):
    return subprocess.Popen([ADDER, *map(str, arguments)], preexec_fn=default_signals, **options)


class CliTest(unittest.TestCase):
    dir = story = tiny = None  # set by main

    def ok(self, *arguments, **options):
        result = adder(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def fails(self, code, message, *arguments, **options):
        """The command ends with `code` and says `message` (a regular expression)."""
        result = adder(*arguments, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, "(?m)^adder: .*" + message)
        return result

    def empty_folder(self, name):
        path = self.dir / name
        path.mkdir()
        return path


class HelpTest(CliTest):
    COMMANDS = ("convert", "run", "inspect", "verify", "logits", "tokenize")

    def test_help_teaches(self):
        text = self.ok("--help").stdout.decode()
        for command in self.COMMANDS:
            self.assertIn(command, text)
            explained = self.ok(command, "--help").stdout.decode()
            self.assertGreaterEqual(explained.count(f"  adder {command} "), 2, command)

    def test_version(self):
        self.assertRegex(self.ok("--version").stdout.decode(), r"^adder \d+\.\d+\.\d+\n$")

    def test_usage_errors(self):
        self.assertEqual(adder().returncode, 2)
        self.fails(2, "did you mean convert", "convrt")
        self.fails(2, "there are convert, run", "frobnicate")
        self.fails(2, "MODEL is required", "run")
        self.fails(2, "--output is required", "convert", self.dir)
        self.fails(2, "--type", "convert", self.dir, "-o", self.dir / "x", "--type", "q5")
        self.fails(2, "not expected", "inspect", self.tiny, "extra")
        self.fails(2, "excludes", "run", self.tiny, "-p", "a", "--ids", "1")

    def test_numbers(self):
        def run(*arguments):
            return ("run", self.tiny, "--ids", "1", *arguments)
        self.fails(2, "-n: is 0", *run("-n", "0"))
        self.fails(2, "-n: is \"-2\"", *run("-n", "-2"))
        self.fails(2, "-n: is \"1e3\"", *run("-n", "1e3"))
        self.fails(2, "-n: is \"9{30}\"", *run("-n", "9" * 30))
        self.fails(2, "-n: is \"\"", *run("-n", ""))
        self.fails(2, "--temp: is \"nan\"", *run("--temp", "nan"))
        self.fails(2, "--temp: is \"inf\"", *run("--temp", "inf"))
        self.fails(2, "temperature is -1", *run("--temp", "-1"))
        self.fails(2, "top_p is 5", *run("--top-p", "5"))
        self.fails(2, "top_k is -5", *run("--top-k", "-5"))
        self.fails(2, "--tile: is \"0\"", *run("--tile", "0"))
        self.fails(2, "--tile: is \"4097\"", *run("--tile", "4097"))
        self.fails(2, "--seed", *run("--seed", "-1"))
        self.fails(2, "expected ID=BIAS", *run("--logit-bias", "5"))
        self.fails(2, "--logit-bias", *run("--logit-bias", "5=nan"))
        self.fails(2, "logit_bias of token 256", *run("--logit-bias", "256=1"))
        self.fails(2, "number 2 of the token ids is \"two\"", "run", self.tiny, "--ids", "1 two")
        self.fails(2, "token 0 is 256", "run", self.tiny, "--ids", "256")
        self.fails(2, "--max-error", "verify", self.tiny, "--max-error", "nan")

    def test_bad_files(self):
        for command in ("run", "inspect", "verify"):
            self.fails(1, "no-such-file", command, self.dir / "no-such-file")
        self.fails(2, "", "inspect", self.dir)
        self.fails(1, "no-such-file", "convert", self.dir / "no-such-file", "-o", self.dir / "x")
        self.fails(1, "no-such-file", "run", self.story, "-f", self.dir / "no-such-file")
        self.fails(2, "mmx", "run", self.tiny, "--ids", "1", "--isa", "mmx")
        cut = self.dir / "cut.adder"
        cut.write_bytes(self.story.read_bytes()[:1000])
        self.fails(1, "cut.adder", "inspect", cut)

    def test_closed_streams(self):
        for fd in (0, 1, 2):
            out = self.dir / f"closed{fd}.adder"
            result = adder("convert", golden("mamba1"), "-o", out, preexec=lambda: os.close(fd))
            self.assertEqual(result.returncode, 1 if fd == 1 else 0)
            self.ok("verify", out)  # nothing was written into it that belonged elsewhere


class ConvertTest(CliTest):
    def test_report(self):
        out = self.dir / "report.adder"
        result = self.ok("convert", golden("mamba1"), "-o", out, "--type", "q4")
        self.assertRegex(result.stdout.decode(), r"mamba, 2 layers, 81\.9K parameters, q4, .* bits")
        self.assertIn("warning: no tokenizer.json", result.stderr)
        self.assertEqual(re.findall(r"(?m)^(\d+)% after", result.stderr), ["25", "50", "75", "100"])

        result = self.ok("convert", golden("mamba1"), "-o", out, "--json", "--quiet")
        report = json.loads(result.stdout)
        self.assertEqual((report["family"], report["type"]), ("mamba", "q8"))
        self.assertEqual(report["file_bytes"], out.stat().st_size)
        self.assertNotIn("%", result.stderr)

    def test_gguf(self):
        peer = SOURCE / "tests/peer-gguf"
        out = self.dir / "gguf.adder"
        self.ok("convert", peer / "mamba2-F16.gguf", "-o", out, "--type", "f32", "--quiet")
        self.assertRegex(self.ok("inspect", out).stdout.decode(),
                         r"(?m)^source +GGUF, tensors in F32 F16$")
        self.ok("verify", out, "--golden", peer / "hf-mamba2/golden.safetensors")
        self.ok("run", out, "-p", "The old king", "-n", "3")
        cut = self.dir / "cut.gguf"
        cut.write_bytes((peer / "mamba2-F16.gguf").read_bytes()[:-1])
        self.fails(1, r"cut\.gguf: blk\.0\.ssm_out\.weight: 262144 bytes from byte", "convert", cut,
                   "-o", self.dir / "x")

    def test_spares_other_files(self):
        out = self.dir / "weights.safetensors"
        out.write_bytes(b"precious")
        self.fails(2, "no Adder model", "convert", golden("mamba1"), "-o", out)
        self.assertEqual(out.read_bytes(), b"precious")

    def test_interrupt_leaves_nothing(self):
        folder = self.empty_folder("interrupt")
        command = start("convert", SOURCE / "examples/models/stories-11m", "-o", folder / "m.adder",
                        "--type", "q4", stderr=subprocess.PIPE)
        self.assertTrue(command.stderr.readline())  # it has begun to write
        command.send_signal(signal.SIGINT)
        rest = command.communicate(timeout=LIMIT)[1].decode()
        self.assertEqual(command.returncode, 130, rest)
        self.assertIn("was not written", rest)
        self.assertEqual(list(folder.iterdir()), [])

    def test_kill_leaves_no_model(self):
        folder = self.empty_folder("kill")
        command = start("convert", SOURCE / "examples/models/stories-11m", "-o", folder / "m.adder",
                        "--type", "q4", stderr=subprocess.PIPE)
        self.assertTrue(command.stderr.readline())
        command.kill()
        command.communicate(timeout=LIMIT)
        self.assertFalse((folder / "m.adder").exists())

    def test_full_disk(self):
        def limit():  # the kernel's own answer to a write beyond a limit
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        folder = self.empty_folder("full")
        self.fails(1, "m.adder.*cannot write", "convert", golden("mamba1"), "-o",
                   folder / "m.adder", preexec=limit)
        ids = " ".join(str(i) for i in range(100))
        self.fails(1, "l.npy.*cannot write", "logits", self.tiny, "--ids", ids, "--out",
                   folder / "l.npy", preexec=limit)
        self.assertEqual(list(folder.iterdir()), [])

    def test_unwritable(self):
        for name in ("no/such/folder/m", "."):
            result = adder("convert", golden("mamba1"), "-o", self.dir / name)
            self.assertIn(result.returncode, (1, 2))
            self.assertRegex(result.stderr, "(?m)^adder: ")
        if os.geteuid() != 0:  # root may write anywhere
            folder = self.empty_folder("locked")
            folder.chmod(0o500)
            self.fails(1, "Permission denied", "convert", golden("mamba1"), "-o", folder / "m")

    def test_bar_on_a_terminal(self):
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        command = start("convert", SOURCE / "examples/models/stories-11m", "-o",
                        self.dir / "pty.adder", stdout=subprocess.DEVNULL, stderr=terminal,
                        env={**os.environ, "TERM": "xterm"})
        os.close(terminal)
        shown = b""
        while select.select([main], [], [], LIMIT)[0]:
            try:
                shown += os.read(main, 65536)
            except OSError:  # the other side is closed
                break
        os.close(main)
        self.assertEqual(command.wait(timeout=LIMIT), 0)
        lines = shown.decode().split("\r\x1b[K")
        bars = [line for line in lines if line.startswith("[")]
        self.assertGreater(len(bars), 1)
        self.assertRegex(bars[-1], r"^\[#+\.*\] +\d+%  .*left  [a-z]")
        self.assertTrue(all(len(bar) < 60 for bar in bars), bars)
        self.assertEqual(lines[-1].strip(), "")  # the bar was removed


class RunTest(CliTest):
    def run_json(self, *arguments, **options):
        return json.loads(self.ok("run", *arguments, "--json", **options).stdout)

    def test_text_and_statistics(self):
        result = self.ok("run", self.story, "-p", "Once upon a time", "-n", "12", "--seed", "3")
        self.assertTrue(result.stdout.decode().strip())
        self.assertRegex(result.stderr, r"prompt +5 tokens +[\d.]+ tok/s")
        self.assertRegex(result.stderr, r"generated +12 tokens +[\d.]+ tok/s  ended by: length")
        self.assertRegex(result.stderr, r"loaded in [\d.]+ ms, kernels \w+, --seed 3\n")
        again = self.ok("run", self.story, "-p", "Once upon a time", "-n", "12", "--seed", "3",
                        "--quiet", "--isa", "scalar", "--tile", "1")
        self.assertEqual((again.stdout, again.stderr), (result.stdout, ""))

    def test_prompts_are_equal(self):
        file = self.dir / "prompt.txt"
        file.write_text("The old king\n")
        ids = self.ok("tokenize", self.story, "-p", "The old king").stdout.decode()
        common = (self.story, "-n", "5", "--temp", "0")
        expected = self.run_json(*common, "-p", "The old king")
        (self.dir / "ids.txt").write_text(ids.replace(" ", ",\n"))
        for other in (self.run_json(*common, "-f", file),
                      self.run_json(*common, stdin=b"The old king\n"),
                      self.run_json(*common, "-f", "-", stdin=b"The old king"),
                      self.run_json(*common, "--ids", ids),
                      self.run_json(*common, "--ids", f"@{self.dir / 'ids.txt'}")):
            self.assertEqual(other["tokens"], expected["tokens"])
            self.assertEqual(other["prompt_ids"], expected["prompt_ids"])
        plain = self.ok("run", *common, "-p", "The old king", "--echo").stdout.decode()
        self.assertEqual(plain, "The old king" + expected["text"] + "\n")

    def test_json(self):
        result = self.run_json(self.story, "-p", "a", "-n", "3", "--seed", "1")
        self.assertEqual(result["finish_reason"], "length")
        self.assertEqual(len(result["tokens"]), 3)
        self.assertEqual(result["seed"], 1)
        self.assertEqual(result["generated_tokens"], 3)
        self.assertGreater(result["load_ms"], 0)

    def test_starts_without_prompt(self):
        bos = self.run_json(self.story, "-n", "4", "--temp", "0", "--ids", "0")
        empty = self.run_json(self.story, "-n", "4", "--temp", "0", stdin=b"")
        self.assertEqual(empty["tokens"], bos["tokens"])
        self.fails(2, "--no-bos", "run", self.story, "--no-bos")

    def test_stop_bias_and_eos(self):
        free = self.run_json(self.story, "-p", "Once upon a time", "-n", "8", "--temp", "0")
        stop = free["text"].split()[-1]
        stopped = self.run_json(self.story, "-p", "Once upon a time", "--temp", "0",
                                "--stop", "{}", "--stop", stop, "--stop", "[a,b]")
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["text"], free["text"][:free["text"].index(stop)])
        banned = self.run_json(self.story, "-p", "Once upon a time", "-n", "1", "--temp", "0",
                               "--logit-bias", f"{free['tokens'][0]}=-inf")
        self.assertNotEqual(banned["tokens"][0], free["tokens"][0])
        forced = self.run_json(self.story, "-p", "a", "--logit-bias", "0=1000")
        self.assertEqual((forced["finish_reason"], forced["tokens"]), ("eos", []))
        ignored = self.run_json(self.story, "-p", "a", "-n", "3", "--logit-bias", "0=1000",
                                "--ignore-eos")
        self.assertEqual(ignored["tokens"], [0, 0, 0])

    def test_without_tokenizer(self):
        result = self.ok("run", self.tiny, "--ids", "1 2 3", "-n", "4", "--temp", "0")
        self.assertRegex(result.stdout.decode(), r"^(\d+ ){1,4}\n$")
        self.fails(2, "--ids", "run", self.tiny, "-p", "text")

    def test_bad_text(self):
        self.fails(2, "not UTF-8.*offset 2", "run", self.story, stdin=b"ab\xff")

    def test_interrupt(self):
        command = start("run", self.story, "-p", "Once", "-n", "-1", "--ignore-eos", "--seed", "1",
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text = os.read(command.stdout.fileno(), 100)  # comes while it is made
        time.sleep(0.2)
        command.send_signal(signal.SIGINT)
        rest, statistics = command.communicate(timeout=LIMIT)
        self.assertEqual(command.returncode, 130)
        (text + rest).decode()  # whole characters
        self.assertTrue(rest.endswith(b"\n"))
        self.assertIn(b"ended by: cancelled", statistics)

    def test_second_interrupt_kills(self):
        read, write = os.pipe()  # full and never read: the command hangs in a write
        command = start("run", self.story, "-p", "Once", "-n", "-1", "--ignore-eos",
                        stdout=write, stderr=subprocess.DEVNULL)
        os.close(write)
        fcntl.fcntl(read, 1031, 4096)  # F_SETPIPE_SZ
        deadline = time.monotonic() + LIMIT
        while struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, b"\0\0\0\0"))[0] < 4000:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        time.sleep(0.3)
        command.send_signal(signal.SIGINT)
        time.sleep(0.3)
        command.send_signal(signal.SIGINT)
        self.assertEqual(command.wait(timeout=LIMIT), -signal.SIGINT)
        os.close(read)

    def test_closed_pipe(self):
        command = start("run", self.story, "-p", "Once", "-n", "-1", "--ignore-eos",
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(command.stdout.read(1))
        command.stdout.close()
        self.assertEqual(command.wait(timeout=LIMIT), 0)
        self.assertEqual(command.stderr.read(), b"")
        command.stderr.close()

    def test_full_output(self):
        with open("/dev/full", "wb") as full:
            self.fails(1, "standard output: cannot write", "run", self.story, "-p", "a",
                       stdout=full)


class InspectTest(CliTest):
    def test_text(self):
        text = self.ok("inspect", self.story, "--tensors").stdout.decode()
        for expected in (r"layers +10 x mamba1: .*d_inner 768", r"bos +0 <\|endoftext\|>",
                         r"chat template +yes", r"kernels +\w+ runs; .*scalar", r"session .*state",
                         r"embedding +mat_q8 +\[4096, 384\] +\d+ bytes"):
            self.assertRegex(text, "(?m)^" + expected)

    def test_layers_of_several_kinds(self):
        model = self.dir / "mamba3.adder"
        self.ok("convert", golden("mamba3-siso-mlp"), "-o", model)
        text = self.ok("inspect", model).stdout.decode()
        self.assertRegex(text, r"(?m)^layers +2 x mamba3: .*; layers 0, 2$")
        self.assertRegex(text, r"(?m)^ +2 x mlp: .*; layers 1, 3$")

    def test_json(self):
        model = json.loads(self.ok("inspect", self.story, "--json", "--tensors").stdout)
        self.assertEqual(model["layer_plan"][0]["count"], 10)
        self.assertEqual(model["eos"][0]["text"], "<|endoftext|>")
        self.assertIn("<|im_start|>", model["chat_template"])
        self.assertEqual(model["state_bytes"], 10 * 768 * (16 + 3) * 4)
        self.assertEqual(sum(t["bytes"] for t in model["tensors"]), model["tensor_bytes"])


class VerifyTest(CliTest):
    def test_golden(self):
        reference = golden("mamba1") / "golden.safetensors"
        text = self.ok("verify", self.tiny, "--golden", reference).stdout.decode()
        self.assertEqual(re.findall(r"(?m)^PASS  (\w+)", text),
                         ["structure", "checksums", "logits", "hidden", "greedy"])
        report = json.loads(self.ok("verify", self.tiny, "--golden", reference, "--json").stdout)
        self.assertTrue(report["passed"])
        self.assertLess(report["golden"]["logits_error"], 1e-4)

        strict = adder("verify", self.tiny, "--golden", reference, "--max-error", "1e-12")
        self.assertEqual(strict.returncode, 1)
        self.assertRegex(strict.stdout.decode(), "(?m)^FAIL  logits")
        other = adder("verify", self.story, "--golden", reference)
        self.assertEqual(other.returncode, 1)
        self.assertRegex(other.stdout.decode(), "(?m)^FAIL  golden")

    def test_changed_byte(self):
        data = bytearray(self.tiny.read_bytes())
        data[len(data) // 2] ^= 1  # in a tensor
        changed = self.dir / "changed.adder"
        changed.write_bytes(data)
        result = adder("verify", changed, "--json")
        self.assertEqual(result.returncode, 1)
        checks = {c["name"]: c["passed"] for c in json.loads(result.stdout)["checks"]}
        self.assertEqual(checks, {"structure": True, "checksums": False})
        changed.write_bytes(data[:-1])
        result = adder("verify", changed)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout.decode(), "^FAIL  structure")


class LogitsTest(CliTest):
    def test_npy(self):
        ids = " ".join(str(i * 7 % 256) for i in range(70))
        files = []
        for split in ((), ("--split", "1"), ("--split", "7"), ("--split", "1000")):
            files.append(self.dir / f"logits{len(files)}.npy")
            self.ok("logits", self.tiny, "--ids", ids, "--out", files[-1], *split)
        data = files[0].read_bytes()
        for other in files[1:]:
            self.assertEqual(other.read_bytes(), data)
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        end = 10 + struct.unpack("<H", data[8:10])[0]
        self.assertEqual(end % 64, 0)
        self.assertEqual(eval(data[10:end]),  # as NumPy reads it
                         {"descr": "<f4", "fortran_order": False, "shape": (70, 256)})
        self.assertTrue(data[10:end].endswith(b"\n"))
        logits = array.array("f", data[end:])
        self.assertEqual(len(logits), 70 * 256)

        # The greedy choice behind the last token is the likeliest of the last row.
        last = logits[-256:]
        run = json.loads(self.ok("run", self.tiny, "--ids", ids, "-n", "1", "--temp", "0",
                                 "--ignore-eos", "--json").stdout)
        self.assertEqual(run["tokens"], [max(range(256), key=lambda i: last[i])])

    def test_errors(self):
        out = self.dir / "errors.npy"
        self.fails(2, "no tokens", "logits", self.tiny, "--ids", "", "--out", out)
        self.fails(2, "--split", "logits", self.tiny, "--ids", "1", "--out", out, "--split", "0")
        self.fails(2, "token 1 is 999", "logits", self.tiny, "--ids", "1 999", "--out", out)
        self.fails(2, "not a regular file", "logits", self.tiny, "--ids", "1", "--out", self.dir)
        self.assertFalse(out.exists())


class SynthAndBenchTest(CliTest):
    def test_spares_other_files(self):
        other = self.dir / "not-a-model.txt"
        other.write_text("important")
        self.fails(2, "no Adder model", "synth", "--like", "mamba-130m", "-o", other)
        self.assertEqual(other.read_text(), "important")
        self.fails(2, "known are mamba-130m", "synth", "--like", "gpt", "-o", self.dir / "x.adder")

    def test_bench(self):
        result = self.ok("bench", self.tiny, "--prompt", 8, "-n", 2, "--repeats", 1, "--json")
        figures = json.loads(result.stdout)
        for key in ("decode_tokens_per_s", "prefill_tokens_per_s", "bytes_per_token",
                    "read_bandwidth_gb_s", "bandwidth_fraction", "open_ms", "resident_mb"):
            self.assertGreater(figures[key], 0, key)


    def test_bench_of_a_hybrid(self):
        hybrid = self.dir / "hybrid.adder"
        self.ok("convert", golden("granite-h-moe"), "-o", hybrid, "--type", "q4")
        figures = json.loads(self.ok("bench", hybrid, "--prompt", 8, "-n", 2, "--repeats", 1,
                                     "--json").stdout)
        self.assertGreater(figures["kv_bytes_per_token"], 0)
        self.assertIn("context_ms_per_1000", figures)
        # A token reads the chosen experts only.
        self.assertLess(figures["bytes_per_token"], hybrid.stat().st_size)
        short = ("bench", hybrid, "--prompt", 8, "-n", 2, "--repeats", 1)
        self.assertIn(b"1,000 tokens", self.ok(*short).stdout)
        # The context slides unless it is to stop.
        self.ok(*short, "--context", 9)
        self.fails(1, "the context holds 9 tokens, 9 of them used", *short, "--context", 9,
                   "--context-full", "stop")

    def test_kv_in_8_bits(self):
        hybrid = self.dir / "kv.adder"
        self.ok("convert", golden("granite-h-dense"), "-o", hybrid, "--type", "f16")
        reference = golden("granite-h-dense") / "golden.safetensors"
        ids = " ".join(str(i * 37 % 200) for i in range(40))
        sizes = json.loads(self.ok("inspect", hybrid, "--json").stdout)
        self.assertLess(sizes["kv_bytes_per_token_int8"], sizes["kv_bytes_per_token"])
        self.assertIn(b"with --kv int8", self.ok("inspect", hybrid).stdout)
        short = ("bench", hybrid, "--prompt", 8, "-n", 2, "--repeats", 1, "--json")
        figures = json.loads(self.ok(*short, "--kv", "int8").stdout)
        self.assertEqual(figures["kv_bytes_per_token"], sizes["kv_bytes_per_token_int8"])
        figures = json.loads(self.ok(*short, "--kv", "f16").stdout)
        self.assertEqual(figures["kv_bytes_per_token"], sizes["kv_bytes_per_token"])

        errors = {}
        for kv in ("f16", "int8"):
            report = self.ok("verify", hybrid, "--golden", reference, "--max-error", 0.2, "--kv", kv,
                             "--json").stdout
            errors[kv] = json.loads(report)["golden"]["logits_error"]
            self.ok("logits", hybrid, "--ids", ids, "--out", self.dir / f"{kv}.npy", "--kv", kv)
            self.ok("run", hybrid, "--ids", ids, "-n", 3, "--kv", kv)
        self.assertLess(errors["f16"], errors["int8"])
        self.assertNotEqual((self.dir / "f16.npy").read_bytes(),
                            (self.dir / "int8.npy").read_bytes())
        # A context that is too small for the reference.
        small = adder("verify", hybrid, "--golden", reference, "--max-error", 0.2, "--context", 20)
        self.assertEqual(small.returncode, 1)
        self.assertIn(b"the context holds 20 tokens", small.stdout)

        self.fails(2, "--kv.*expected f16 or int8", "run", hybrid, "--kv", "int4")
        text = self.dir / "kv.txt"
        text.write_text("Once upon a time there was a text.")
        for command in (("run", self.tiny, "--ids", ids), ("bench", self.tiny), ("verify", self.tiny),
                        ("logits", self.tiny, "--ids", ids, "--out", self.dir / "x.npy"),
                        ("perplexity", self.story, text), ("compare", self.story, self.story, text)):
            self.fails(1, "8-bit keys and values need attention layers, this mamba", *command, "--kv",
                       "int8")

    def test_endurance(self):
        result = self.ok("bench", self.tiny, "--endurance", 2000, "--json")
        figures = json.loads(result.stdout)
        self.assertEqual(figures["tokens"], 2000)
        self.assertGreater(figures["last_us"], 0)


class EvaluationTest(CliTest):
    def test_perplexity_and_compare(self):
        text = self.dir / "evaluation.txt"
        text.write_text("Once upon a time there was a king.<|endoftext|>The old king was sad. " * 9)
        report = json.loads(self.ok("perplexity", self.story, text, "--ctx", 32, "--json").stdout)
        self.assertGreater(report["perplexity"], 1)
        self.assertEqual(report["tokens"], report["windows"] * 31)
        plain = self.ok("perplexity", self.story, text, "--ctx", 32, "--windows", 2, "-q")
        self.assertIn(b"perplexity", plain.stdout)
        same = json.loads(
            self.ok("compare", self.story, self.story, text, "--ctx", 32, "--json").stdout)
        self.assertEqual(same["mean_kl"], 0)
        self.assertEqual(same["top1_agreement"], 1)
        self.assertEqual(same["perplexity_a"], same["perplexity_b"])

    def test_errors(self):
        text = self.dir / "short.txt"
        text.write_text("")
        self.fails(2, "too few to score", "perplexity", self.story, text)
        self.fails(2, "no tokenizer", "perplexity", self.tiny, text)
        self.fails(1, "cannot open", "perplexity", self.story, self.dir / "absent.txt")


class TokenizeTest(CliTest):
    def test_round_trip(self):
        text = "Once upon a time\n<|im_end|> caf\u00e9 \U0001f600"
        ids = self.ok("tokenize", self.story, "--no-special", "-p", text).stdout.decode()
        back = self.ok("tokenize", self.story, "--decode", stdin=ids.encode()).stdout.decode()
        self.assertEqual(back, text + "\n")
        raw = self.ok("tokenize", self.story, "--no-special", "--raw", "-p", text).stdout.decode()
        self.assertGreater(len(raw.split()), len(ids.split()))
        report = json.loads(self.ok("tokenize", self.story, "-p", "a", "--json").stdout)
        self.assertEqual(len(report["tokens"]), len(report["pieces"]))
        pieces = self.ok("tokenize", self.story, "-p", "a", "--pieces").stdout.decode()
        self.assertEqual([int(line.split("\t")[0]) for line in pieces.splitlines()],
                         report["tokens"])

    def test_errors(self):
        self.fails(2, "no tokenizer", "tokenize", self.tiny, "-p", "a")
        self.fails(2, "token id 99999", "tokenize", self.story, "--decode", "--ids", "99999")
        self.fails(2, "--decode", "tokenize", self.story, "--ids", "1")


def main():
    global ADDER, SOURCE
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    ADDER, SOURCE = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(prefix="adder-cli-") as folder:
        CliTest.dir = pathlib.Path(folder)
        CliTest.story = CliTest.dir / "story.adder"
        CliTest.tiny = CliTest.dir / "tiny.adder"
        for source, model, number_type in [
                (SOURCE / "examples/models/stories-11m", CliTest.story, "q8"),
                (golden("mamba1"), CliTest.tiny, "f32")]:
            result = adder("convert", source, "-o", model, "--type", number_type)
            if result.returncode != 0:
                sys.exit(f"convert {source}: {result.stderr}")
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]])


if __name__ == "__main__":
    main()
