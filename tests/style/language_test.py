#!/usr/bin/python3
"""Measures the language of comments, documents and type names, and compares the figures with the limits of language.json.

Usage: language_test.py ROOT. The figures per 1,000 words are means over the whole tree, so one sentence that needs such a word is
not an error. Types that are terms of the field although they look like participles are listed in language.json.
"""
import collections
import json
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
WHAT_WHO = re.compile(r"\b(what|whatever|who|whoever|whose|whom|nobody|somebody|anybody|everybody)\b", re.I)
EVERYDAY = re.compile(r"\b(come|comes|came|goes|go on|went on|stands?|stood|lies|tells?|told|hears? of|gives? back|gave back|for ever|anew|"
                      r"meanwhile|mend|mends|mended|at one time|by itself|in its place|is no|are no)\b", re.I)
ODD_START = re.compile(r"(what|who|whoever|of|one|ones|its|it|their|those|nobody|somebody|none|nothing|whether|where)\b", re.I)
TYPE = re.compile(r"\s*(?:class|struct|enum class|enum)\s+([A-Z]\w*)(?:\s+final)?\s*(?::|\{|$)")
FUNCTION_WORDS = set("Again Away Begun Came Elsewhere Is Kept Next Now Of On Over Put Rest Use What Where After Before Behind Here There "
                     "Back Off Out Up Down Else".split())
CODE = (".cpp", ".cc", ".h", ".hpp", ".c", ".lua", ".py", ".js", ".sh")
COMMENT = {".lua": r"(?:^|\s)--(?!\[|#)\s?(.*)", ".py": r"(?:^|\s)#(?!!)\s?(.*)", ".sh": r"(?:^|\s)#(?!!)\s?(.*)"}
SLASHES = r"(?<![:\"'])//[/!]?<?\s?(.*)"


def comment_of(line, path):
    """Returns the text of the comment in a line, or None."""
    found = re.search(COMMENT.get(os.path.splitext(path)[1], SLASHES), line)
    return found.group(1).strip() if found else None


def is_odd_type(name, terms):
    return name not in terms and (name in FUNCTION_WORDS or re.fullmatch(r"[A-Z][a-z]+(ing|ed)", name) is not None)


def figures(files, terms):
    """Returns the figures of (path, lines), and places that exceed them: {figure: [place, ...]}."""
    words, hits, places = collections.Counter(), collections.Counter(), collections.defaultdict(list)
    blocks = 0
    for path, lines in files:
        kind = "documents" if path.endswith(".md") else "comments"
        in_block = False
        for number, line in enumerate(lines, 1):
            place = f"{path}:{number}: {line.strip()[:120]}"
            if kind == "documents":
                prose = None if line.startswith(("    ", "```")) else line
            else:
                prose = comment_of(line, path)
                named = TYPE.match(line)
                if named and path.endswith((".h", ".hpp", ".cpp", ".cc")) and is_odd_type(named.group(1), terms):
                    places["odd_types"].append(place)
                places["most_least_constants"] += [place] * len(re.findall(r"\bk(?:Most|Least)[A-Z]\w*\s*=", line))
            if not prose or re.search(r"Copyright|NOLINT|clang-format|SPDX", prose):
                in_block = False
                continue
            words[kind] += len(re.findall(r"[A-Za-z']+", prose))
            for name, pattern in (("what_who_nobody", WHAT_WHO), ("everyday_verbs", EVERYDAY)):
                found = len(pattern.findall(prose))
                hits[kind, name] += found
                places[kind, name] += [place] * found
            if kind == "comments" and not in_block:
                blocks += 1
                if ODD_START.match(prose):
                    places["odd_block_starts"].append(place)
            in_block = kind == "comments"
    values = {key: 1000 * count / max(1, words[key[0]]) for key, count in hits.items()}
    values["odd_block_starts"] = 1000 * len(places["odd_block_starts"]) / max(1, blocks)
    for name in ("odd_types", "most_least_constants"):
        values[name] = len(places[name])
    return values, places


def complaints(values, places, limits):
    lines = []
    for key, value in sorted(values.items(), key=str):
        limit = limits[key[0]][key[1]] if isinstance(key, tuple) else limits[key]
        if value > limit:
            name = " of ".join(reversed(key)) if isinstance(key, tuple) else key
            lines.append(f"{name}: {value:.1f}, limit {limit}; for example\n  " + "\n  ".join(places[key][:10]))
    return "\n".join(lines)


def sources(root):
    """Yields (path, lines) of all sources and documents below the root."""
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in ("build", "node_modules", ".git"))
        for name in sorted(names):
            if name.endswith(CODE + (".md",)):
                path = os.path.join(place, name)
                with open(path, encoding="utf-8", errors="replace") as text:
                    yield os.path.relpath(path, root), text.read().splitlines()


class Language(unittest.TestCase):
    def test_the_tree_keeps_its_limits(self):
        with open(os.path.join(HERE, "language.json"), encoding="utf-8") as text:
            expected = json.load(text)
        values, places = figures(sources(ROOT), set(expected["types"]))
        found = complaints(values, places, expected["limits"])
        if found:
            self.fail(found)

    def test_figures_of_a_known_text(self):
        files = [("a.h", ["// What comes here, nobody knows.", "struct Again {", "constexpr int k" "MostLines = 3;  // limit", "class Setting {"]),
                 ("b.md", ["The agent stores what it receives.", "    what is code is not counted"])]
        values, places = figures(files, {"Setting"})
        self.assertEqual((values["odd_types"], values["most_least_constants"]), (1, 1))
        self.assertEqual(values["odd_block_starts"], 500)  # one of two blocks
        self.assertAlmostEqual(values["comments", "what_who_nobody"], 1000 * 2 / 6)
        self.assertAlmostEqual(values["documents", "what_who_nobody"], 1000 / 6)
        limits = {"comments": {"what_who_nobody": 1, "everyday_verbs": 1000}, "documents": {"what_who_nobody": 1000, "everyday_verbs": 1000},
                  "odd_block_starts": 1000, "odd_types": 1, "most_least_constants": 0}
        reported = complaints(values, places, limits)
        self.assertIn("what_who_nobody of comments: 333.3, limit 1", reported)
        self.assertIn("a.h:3: constexpr int kMostLines", reported)
        self.assertNotIn("odd_types", reported)


if __name__ == "__main__":
    ROOT = sys.argv.pop(1)
    unittest.main()
