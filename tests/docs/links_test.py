#!/usr/bin/python3
"""Checks that every link of the pages has a target, and that every page named by the program exists.

    links_test.py [ROOT]      ROOT: of the repository; default: the repository of this file

The test checks
- in every *.md: relative links and images, definitions of links, href and src of HTML, and each #anchor by GitHub's rules;
- in agent/, executors/, sandbox/ and include/: every `docs/....md` and `bench/....md`, in a string or a comment, with its
  #anchor if there is one.

Prints file:line for each broken link, and exits with 1 then. Links to other servers are not followed. Before the check, the
test runs on pages with planted errors, which detects a check that finds nothing."""

import bisect
import html
import pathlib
import re
import sys
import tempfile
import unicodedata
import urllib.parse

SOURCES = ("agent", "executors", "sandbox", "include")
PASSED_OVER = {".git", "build", "node_modules", "__pycache__"}  # folders of any depth without pages of this project

FENCE = re.compile(r" {0,3}(?:>\s*)*(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")
NO_PARAGRAPH = re.compile(r" {0,3}(?:[>|#]|[-*+][ \t]|\d{1,9}[.)][ \t])")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n[ \t]*\n).)+?)(?<!`)\1(?!`)", re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
TARGET = r"(?:<([^<>\n]*)>|((?:\\.|[^\s()<\\]|\((?:\\.|[^\s()\\])*\))+))"
TITLE = r"(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?"
INLINE = re.compile(r"(?<!\\)\]\(\s*" + TARGET + TITLE + r"\s*\)")
EMPTY = re.compile(r"(?<!\\)\]\(\s*\)")
DEFINITION = re.compile(r"(?m)^ {0,3}\[(?!\^)[^\]\n]+\]:[ \t]*" + TARGET + TITLE + r"[ \t]*$")
HTML_LINK = re.compile(r"<[a-zA-Z][^<>]*?\s(?:href|src)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
HTML_ANCHOR = re.compile(r"<[a-zA-Z][^<>]*?\s(?:id|name)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
NAMED = re.compile(r"(?<![\w./-])((?:docs|bench)/[\w./-]*?\.md)(?![\w-])(?:#([\w-]+))?")
ADJACENT = re.compile(r"\"[ \t]*\n[ \t]*\"")  # two string literals that the compiler concatenates
LINE_OF_CODE = re.compile(r"L(\d+)(?:C\d+)?(?:-L(\d+)(?:C\d+)?)?")


def blanked(match):
    """Returns a text with the same lines and columns, but blank."""
    return re.sub(r"[^\n]", " ", match[0])


def without_code_blocks(text):
    """Blanks fenced and indented code; the other text keeps its position."""
    out, fence, in_code, in_list, blank_before = [], "", False, False, True
    for line in text.split("\n"):
        marks = FENCE.match(line)
        if fence:
            over = marks and marks[1][0] == fence[0] and len(marks[1]) >= len(fence) and not line[marks.end():].strip()
            fence = "" if over else fence
            out.append(" " * len(line))
            blank_before = False
            continue
        if marks and not (marks[1][0] == "`" and "`" in line[marks.end():]):
            fence = marks[1]
            out.append(" " * len(line))
            continue
        blank = not line.strip()
        indented = line.startswith(("    ", "\t"))
        if not blank:
            in_code = indented and not in_list and (in_code or blank_before)
            if not indented:
                in_list = bool(LIST_ITEM.match(line)) or (in_list and (line.startswith(" ") or not blank_before))
        out.append(" " * len(line) if in_code else line)
        blank_before = blank
    return "\n".join(out)


def slug(heading):
    """Returns GitHub's anchor of a heading: https://github.com/Flet/github-slugger has the same rules."""
    pieces = re.split(r"(`+[^`]+`+)", heading)
    for i in range(0, len(pieces), 2):
        piece = re.sub(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])?", r"\1", pieces[i])
        piece = re.sub(r"<[^<>]+>", "", piece)
        piece = re.sub(r"(?<!\w)(_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)", r"\2", piece)
        pieces[i] = html.unescape(re.sub(r"\\([^\w\s])", r"\1", piece))
    text = "".join(pieces).strip().lower()
    kept = (c for c in text if c in " -_" or unicodedata.category(c)[0] in "LNM" or unicodedata.category(c) == "Pc")
    return "".join(kept).replace(" ", "-")


def anchors_of(text):
    """Returns the anchors of a page. Equal headings are numbered: x, x-1, x-2."""
    plain = COMMENT.sub(blanked, without_code_blocks(text))
    anchors, given = set(), {}

    def add(heading):
        wanted = name = slug(heading)
        while name in given:
            given[wanted] += 1
            name = f"{wanted}-{given[wanted]}"
        given[name] = 0
        anchors.add(name)

    before = ""
    for line in plain.split("\n"):
        if heading := HEADING.match(line):
            add(heading[2] or "")
        elif UNDERLINE.match(line) and before.strip() and not NO_PARAGRAPH.match(before):
            add(before)
        before = line
    anchors.update(a or b for a, b in HTML_ANCHOR.findall(plain))
    return anchors


def links_of(text):
    """Returns (line, target) of each link and image."""
    plain = CODE_SPAN.sub(blanked, COMMENT.sub(blanked, without_code_blocks(text)))
    starts = [0] + [i + 1 for i, c in enumerate(plain) if c == "\n"]
    found = []
    for pattern in (INLINE, DEFINITION, HTML_LINK):
        found += [(m.start(), next(g for g in (*m.groups(), "") if g is not None)) for m in pattern.finditer(plain)]
    found += [(m.start(), "") for m in EMPTY.finditer(plain)]
    for at, target in sorted(found):
        yield bisect.bisect_right(starts, at), html.unescape(re.sub(r"\\([^\w\s])", r"\1", target))


class Tree:
    """The files of a repository. Each page is read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.anchors = {}

    def files(self, folder=None):
        for path in sorted((folder or self.root).iterdir()):
            if path.is_symlink() or path.name in PASSED_OVER:
                continue
            if path.is_dir():
                yield from self.files(path)
            else:
                yield path

    def name(self, path):
        return path.relative_to(self.root).as_posix()

    def anchors_of(self, page):
        if page not in self.anchors:
            self.anchors[page] = anchors_of(page.read_text(errors="replace"))
        return self.anchors[page]

    def wrong_anchor(self, path, anchor):
        if path.is_dir():
            path = path / "README.md"
        if path.suffix == ".md" and path.is_file():
            if anchor in self.anchors_of(path):
                return None
            near = sorted(a for a in self.anchors_of(path) if a.startswith(anchor[:6]))
            return f"#{anchor}: {self.name(path)} has no such heading" + (f"; it has #{', #'.join(near[:3])}" if near else "")
        lines = LINE_OF_CODE.fullmatch(anchor)
        count = path.read_text(errors="replace").count("\n") + 1 if lines and path.is_file() else 0
        if not lines or max(int(n) for n in lines.groups() if n) > count:
            return f"#{anchor}: {self.name(path)} has no such place"
        return None

    def wrong_link(self, page, target):
        """Returns the error in a link of this page, or nothing."""
        if not target:
            return "a link that leads nowhere"
        if SCHEME.match(target):
            return None
        path, _, anchor = target.partition("#")
        path, anchor = urllib.parse.unquote(path.partition("?")[0]), urllib.parse.unquote(anchor)
        place = page if not path else self.root / path.lstrip("/") if path.startswith("/") else page.parent / path
        place = place.resolve()
        if not place.is_relative_to(self.root):
            return f"{target}: leads out of the repository"
        if PASSED_OVER.intersection(place.relative_to(self.root).parts):
            return f"{target}: is in no repository, but made when it is built"
        if not place.exists():
            return f"{target}: there is no {self.name(place)}"
        return self.wrong_anchor(place, anchor) if anchor else None

    def broken_links(self):
        for page in self.files():
            if page.suffix != ".md":
                continue
            for line, target in links_of(page.read_text(errors="replace")):
                if wrong := self.wrong_link(page, target):
                    yield f"{self.name(page)}:{line}: {wrong}"

    def broken_names(self):
        """Finds missing pages that strings and comments of the program name."""
        for folder in SOURCES:
            if not (self.root / folder).is_dir():
                continue
            for file in self.files(self.root / folder):
                text = file.read_text(errors="replace")
                if "docs/" not in text and "bench/" not in text:
                    continue
                joined = ADJACENT.sub(lambda m: "\0" * len(m[0]), text)  # keeps all offsets
                shown, places = [], []
                for at, c in enumerate(joined):
                    if c != "\0":
                        shown.append(c)
                        places.append(at)
                for match in NAMED.finditer("".join(shown)):
                    line = text.count("\n", 0, places[match.start()]) + 1
                    page = self.root / match[1]
                    if not page.is_file():
                        yield f"{self.name(file)}:{line}: {match[1]}: there is no such page"
                    elif match[2] and (wrong := self.wrong_anchor(page, match[2])):
                        yield f"{self.name(file)}:{line}: {wrong}"

    def broken(self):
        return [*self.broken_links(), *self.broken_names()]


PLANTED = {
    "README.md": """# One `two` & Three: four_five

## Same
## Same
Über *uns*
----------
[good](docs/a.md), [heading](#same-1), [anchor](docs/a.md#b-c), [out](https://example.com/none.md), ![picture](docs/p.svg)
[folder](docs), [its README](docs#top), [line](agent/x.cpp#L2), [title](docs/a.md "a title"), [angle](<docs/two words.md>)
[setext](#über-uns), [first](#one-two--three-four_five), [root](/docs/a.md), <a href="docs/a.md">a</a>, [by id](#by-id)
<a id="by-id"></a> `[code](none.md)` and ``[`code](none.md)`` <!-- [comment](none.md) -->

    [indented code](none.md)

- an item

    [in the item](docs/a.md)

```text
[fenced](none.md)
# no heading
```
[defined]: docs/a.md#b-c
""",
    "docs/a.md": "# B, c!\n",
    "docs/two words.md": "",
    "docs/README.md": "# Top\n",
    "docs/p.svg": "<svg/>\n",
    "agent/x.cpp": '// docs/a.md and docs/a.md#b-c\nconst char* text = "docs/"\n                   "a.md";\n',
    "build/made.md": "[passed over](none.md)\n",
}
BROKEN = {
    "docs/b.md": """[none](none.md)
[heading](a.md#d)
[own](#none) and [case](#Here)
# Here
[out](../../x.md) ![picture](none.svg) <img src="none.png">
[built](../build/made.md) [line](../agent/x.cpp#L900) []()
- an item

    [in the item](none.md)
""",
    "agent/y.h": '// docs/none.md\nconst char* text = "see docs/no"\n    "ne.md, bench/none.md";\n',
}
FOUND = ["docs/b.md:1", "docs/b.md:2", "docs/b.md:3", "docs/b.md:3", "docs/b.md:5", "docs/b.md:5", "docs/b.md:5",
         "docs/b.md:6", "docs/b.md:6", "docs/b.md:6", "docs/b.md:9", "agent/y.h:1", "agent/y.h:2", "agent/y.h:3"]


def plant(root, files):
    for name, text in files.items():
        path = pathlib.Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def wrong_with_this_test():
    """Returns planted errors that the test does not find, and errors that it reports wrongly."""
    with tempfile.TemporaryDirectory() as root:
        plant(root, PLANTED)
        wrong = [f"this test takes for broken: {each}" for each in Tree(root).broken()]
        plant(root, BROKEN)
        found = Tree(root).broken()
        places = [each.rsplit(": ", 1)[0].split(": ")[0] for each in found]
        if places != FOUND:
            wrong += [f"this test finds {places}, not {FOUND}", *found]
    return wrong


def main(root):
    broken = wrong_with_this_test() or Tree(root).broken()
    for each in broken:
        print(each)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]))
