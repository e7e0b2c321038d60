"""Assembles the Lua scripts of the store with the library functions that they use, as constants of the program (../lua_scripts.h).

    assemble.py OUTPUT.cpp FILE.lua...

A file has the scripts of one subject. Each script begins with a line such as "--# claim: dispatch_journal job_indexes": its name, and
the parts of lib/ that it uses, in addition to prelude.lua. Redis executes all definitions in front of a script at each call, so only
those definitions of a part are included that the script uses, directly or through other definitions. A part has definitions only.
Each definition begins in the first column, with "local" or with the name of the assigned variable, and ends before the next one."""

import hashlib
import pathlib
import re
import sys

NOT_CODE = re.compile(r"""--[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
BEGINNING = re.compile(r"(?m)^(?=[a-z])(?!end\b|\w+\))")
SCRIPT = re.compile(r"(?m)^--# (\w+):([ a-z_]*)\n")
DEFINED = re.compile(r"local function (\w+)|local (\w+(?:, *\w+)*)|(\w+) = ")


class Definition:
    def __init__(self, text, where):
        code = NOT_CODE.sub("", text)
        begins = DEFINED.match(code)
        if not begins:
            raise SystemExit(f"{where}: no definition: {text.splitlines()[0]}")
        self.names = set(NAME.findall(begins[1] or begins[2] or begins[3]))
        self.uses = set(NAME.findall(code))
        self.text = re.sub(r"(?m)^--.*\n|^\n", "", text)  # comments between definitions stay in the source


def definitions(part):
    return [Definition(text, part) for text in BEGINNING.split(part.read_text())[1:]]


def scripts_of(file):
    """(name, names of parts, text) of each script in the file."""
    begins = list(SCRIPT.finditer(file.read_text()))
    if not begins:
        raise SystemExit(f'{file}: no line begins a script ("--# name:", "--# name: dispatch_journal job_indexes")')
    ends = [*(each.start() for each in begins[1:]), None]
    return [(each[1], each[2].split(), each.string[each.end():end].rstrip() + "\n") for each, end in zip(begins, ends)]


def assembled(lib, parts, own):
    there = [each for name in ["prelude", *parts] for each in definitions(lib / f"{name}.lua")]
    uses, missing = set(NAME.findall(NOT_CODE.sub("", own))), there
    while more := [each for each in missing if each.names & uses]:
        uses = uses.union(*(each.uses for each in more))
        missing = [each for each in missing if each not in more]
    return "".join(each.text for each in there if each not in missing) + own


def main(output, *files):
    lines = ['#include "store/all_scripts.h"', "", "namespace mycojobs::scripts {"]
    names = []
    for file in map(pathlib.Path, files):
        for name, parts, own in scripts_of(file):
            text = assembled(file.parent / "lib", parts, own)
            sha1 = hashlib.sha1(text.encode()).hexdigest()
            names.append(name)
            lines.append(f'const Script {name}{{"{name}", "{sha1}", R"lua({text})lua"}};')
    pointers = ", ".join(f"&{name}" for name in names)
    lines.append(f"constexpr const Script* kAll[] = {{{pointers}}};")
    lines.append("const std::span<const Script* const> all(kAll);")
    pathlib.Path(output).write_text("\n".join([*lines, "}  // namespace mycojobs::scripts", ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
