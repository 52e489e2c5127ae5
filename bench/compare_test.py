#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/compare with programs that answer well, die, write garbage, hang or end badly."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
MOEKIT = sys.argv.pop(1) if len(sys.argv) > 1 else ""

# A program of the protocol: US microseconds a call; `trouble` is what it does instead of its answer to the third turn.
PROGRAM = """
import os, sys, time
us, trouble = float(sys.argv[1]), sys.argv[2]
turns = []
if trouble == "deaf":
    time.sleep(60)
print("note relative error 1.2e-2")
print("hello" if trouble == "greets" else "ready", flush=True)
for line in sys.stdin:
    word, tokens, calls = line.split()
    assert word == "go", line
    turns.append(int(tokens))
    answer = "us" + int(calls) * f" {us * int(tokens)}"
    if len(turns) == 3:
        if trouble == "dies":
            print("out of patience", file=sys.stderr)
            sys.exit(3)
        if trouble == "hangs":
            time.sleep(60)
        if trouble == "closes":
            os.close(1)
            time.sleep(60)
        while trouble == "chatters":
            print("note nothing new", flush=True)
        answer = {"garbage": "us 12 many", "short": "us" + (int(calls) - 1) * " 5", "zero": "us" + int(calls) * " 0",
                  "nan": "us" + int(calls) * " nan"}.get(trouble, answer)
    print(answer, flush=True)
    if trouble == "deafens" and len(turns) == 3:
        os.close(0)
        time.sleep(60)
if trouble == "lingers":
    time.sleep(60)
if trouble == "fades":
    sys.stdout.flush()
    os.close(1)
    time.sleep(60)
if "--json" in sys.argv and trouble != "rowless":
    for tokens in sorted(set(turns)):
        print('{"tokens": %d, "turns": %d' % (tokens, turns.count(tokens)) + ("" if trouble == "scribbles" else "}"))
sys.exit(5 if trouble == "fails" else 0)
"""


