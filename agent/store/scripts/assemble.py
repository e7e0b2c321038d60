"""Puts each script behind what it uses of its libraries, as constants of the program (../scripts.h).

    assemble.py OUTPUT.cpp SCRIPT.lua...

The first line of a script, "--# journal places", names the parts of lib/ that stand before it, behind base.lua. A server
runs every definition in front of a script at every call, so that of a part only those stand there that the script uses,
or that these use. A part is definitions and nothing else: each begins in the first column, with "local" or with the name
that it gives a value to, and goes on as far as the next one does."""

import hashlib
import pathlib
import re
import sys

NOT_CODE = re.compile(r"""--[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
BEGINNING = re.compile(r"(?m)^(?=[a-z])(?!end\b|\w+\))")
DEFINED = re.compile(r"local function (\w+)|local (\w+(?:, *\w+)*)|(\w+) = ")


class Definition:
    def __init__(self, text, where):
        code = NOT_CODE.sub("", text)
        begins = DEFINED.match(code)
        if not begins:
            raise SystemExit(f"{where}: no definition: {text.splitlines()[0]}")
        self.names = set(NAME.findall(begins[1] or begins[2] or begins[3]))
        self.uses = set(NAME.findall(code))
        self.text = re.sub(r"(?m)^--.*\n|^\n", "", text)  # what is said between definitions stays in the source


def definitions(part):
    return [Definition(text, part) for text in BEGINNING.split(part.read_text())[1:]]


def assembled(script):
    own = script.read_text()
    first = re.match(r"--#([ a-z]*)\n", own)
    if not first:
        raise SystemExit(f'{script}: its first line names no libraries ("--#", "--# journal")')
    there = [each for name in ["base", *first[1].split()] for each in definitions(script.parent / "lib" / f"{name}.lua")]
    uses, missing = set(NAME.findall(NOT_CODE.sub("", own))), there
    while more := [each for each in missing if each.names & uses]:
        uses = uses.union(*(each.uses for each in more))
        missing = [each for each in missing if each not in more]
    return "".join(each.text for each in there if each not in missing) + own


def main(output, *scripts):
    lines = ['#include "store/scripts.h"', "", "namespace mycojobs::scripts {"]
    for script in map(pathlib.Path, scripts):
        text = assembled(script)
        sha1 = hashlib.sha1(text.encode()).hexdigest()
        lines.append(f'const Script {script.stem}{{"{script.stem}", "{sha1}", R"lua({text})lua"}};')
    pathlib.Path(output).write_text("\n".join([*lines, "}  // namespace mycojobs::scripts", ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
