# SPDX-License-Identifier: Apache-2.0
"""What the check scripts share: the files of the repository, C++ without comments, and reporting."""

import pathlib
import re
import subprocess
import sys

CPP_SUFFIXES = (".h", ".cuh", ".cc", ".c")


def repository_root():
    return pathlib.Path(__file__).resolve().parent.parent


def listed_files(root):
    """Repository-relative paths of every tracked or not yet added, not ignored file that exists."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, stdout=subprocess.PIPE).stdout
    names = sorted(set(name for name in out.decode().split("\0") if name))
    return [name for name in names if (root / name).is_file()]


def cpp_files(names):
    return [name for name in names if name.endswith(CPP_SUFFIXES)]


def is_test(name):
    """Test, fuzz and bench sources, and headers for them alone, may do what the library may not."""
    base = name.rsplit("/", 1)[-1]
    if base == "bench.cc" or re.search(r"(_test|_fuzz|_fixture|_fake)\.(cc|h)$", base):
        return True
    return name.startswith("src/") and bool(re.match(r"(test|bench)_\w+\.h$", base))


_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'
    r"(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])*'", re.S)


def strip_cpp(text, keep_strings=False):
    """Comments become spaces and literals become `""`; line numbers stay the same."""
    def blank(match):
        token = match.group(0)
        if token.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", token)
        if keep_strings:
            return token
        return '"' + re.sub(r"[^\n]", " ", token[1:-1]) + '"'
    return _TOKEN.sub(blank, text)


class Report:
    """Violations and counts of one check. A check that looked at too little fails."""

    def __init__(self, name):
        self.name = name
        self.violations = []
        self.counts = {}

    def add(self, path, line, message):
        self.violations.append(f"{path}:{line}: {message}" if line else f"{path}: {message}")

    def count(self, what, amount=1):
        self.counts[what] = self.counts.get(what, 0) + amount

    def at_least(self, what, minimum):
        have = self.counts.get(what, 0)
        if have < minimum:
            self.violations.append(f"{self.name}: looked at {have} {what}, expected at least {minimum}")

    def finish(self):
        for violation in self.violations:
            print(violation)
        counts = ", ".join(f"{amount} {what}" for what, amount in self.counts.items())
        verdict = f"{len(self.violations)} violations" if self.violations else "ok"
        print(f"{self.name}: {verdict} ({counts})")
        sys.exit(1 if self.violations else 0)