class Compare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.program = pathlib.Path(cls.scratch.name) / "program.py"
        cls.program.write_text(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def run_compare(self, *options, peer="none", ours="none"):
        timeout = 3 if peer in ("hangs", "deaf", "lingers", "closes", "deafens", "chatters", "fades") else 30
        command = [FOLDER / "compare", "--turns", "1,4", "--seconds", "0.05", "--timeout", timeout, *options, "--peer",
                   f"{sys.executable} {self.program} 3000.0 {peer}", "--", sys.executable, self.program, "1000.0", ours]
        return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8", timeout=60)

    def expect_trouble(self, result, *parts):
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        for part in ("compare: ", *parts):
            self.assertIn(part, result.stderr)

    def test_ratio_of_each_token_count(self):
        result = self.run_compare()
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertIn("M 1: ours 1000.00 us", lines[0])
        self.assertIn("peer / ours 3.00 x", lines[0])
        self.assertIn("M 4: ours 4000.00 us", lines[1])

    def test_rows_hold_both_sides(self):
        result = self.run_compare("--json", "--peer-name", "example 1f2e")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([row["tokens"] for row in rows], [1, 4])
        for row in rows:
            self.assertEqual(row["peer"], "example 1f2e")
            self.assertEqual(row["peer_notes"], ["relative error 1.2e-2"])
            self.assertAlmostEqual(row["peer_over_ours"]["median"], 3.0)
            self.assertGreaterEqual(row["rounds"], 5)
            self.assertEqual(len(row["ratios"]), row["rounds"])
            # Every round gave both programs one turn, beside the uncounted first.
            self.assertEqual(row["row"]["turns"], row["rounds"] + 1)
        # 20 ms of the slower program make a turn, three calls at least.
        self.assertEqual([row["calls"] for row in rows], [7, 3])

    def test_a_peer_that_dies(self):
        self.expect_trouble(self.run_compare(peer="dies"), "dies ended with 3 instead of answering 'go 1 7'",
                            "out of patience")

    def test_a_peer_that_hangs(self):
        start = time.monotonic()
        self.expect_trouble(self.run_compare(peer="hangs"), "did not answer 'go 1 7' within 3 s")
        self.assertLess(time.monotonic() - start, 30.0)

    def test_a_peer_that_lives_on_with_closed_pipes(self):
        for trouble in ("closes", "deafens", "fades"):
            start = time.monotonic()
            self.expect_trouble(self.run_compare(peer=trouble), f"{trouble} closed its pipes and did not end")
            self.assertLess(time.monotonic() - start, 30.0)

    def test_sigterm_ends_both_programs(self):
        command = [sys.executable, str(FOLDER / "compare"), "--turns", "1", "--seconds", "60",
                   "--peer", f"{sys.executable} {self.program} 100 none", "--",
                   sys.executable, str(self.program), "50", "none", "--json"]
        compare = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def children():
            found = subprocess.run(["ps", "--ppid", str(compare.pid), "-o", "pid="], stdout=subprocess.PIPE, check=False)
            return [int(word) for word in found.stdout.split()]

        deadline = time.monotonic() + 20
        while len(started := children()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(len(started), 2)
        compare.terminate()
        _, errors = compare.communicate(timeout=20)
        self.assertIn("SIGTERM", errors.decode())
        self.assertNotEqual(compare.returncode, 0)
        self.assertFalse([pid for pid in started if pathlib.Path(f"/proc/{pid}").exists()])

    def test_notes_without_end(self):
        self.expect_trouble(self.run_compare(peer="chatters"), "did not answer 'go 1 7' within 3 s")

    def test_a_peer_that_never_gets_ready(self):
        self.expect_trouble(self.run_compare(peer="deaf"), "did not answer at its start within 3 s")

    def test_a_peer_of_another_protocol(self):
        self.expect_trouble(self.run_compare(peer="greets"), "wrote 'hello', expected 'ready'")

    def test_answers_that_are_no_times(self):
        for trouble, answer in (("garbage", "'us 12 many'"), ("short", "'us 5 5 5 5 5 5'"), ("zero", "'us 0 0 "),
                                ("nan", "'us nan nan ")):
            self.expect_trouble(self.run_compare(peer=trouble), f"answered {answer}",
                                "expected 'us' and 7 times in microseconds")

    def test_a_peer_that_fails_or_lingers_at_its_end(self):
        self.expect_trouble(self.run_compare(peer="fails"), "fails ended with 5")
        self.expect_trouble(self.run_compare(peer="lingers"), "did not end within 3 s once its input was closed")

    def test_our_side_is_held_to_the_same(self):
        self.expect_trouble(self.run_compare(ours="dies"), "ended with 3 instead of answering")
        self.expect_trouble(self.run_compare(ours="rowless"), "ended without a row for [1, 4] tokens")

    def test_a_program_that_does_not_exist(self):
        command = [str(FOLDER / "compare"), "--turns", "1", "--peer", "/nowhere/peer", "--", "true"]
        self.expect_trouble(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                                           timeout=60), "/nowhere/peer")

    def test_a_row_that_is_no_json(self):
        self.expect_trouble(self.run_compare(ours="scribbles"), "printed a row that is no JSON")

    def run_by_run(self, peer, ours="echo '{\"time_us\": {\"median\": 10.0}}' #", *options):
        command = [FOLDER / "compare", "--rounds", "2", "--timeout", "2", *options, "--peer", peer, "--", "sh", "-c",
                   ours]
        return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8", timeout=60)

    def test_runs_of_both(self):
        result = self.run_by_run("echo first 7 us then 25.0 us")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("peer / ours 2.50 x", result.stdout)
        result = self.run_by_run("echo 25 ms", "echo '{\"time_us\": {\"median\": 10}}' #", "--peer-us", "([0-9]+) ms",
                                 "--peer-scale", "1000")
        self.assertIn("peer / ours 2500.00 x", result.stdout)

    def test_runs_take_turns_at_being_first(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            ours = f"""echo o >> {log}; echo '{{"time_us": {{"median": 10.0}}}}' #"""
            result = self.run_by_run(f"sh -c 'echo p >> {log}; echo 20 us'", ours, "--rounds", "3")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(log.read_text().split(), list("pooppo"))

    def test_runs_of_a_peer_in_trouble(self):
        for peer, part in (("echo nothing", "printed nothing that matches"), ("false", "false ended with 1"),
                           ("/nowhere/peer", "/nowhere/peer: "), ("echo ... us", "the peer's time is '...'"),
                           ("echo 0.0 us", "the peer's time is '0.0'")):
            self.expect_trouble(self.run_by_run(peer), part)

    def test_runs_that_hang(self):
        start = time.monotonic()
        # The second leaves a program behind that keeps its output open.
        self.expect_trouble(self.run_by_run("sleep 60"), "sleep 60 did not end within 2 s")
        self.assertEqual(self.run_by_run("sh -c 'sleep 60 & echo 5 us'").returncode, 0)
        self.expect_trouble(self.run_by_run("echo 5 us", "sleep 60"), "did not end within 2 s")
        self.assertLess(time.monotonic() - start, 40.0)

    def test_our_runs_in_trouble(self):
        for ours, part in (("true", "printed 0 rows, expected one"), ("echo '{bad' #", "a row that is no JSON"),
                           ("echo '{}' #", "a row without a median"), ("exit 3", "ended with 3"),
                           ("echo '{\"time_us\": {\"median\": 0}}' #", "a row without a median")):
            self.expect_trouble(self.run_by_run("echo 5 us", ours), part)

    def test_options_that_mean_nothing(self):
        for peer, option, value, part in (("", "--rounds", "1", "--peer: empty"),
                                          ("a 'b", "--rounds", "1", "No closing quotation"),
                                          ("a", "--rounds", "0", "--rounds"),
                                          ("a", "--peer-us", "(", "--peer-us"),
                                          ("a", "--peer-us", "3 us", "has 0 groups, expected one"),
                                          ("a", "--peer-us", "(3) (us)", "has 2 groups, expected one"),
                                          ("a", "--timeout", "-1", "--timeout"),
                                          ("a", "--seconds", "nan", "--seconds"),
                                          ("a", "--peer-scale", "0", "--peer-scale"),
                                          ("a", "--turns", "1,0", "--turns")):
            result = subprocess.run([str(FOLDER / "compare"), "--peer", peer, option, value, "--", "true"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=60)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            self.assertIn(part, result.stderr)

    @unittest.skipUnless(MOEKIT, "no moekit given")
    def test_moekit_takes_turns(self):
        command = [str(FOLDER / "compare"), "--turns", "1,4", "--seconds", "0.05", "--json", "--peer",
                   f"{sys.executable} {self.program} 50.0 none", "--", MOEKIT, "bench", "--experts", "8", "--top-k", "2",
                   "--hidden", "128", "--intermediate", "64", "--threads", "2"]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([row["row"]["tokens"] for row in rows], [1, 4])
        for row in rows:
            self.assertTrue(row["row"]["check"]["passed"])
            # The three uncounted first calls and every turn's are our samples.
            self.assertEqual(len(row["row"]["samples_us"]), 3 + row["rounds"] * row["calls"])
            self.assertGreater(row["row"]["probe_gbps"]["median"], 0.0)


if __name__ == "__main__":
    unittest.main()
