#!/usr/bin/env python3
"""`adder run --state`, as users and scripts drive it.

Usage: cli_state_test.py ADDER SOURCE_DIR [unittest arguments]
"""

import json
import os
import resource
import signal
import subprocess

import cli_test
from cli_test import LIMIT, CliTest, start


class StateTest(CliTest):
    def run_json(self, *arguments, **options):
        return json.loads(self.ok("run", *arguments, "--json", **options).stdout)

    def test_only_what_is_new_is_fed(self):
        state = self.dir / "5000.state"
        ids = [i * 13 % 256 for i in range(5000)]
        first, longer = self.dir / "5000.ids", self.dir / "5004.ids"
        first.write_text(" ".join(map(str, ids)))
        longer.write_text(" ".join(map(str, ids + [4, 3, 2, 1])))
        result = self.ok("run", self.tiny, "--ids", f"@{first}", "-n", "0", "--state", state)
        self.assertIn("5000.state: 0 tokens reused, 5000 fed, 5000 saved", result.stderr)
        self.assertEqual(result.stdout, b"")
        common = (self.tiny, "--ids", f"@{longer}", "-n", "3", "--temp", "0", "--ignore-eos")
        result = self.run_json(*common, "--state", state)
        self.assertEqual((result["reused_tokens"], result["fed_tokens"]), (5000, 4))
        self.assertEqual(result["tokens"], self.run_json(*common)["tokens"])
        # All of it is there already, and then another text.
        text = " ".join(map(str, ids + [4, 3, 2, 1] + result["tokens"]))
        again = self.run_json(self.tiny, "--ids", text, "-n", "1", "--state", state)
        self.assertEqual((again["reused_tokens"], again["fed_tokens"]), (5007, 0))
        other = self.ok("run", self.tiny, "--ids", "7 8", "-n", "2", "--state", state,
                        "--ignore-eos")
        self.assertIn("0 tokens reused, 2 fed, 4 saved", other.stderr)
        self.assertIn("it was begun anew", other.stderr)

    def test_parts_are_the_whole(self):
        common = ("--temp", "1.2", "--repeat-penalty", "1.2", "--ignore-eos", "--stop", "}}}")
        whole = self.ok("run", self.story, "-p", "Once upon a time", "-n", "30", "--seed", "4",
                        *common).stdout.decode()
        state = self.dir / "parts.state"
        parts = [self.ok("run", self.story, "-p", "Once upon a time", "-n", "0", "--seed", "4",
                         "--state", state, *common)]
        for count in (1, 9, 20):
            parts.append(self.ok("run", self.story, "-n", count, "--state", state, *common))
        self.assertEqual("".join(part.stdout.decode().removesuffix("\n") for part in parts),
                         whole.removesuffix("\n"))
        self.assertRegex(parts[-1].stderr, r"parts.state: \d+ tokens reused, 0 fed, \d+ saved")

    def test_interrupt_saves(self):
        state = self.dir / "interrupt.state"
        command = start("run", self.story, "-p", "Once", "-n", "-1", "--ignore-eos", "--state",
                        state, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(command.stdout.fileno(), 10)
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=LIMIT)
        self.assertEqual(command.returncode, 130)
        result = self.run_json(self.story, "-n", "1", "--state", state, "--ignore-eos")
        self.assertGreater(result["reused_tokens"], 1)

    def test_kill_leaves_the_old_file(self):
        state = self.empty_folder("killed") / "a.state"
        self.ok("run", self.story, "-p", "Once", "-n", "1", "--ignore-eos", "--state", state, "-q")
        before = state.read_bytes()
        command = start("run", self.story, "-n", "-1", "--ignore-eos", "--state", state,
                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        os.read(command.stdout.fileno(), 10)
        command.kill()
        command.communicate(timeout=LIMIT)
        self.assertEqual(state.read_bytes(), before)
        again = self.run_json(self.story, "-n", "1", "--state", state, "--ignore-eos")
        self.assertGreater(again["reused_tokens"], 1)

    def test_old_file_stays(self):
        def limit():  # the kernel's own answer to a write beyond a limit
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        folder = self.empty_folder("state")
        state = folder / "a.state"
        self.ok("run", self.tiny, "--ids", "1 2", "-n", "1", "--state", state, "-q")
        before = state.read_bytes()
        self.fails(1, "a.state.*cannot write", "run", self.tiny, "--ids", "1 2 3", "-n", "1",
                   "--state", state, preexec=limit)
        self.assertEqual(state.read_bytes(), before)
        self.assertEqual(list(folder.iterdir()), [state])
        self.fails(1, "a.state: the state belongs to the model file", "run", self.story, "-p", "a",
                   "--state", state)
        state.write_bytes(before[:-1])
        self.fails(1, "a.state: session state: .*truncated", "run", self.tiny, "--ids", "1",
                   "--state", state)
        self.assertEqual(state.read_bytes(), before[:-1])
        self.fails(1, "checksum|wrong first bytes", "run", self.tiny, "--ids", "1", "--state",
                   self.tiny)
        self.fails(2, "--state-type", "run", self.tiny, "--ids", "1", "--state", "int16")
        self.fails(2, "-n: is 0.*--state", "run", self.tiny, "--ids", "1", "-n", "0")


if __name__ == "__main__":
    cli_test.main()
