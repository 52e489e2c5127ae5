# SPDX-License-Identifier: Apache-2.0
"""Plants violations in a small tree and expects each check script to find every one of them."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Tree:
    """A repository in a temporary folder that holds ARCHITECTURE.md and what a test plants."""

    def __init__(self, files):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.names = sorted(files)
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (self.root / "ARCHITECTURE.md").write_text((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"),
                                                   encoding="utf-8")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.folder.cleanup()


HEADERS = {
    "include/moekit/status.h": "", "include/moekit/plan.h": "", "src/base/text.h": "", "src/device/portable.h": "",
    "src/formats/packing.h": "", "src/plan/family.h": "", "src/kernels/catalog.h": "", "src/kernels/one/spec.h": "",
    "src/kernels/two/spec.h": "", "src/cuda/driver.h": "", "src/reference/oracle.h": "", "tests/fixture.h": "",
    "src/runtime/state.h": "", "src/runtime/driver_fake.h": "",
}

# (file, include line): each breaks exactly one arrow.
FORBIDDEN = [
    ("include/moekit/plan.h", '#include "base/text.h"'),
    ("include/moekit/plan.h", "#include <nlohmann/json.hpp>"),
    ("src/base/text.cc", '#include "moekit/plan.h"'),
    ("src/base/text.cc", '#include "formats/packing.h"'),
    ("src/device/portable.h", "#include <cstdint>"),
    ("src/device/portable.h", '#include "moekit/status.h"'),
    ("src/formats/packing.cc", '#include "plan/family.h"'),
    ("src/formats/packing.cc", "#include <immintrin.h>"),
    ("src/reference/oracle.cc", '#include "device/portable.h"'),
    ("src/reference/oracle.cc", '#include "plan/family.h"'),
    ("src/plan/choose.cc", '#include "kernels/catalog.h"'),
    ("src/plan/choose.cc", "#include <fmt/core.h>"),
    ("src/kernels/one/planner.cc", '#include "kernels/two/spec.h"'),
    ("src/kernels/one/planner.cc", '#include "cuda/driver.h"'),
    ("src/kernels/one/planner.cc", '#include "reference/oracle.h"'),
    ("src/kernels/one/planner.cc", '#include "kernels/catalog.h"'),
    ("src/kernels/one/spec.h", "#include <cstddef>"),
    ("src/kernels/one/spec.h", '#include "plan/family.h"'),
    ("src/cpu/executor.cc", '#include "cuda/driver.h"'),
    ("src/cpu/executor.cc", '#include "runtime/state.h"'),
    ("src/runtime/state.cc", '#include "tests/fixture.h"'),
    ("src/runtime/state.cc", "#include <gtest/gtest.h>"),
    ("src/runtime/state.cc", "#include <boost/any.hpp>"),
    ("src/runtime/state.cc", '#include "runtime/driver_fake.h"'),
    ("src/runtime/state.cc", '#include "../base/text.h"'),
    ("src/runtime/state.cc", '#include "state.h"'),
    ("src/runtime/state.cc", "#include MOEKIT_HEADER"),
    ("cli/main.cc", '#include "base/text.h"'),
    ("src/misplaced/thing.cc", "#include <vector>"),
    ("src/loose.cc", "#include <vector>"),
]

ALLOWED = [
    ("src/base/text.cc", '#include "moekit/status.h"'),
    ("src/formats/packing_avx2.cc", "#include <immintrin.h>"),
    ("src/kernels/catalog.cc", '#include "kernels/catalog.h"'),
    ("src/kernels/one/planner.cc", '#include "kernels/one/spec.h"'),
    ("src/kernels/one/cpu_test.cc", '#include "reference/oracle.h"'),
    ("src/kernels/one/cpu_test.cc", "#include <gtest/gtest.h>"),
    ("src/runtime/state.cc", '#include "kernels/catalog.h"'),
    ("tests/property/x_test.cc", '#include "tests/fixture.h"'),
    ("cli/main.cc", "#include <CLI/CLI.hpp>"),
]


class LayeringTest(unittest.TestCase):
    layering = load("check_layering")

    def violations(self, path, text):
        files = dict(HEADERS)
        files[path] = SPDX + text + "\n"
        with Tree(files) as tree:
            return self.layering.check(tree.root, tree.names).violations

    def test_every_planted_arrow_is_found(self):
        for path, include in FORBIDDEN:
            with self.subTest(path=path, include=include):
                found = self.violations(path, include)
                self.assertEqual(len(found), 1, found)
                self.assertIn(path, found[0])

    def test_allowed_arrows_pass(self):
        for path, include in ALLOWED:
            with self.subTest(path=path, include=include):
                self.assertEqual(self.violations(path, include), [])

    def test_a_check_of_nothing_fails(self):
        with Tree({}) as tree:
            report = self.layering.check(tree.root, [])
        report.at_least("files", 1)
        self.assertEqual(len(report.violations), 1)

    def test_a_missing_table_fails(self):
        with Tree({}) as tree:
            (tree.root / "ARCHITECTURE.md").write_text("# nothing\n", encoding="utf-8")
            self.assertEqual(len(self.layering.check(tree.root, []).violations), 1)


class BudgetsTest(unittest.TestCase):
    budgets = load("check_budgets")

    def violations(self, files):
        with Tree(files) as tree:
            return self.budgets.Budgets(tree.root, tree.names).run().violations

    def test_each_budget_is_found(self):
        planted = [
            ("file_lines", "src/base/a.cc", "\n" * 801),
            ("file_lines", "src/kernels/one/README.md", "\n" * 151),
            ("function_lines", "src/base/a.cc", "void f() {\n" + ";\n" * 80 + "}\n"),
            ("parameters", "src/base/a.h", "int f(int a, int b, int c, int d, int e, int f, int g);\n"),
            ("template_parameters", "src/base/a.h", "template <int A, int B, int C, int D>\nvoid f();\n"),
            ("family_lines", "src/kernels/one/a.cc", None),
        ]
        for kind, path, text in planted:
            with self.subTest(kind=kind):
                files = {path: text} if text else {f"src/kernels/one/{i}.cc": "\n" * 440 for i in range(6)}
                found = self.violations(files)
                self.assertTrue(any(kind in violation for violation in found), found)

    def test_functions_are_measured_where_they_are(self):
        text = ("struct S : Base {\n  S(int a, std::map<int, int> b) noexcept : a_{a}, b_(f(b)) {\n    g();\n  }\n"
                "  int h() const { return 1; }\n};\nnamespace n {\nconst auto kX = f(1, 2);\n"
                "constexpr std::array kRows{Row{1, f(2)}, Row{3, 4}};\n"
                "template <typename T, int N>\nauto k(T x, const char* s = \"a,b)\") -> int {\n"
                "  if (x) {\n  }\n  return [](int a, int b) { return a + b; }(1, 2);\n}\n}\n")
        functions, types = self.scan(text)
        self.assertEqual([(f.name, f.num_lines, f.num_parameters, f.num_template_parameters) for f in functions
                          if f.num_lines], [("S", 3, 2, 0), ("h", 1, 0, 0), ("k", 5, 2, 2)])
        self.assertEqual([name for name, _ in types], ["S"])

    @staticmethod
    def scan(text):
        import cpp_scan
        return cpp_scan.scan_cpp(text)

    def test_an_exception_raises_one_limit_and_must_be_needed(self):
        files = {"src/base/a.cc": "\n" * 801,
                 "scripts/budget_exceptions.txt": "src/base/a.cc file_lines 900 generated by hand\n"}
        self.assertFalse(any("a.cc" in violation for violation in self.violations(files)))
        files["src/base/a.cc"] = "\n"
        self.assertTrue(any("no longer needed" in violation for violation in self.violations(files)))


class TextTest(unittest.TestCase):
    text = load("check_text")

    # (file, text, what the violation says)
    PLANTED = [
        ("src/base/a.cc", SPDX + "void fast_path() {}\n", "banned word"),
        ("src/base/a.cc", SPDX + "struct KernelManager {};\n", "banned word"),
        ("src/base/a.h", SPDX + "#pragma once\nvoid process_rows(int n);\n", "process"),
        ("src/base/a.h", SPDX + "#pragma once\nint* data();\n", "alone"),
        ("src/base/a.h", SPDX + "int f();\n", "#pragma once"),
        ("src/base/new_plan.cc", SPDX, "file name"),
        ("src/kernels/one/h200_rules.cc", SPDX, "product"),
        ("src/base/utils/a.cc", SPDX, "no folder"),
        ("src/plan/a.cc", SPDX + 'const char* f() { return std::getenv("X"); }\n', "environment"),
        ("src/plan/a.cc", SPDX + 'void f() { std::cerr << "x"; }\n', "never prints"),
        ("src/plan/a.cc", SPDX + "void f() { throw 1; }\n", "never throws"),
        ("src/plan/a.cc", SPDX + "void f() { std::abort(); }\n", "never ends"),
        ("src/plan/a.cc", "int x;\n", "SPDX"),
        ("src/plan/a.cc", SPDX + "// TO" + "DO: later\n", "names its issue"),
        ("src/plan/a.cc", SPDX + "int x = (int)y;  // NO" + "LINT\n", "names its check"),
        ("docs/a.md", "see /ho" + "me/someone/moekit\n", "absolute path"),
        ("docs/a.md", "[x](missing.md)\n", "does not exist"),
        ("docs/a.md", "# One\n[x](a.md#two)\n", "no such heading"),
        ("docs/a.md", "see `src/base/absent.cc`\n", "does not exist"),
        ("src/plan/tuning/a.cc", SPDX + "// Row from bench/results/" + "absent.jsonl\n", "cites"),
    ]

    def violations(self, files):
        with Tree(files) as tree:
            return self.text.check(tree.root, tree.names).violations

    def test_each_is_found(self):
        for path, text, expected in self.PLANTED:
            with self.subTest(path=path, expected=expected):
                found = self.violations({path: text})
                self.assertEqual(len(found), 1, found)
                self.assertIn(expected, found[0])

    def test_what_is_fine_passes(self):
        self.assertEqual(self.violations({
            "src/base/config.cc": SPDX + 'const char* f() { return std::getenv("X"); }  // never printf\n',
            "src/base/a_test.cc": SPDX + 'void f() { std::printf("x"); }\n',
            "src/base/a.cc": SPDX + "// TODO(#12): x\nint f(S& s) { return s.data()[0]; }  // NOLINT(check)\n",
            "docs/a.md": "# One two\n[x](a.md#one-two) [y](https://example.org) `src/base/a.cc`\n",
        }), [])


class SummaryTest(unittest.TestCase):
    PASSED = '<testcase name="a" status="run"/>'
    SKIPPED = ('<testcase name="b" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
               "<system-out>x_test.cc:7: Skipped\nno GPU here\n[  SKIPPED ] S.b\n</system-out></testcase>")
    NOT_BUILT = '<testcase name="c" status="notrun"><skipped message="Unable to find executable"/></testcase>'
    FAILED = '<testcase name="d" status="fail"><failure message="Failed"/></testcase>'

    def summary(self, *cases):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.xml"
            path.write_text(f"<testsuite>{''.join(cases)}</testsuite>", encoding="utf-8")
            done = subprocess.run([sys.executable, SCRIPTS / "summarize_tests", "--checks", "2", path],
                                  stdout=subprocess.PIPE, check=False)
        return done.returncode, done.stdout.decode().splitlines()

    def test_counts_and_reasons(self):
        self.assertEqual(self.summary(self.PASSED, self.SKIPPED),
                         (0, ["skipped 1: no GPU here", "3 passed, 0 failed, 1 skipped"]))

    def test_a_failure_a_test_that_was_not_built_and_an_empty_suite_fail(self):
        for cases in ((self.FAILED,), (self.NOT_BUILT,), ()):
            with self.subTest(cases=cases):
                code, lines = self.summary(*cases)
                self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
