#!/usr/bin/env python3
"""No function of the program is longer than a screen: at most 60 lines from the line of its { to that of its }, including lambdas,
like clang-tidy's readability-function-size (`./dev lint`). functions_test.py ROOT

Expects sources formatted by clang-format, and parses only as much C++ as necessary.
"""
import os
import re
import sys
import unittest
from collections import namedtuple

MOST_LINES = 60
FOLDERS = ("include", "agent", "executors", "sandbox")
# Longer functions and their permitted length. Entries may only be removed or lowered.
LONGER = {
    "ObjectStore::verify": 62,
    "contract_rows": 70,  # the table of cases of the contract
}

Function = namedtuple("Function", "name line lines")
TEXTS = re.compile(
    r'R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)+\'|//[^\n]*|/\*.*?\*/'
    r"|^[ \t]*#(?:[^\n\\]|\\.)*", re.S | re.M)
TYPES = re.compile(r"\s*(?:inline\s+)?(?:namespace|class|struct|union|enum)\b")
ASIDE = re.compile(r"template <[^<>]*(?:<[^<>]*>[^<>]*)*>|alignas\([^()]*\)|__attribute__\(\(.*?\)\)|\[\[.*?\]\]", re.S)
OPERATOR = re.compile(r"operator\s*(?:\(\)|[^\s(]+)")


def code_of(text):
    """Returns the text with comments, quotes and preprocessor lines blanked; each character stays on its line."""
    return TEXTS.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def outside_of_brackets(head):
    out, depth = [], 0
    for c in head:
        depth -= c in ")]"
        if depth == 0:
            out.append(c)
        depth += c in "(["
    return "".join(out)


def is_function(head):
    """Reports whether the text before a { begins a function: it has parameters, is not a type, and assigns nothing."""
    plain = outside_of_brackets(OPERATOR.sub("operator", ASIDE.sub("", head)))
    return "(" in plain and "=" not in plain and not (TYPES.match(plain) and plain.index("(") > plain.find(" : ") > 0)


def name_of(head):
    found = re.search(r"([\w:~]+|operator\s*[^\s(]+)\s*\(", head)
    return found[1] if found else head.strip()


def functions_of(text):
    """Returns the functions of a file that are not within another function."""
    code = code_of(text)
    found = []
    opened = []  # for each open {: None, or the function that it starts
    head_at = 0
    for mark in re.finditer(r"[{};]|\b(?:public|private|protected):", code):
        at = mark.start()
        within = any(opened)
        if mark[0] == "{":
            head = code[head_at:at]
            # x{1} or (x = {}) is a value, not a block
            value = head[-1:] not in " \n" or head.count("(") > head.count(")")
            begins = not within and not value and is_function(head)
            opened.append(Function(name_of(head), at, 0) if begins else "value" if value else None)
        elif mark[0] == "}":
            last = opened.pop()
            if isinstance(last, Function):
                first, end = (code.count("\n", 0, place) + 1 for place in (last.line, at))
                found.append(Function(last.name, first, end - first))
            if last == "value":
                continue
        if not any(opened):
            head_at = mark.end()
    return found


def functions_below(root):
    for folder in FOLDERS:
        for place, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                if name.endswith((".h", ".cpp", ".c")):
                    path = os.path.join(place, name)
                    with open(path, encoding="utf-8") as file:
                        for function in functions_of(file.read()):
                            yield os.path.relpath(path, root), function


def complaints(functions):
    """Returns one line for each (path, function) that is too long, and for each unneeded row of LONGER."""
    longest = {}
    for path, function in functions:
        if function.lines > LONGER.get(function.name, MOST_LINES):
            yield f"{path}:{function.line}: {function.name} has {function.lines} lines, {MOST_LINES} are the most: cut it"
        longest[function.name] = max(function.lines, longest.get(function.name, 0))
    for name, most in LONGER.items():
        lines = longest.get(name, 0)
        if lines < most:
            yield f"{name} has {lines} lines now: {'take it off LONGER' if lines <= MOST_LINES else 'write that in LONGER'}"


class Functions(unittest.TestCase):
    def test_no_function_is_longer_than_a_screen(self):
        functions = list(functions_below(ROOT))
        self.assertGreater(len(functions), 1000, f"the sources below {ROOT} were not found")
        self.assertEqual("\n".join(complaints(functions)), "")


class Reading(unittest.TestCase):
    def names(self, text):
        return [(function.name, function.line, function.lines) for function in functions_of(text)]

    def test_functions_are_found_anywhere(self):
        for text, name in (("int f() {\n}\n", "f"),
                           ("namespace a {\nstatic void g(X x = {}) {\n}\n}\n", "g"),
                           ("class A : public B<void()> {\n public:\n  A() : x_{1}, y_(2) {\n  }\n};\n", "A"),
                           ("struct A {\n  bool operator==(const A&) const {\n    return x = 1;\n  }\n};\n", "operator=="),
                           ("Result<int> A::f() const&& {\n}\n", "A::f"),
                           ("template <class T, class = void>\nauto h(T t) -> int {\n}\n", "h"),
                           ("struct tm now() {\n}\n", "now")):
            self.assertEqual([each[0] for each in self.names(text)], [name], text)

    def test_lines_are_those_between_the_braces(self):
        text = "int a;\nint f(int x,\n      int y) {\n  if (x) {\n    y();\n  }\n  return 1;\n}\n"
        self.assertEqual(self.names(text), [("f", 3, 5)])
        self.assertEqual(self.names("int f() { return 1; }\nint g() {\n}\n"), [("f", 1, 0), ("g", 2, 1)])

    def test_other_braces_are_not_functions(self):
        for text in ("struct A {\n  int x = 0;\n};\n", "const X kRows[] = {\n    {1, f(2)},\n};\n",
                     "enum class A : int {\n  a,\n};\n", "namespace a::b {\n}\n", "struct alignas(64) A {\n};\n",
                     "auto x = f({\n});\n", "int f();\n"):
            self.assertEqual(self.names(text), [], text)

    def test_braces_in_comments_and_strings_are_ignored(self):
        text = "int f() {  // {\n  x('{', \"{\", R\"a({\n{ )\" )a\");  /* {\n */\n  return 1'000;\n}\nint g() {\n}\n"
        self.assertEqual(self.names(text), [("f", 1, 5), ("g", 7, 1)])
        self.assertEqual(self.names("#define X {\nint f() {\n}\n"), [("f", 2, 1)])


class Complaints(unittest.TestCase):
    LISTED = [(name, Function(name, 1, most)) for name, most in LONGER.items()]

    def test_long_function_is_named(self):
        self.assertEqual(list(complaints(self.LISTED + [("a.cpp", Function("f", 7, 60))])), [])
        self.assertEqual(list(complaints(self.LISTED + [("a.cpp", Function("f", 7, 61))])),
                         ["a.cpp:7: f has 61 lines, 60 are the most: cut it"])

    def test_listed_function_may_not_grow(self):
        for name, most in LONGER.items():
            others = [row for row in self.LISTED if row[0] != name]
            for lines in (most + 1, most - 1, MOST_LINES):
                found = list(complaints(others + [("a.cpp", Function(name, 7, lines))]))
                self.assertEqual(len(found), 1, (name, lines))


if __name__ == "__main__":
    ROOT = sys.argv.pop(1)
    unittest.main()
