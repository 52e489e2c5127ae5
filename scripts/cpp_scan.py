# SPDX-License-Identifier: Apache-2.0
"""Finds functions and types in C++ text, well enough for budgets and names (no preprocessor, no types)."""

import dataclasses
import re

from source_tree import strip_cpp


@dataclasses.dataclass
class Function:
    name: str
    line: int
    num_lines: int  # of the body, braces included; 0 for a declaration
    num_parameters: int
    num_template_parameters: int
    is_kernel: bool
    is_test: bool


_CONTROL = {"if", "for", "while", "switch", "catch", "return", "sizeof", "alignas", "decltype", "static_assert",
            "requires", "noexcept", "defined", "alignof", "new", "delete", "throw", "else", "do", "co_return"}
_TEST_MACRO = {"TEST", "TEST_F", "TEST_P", "TYPED_TEST", "BENCHMARK"}
_NAME = re.compile(r"(~?[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*|operator\s*[^\s\w(]+|operator\s*\(\s*\))\s*\(")
_SKIPPED = re.compile(r"\[\[.*?\]\]|__attribute__\s*\(\(.*?\)\)|\b(alignas|decltype|noexcept|requires|explicit|"
                      r"__launch_bounds__)\s*\((?:[^()]|\([^()]*\))*\)", re.S)


def _depth_split(text):
    """Number of comma-separated parts of text at depth 0."""
    depth, parts, empty = 0, 1, True
    for i, char in enumerate(text):
        if char in "([{<":
            depth += 1
        elif char in ")]}" or (char == ">" and text[i - 1] not in "-="):
            depth -= 1
        elif char == "," and depth == 0:
            parts += 1
        if not char.isspace():
            empty = False
    return 0 if empty or text.strip() == "void" else parts


def _closing(text, start, opening, closing):
    depth = 0
    for i in range(start, len(text)):
        if text[i] == opening:
            depth += 1
        elif text[i] == closing and not (closing == ">" and text[i - 1] in "-="):
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def parse_head(head):
    """(name, parameters, template parameters) of a function head, or None."""
    templates = 0
    head = re.sub(r"^\s*#.*?(?<!\\)$", "", head, flags=re.M)
    head = re.sub(r"^\s*(public|private|protected)\s*:", "", head.strip())
    while True:
        match = re.match(r"\s*template\s*<", head)
        if not match:
            break
        end = _closing(head, match.end() - 1, "<", ">")
        templates += _depth_split(head[match.end():end])
        head = head[end + 1:]
    head = _SKIPPED.sub(" ", head)
    if re.match(r"\s*(using|typedef|static_assert|friend\s+(class|struct)|return|namespace|extern\s*\")", head):
        return None
    match = _NAME.search(head)
    if not match or match.group(1).split("::")[-1] in _CONTROL:
        return None
    before = head[:match.start()]
    if "=" in before.replace("==", "").replace("operator=", "") and "operator" not in match.group(1):
        return None  # an initialiser that calls something
    end = _closing(head, match.end() - 1, "(", ")")
    return match.group(1).strip(), _depth_split(head[match.end():end]), templates


class _Scanner:
    def __init__(self, text):
        self.text = strip_cpp(text)
        self.text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                           self.text, flags=re.M)
        self.functions = []
        self.types = []
        self.stack = []  # (kind, function or None, position of the brace)
        self.start = 0   # where the head of the next thing begins

    def _kind(self, head, position):
        if self.stack and self.stack[-1][0] in ("function", "inner"):
            return "inner", None
        bare = re.sub(r"^\s*(?:template\s*<[^{}]*?>\s*)+(?=class|struct|union|enum|concept)", "", head.strip())
        if re.match(r"(inline\s+)?namespace\b|extern\s*\"", bare):
            return "scope", None
        match = re.match(r"(?:typedef\s+)?(class|struct|union|enum(?:\s+class|\s+struct)?)\b(?:\s*\[\[.*?\]\]|\s+alignas\s*"
                         r"\([^)]*\)|\s+MOEKIT_\w+)*\s*([A-Za-z_]\w*)?[^()=]*$", bare, re.S)
        if match:
            self.types.append((match.group(2) or "", self._line(position)))
            return ("inner" if match.group(1).startswith("enum") else "scope"), None
        if re.search(r"\)\s*(?:noexcept\s*)?:[^:]", head) and re.search(r"[\w>]\s*$", head):
            return "member", None  # `: member_{value}` of a constructor
        parsed = parse_head(head)
        if parsed is None or re.search(r"=\s*$", head):
            return "inner", None
        name, parameters, templates = parsed
        is_test = name in _TEST_MACRO
        if is_test:  # TEST(Suite, Name) is called Suite.Name
            name = re.sub(r"\s*,\s*", ".", re.search(r"\((.*)\)", head, re.S).group(1).strip())
        return "function", Function(name, self._line(position), 0, parameters, templates, "__global__" in head,
                                    is_test)

    def _line(self, position):
        return self.text.count("\n", 0, position) + 1

    def scan(self):
        for position, char in enumerate(self.text):
            in_scope = not self.stack or self.stack[-1][0] == "scope"
            if char == "{":
                kind, function = self._kind(self.text[self.start:position], position) if in_scope else ("inner", None)
                self.stack.append((kind, function, position))
                if kind != "member":
                    self.start = position + 1
            elif char == "}" and self.stack:
                kind, function, opened = self.stack.pop()
                if function:
                    function.num_lines = self.text.count("\n", opened, position) + 1
                    self.functions.append(function)
                if kind != "member" and (not self.stack or self.stack[-1][0] == "scope"):
                    self.start = position + 1
            elif char == ";" and in_scope:
                parsed = parse_head(self.text[self.start:position])
                if parsed and "(" in self.text[self.start:position]:
                    self.functions.append(Function(parsed[0], self._line(position), 0, parsed[1], parsed[2],
                                                   False, parsed[0] in _TEST_MACRO))
                self.start = position + 1
        return self


def scan_cpp(text):
    """(functions, types as (name, line)) that C++ text defines or declares."""
    scanner = _Scanner(text).scan()
    return scanner.functions, scanner.types
