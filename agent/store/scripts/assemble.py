"""Assembles the Lua scripts of the store with the library functions that they use, as constants of the program (../lua_scripts.h).

    assemble.py OUTPUT.cpp FILE.lua...

Constants of the tables that C++ and the scripts share (tables.py), such as kClaimKey and kJobStateLive, are replaced by their
values. Any other name that begins with k and a capital must be defined in the script. check_scripts.py checks the use of the
tables.

A file has the scripts of one subject. Each script begins with a line such as "--# claim: dispatch_journal job_indexes": its name, and
the parts of lib/ that it uses, in addition to prelude.lua. A part has definitions only. Each definition begins in the first column,
with "local" or with the name of the assigned variable, and ends before the next one.

Redis executes all definitions in front of a script at each call. So only those definitions of a part are included that the script
uses, directly or through other definitions. Lua 5.1 creates a function more slowly the more local variables it uses and the more
exist. So the functions in the first column become members of one table, `fn`: a job costs about a tenth less of Redis.

A line "--# at once: NAMES" at the begin of a script lists the functions of the parts that most of its calls use. The other ones are
created together, when the script uses one of them for the first time."""

import hashlib
import pathlib
import re
import sys

import check_scripts
import tables

NOT_CODE = re.compile(r"""--[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
BEGINNING = re.compile(r"(?m)^(?=[a-z])(?!end\b|\w+\))")
SCRIPT = re.compile(r"(?m)^--# (\w+):([ a-z_]*)\n")
AT_ONCE = re.compile(r"(?m)^--# at once: ([ \w]+)\n")
CONSTANT = re.compile(r"\bk[A-Z]\w*\b")
LOCAL = re.compile(r"\blocal ([\w, ]+)")
DEFINED = re.compile(r"local function (\w+)|local (\w+(?:, *\w+)*)|(\w+) = ")
FUNCTION = re.compile(r"(?m)^(?:local function (\w+)|(\w+) = function)(?=\()")
DECLARED = re.compile(r"(?m)^local (\w+) *(?:--.*)?\n")
VARIABLE = re.compile(r"\blocal (?!function)([\w, ]+)|\bfor ([\w, ]+?) (?:in|=)|\bfunction *\w*\(([\w, .]*)\)|[ \t]local function (\w+)")


class Definition:
    def __init__(self, text, part):
        code = NOT_CODE.sub("", text)
        match = DEFINED.match(code)
        if not match:
            raise SystemExit(f"{part}: no definition: {text.splitlines()[0]}")
        self.names = set(NAME.findall(match[1] or match[2] or match[3]))
        self.uses = set(NAME.findall(code))
        self.text = re.sub(r"(?m)^--.*\n|^\n", "", text)  # comments between definitions stay in the source


def read_definitions(part):
    return [Definition(text, part) for text in BEGINNING.split(part.read_text())[1:]]


def read_scripts(file):
    """(name, names of parts, text) of each script in the file."""
    begins = list(SCRIPT.finditer(file.read_text()))
    if not begins:
        raise SystemExit(f'{file}: no line begins a script ("--# name:", "--# name: dispatch_journal job_indexes")')
    ends = [*(match.start() for match in begins[1:]), None]
    return [(match[1], match[2].split(), match.string[match.end():end].rstrip() + "\n") for match, end in zip(begins, ends)]


def assemble(lib, parts, body):
    """The definitions that the script uses, in their order, followed by the script itself."""
    at_once = set(" ".join(AT_ONCE.findall(body)).split())
    body = AT_ONCE.sub("", body)
    candidates = [definition for name in ["prelude", *parts] for definition in read_definitions(lib / f"{name}.lua")]
    used = find_used(candidates, body)
    if unknown := at_once - {name for definition in used for name in definition.names}:
        raise SystemExit(f"at once: {sorted(unknown)[0]}: the script does not use a function with this name")
    later = find_later(used, at_once, body) if at_once else []
    text = "".join(definition.text for definition in used if definition not in later)
    later_text = "".join(definition.text for definition in later)
    return move_functions(text + (f"{BEGIN_LATER}{later_text}{END_LATER}" if later else "") + body, list_functions(later_text))


def find_used(candidates, body):
    """The definitions that the code uses, directly or through other definitions."""
    used_names, unused = set(NAME.findall(NOT_CODE.sub("", body))), candidates
    while needed := [definition for definition in unused if definition.names & used_names]:
        used_names = used_names.union(*(definition.uses for definition in needed))
        unused = [definition for definition in unused if definition not in needed]
    return [definition for definition in candidates if definition not in unused]


def find_later(definitions, at_once, body):
    """The definitions that are executed at the first use of one of their functions: the functions that are not in
    `at_once`, and the variables that only these functions use."""
    functions = list_functions("".join(definition.text for definition in definitions))
    variables = [definition for definition in definitions if not definition.names & functions]
    first = [definition for definition in definitions if definition.names & at_once]
    first += find_used(variables, body + "".join(definition.text for definition in first))
    return [definition for definition in definitions if definition not in first]


# A table calls the function __index for a missing member.
BEGIN_LATER = "setmetatable(fn, {__index = function(_, function_name)\nsetmetatable(fn, nil)\n"
END_LATER = "return fn[function_name]\nend})\n"


def list_functions(text):
    return {match[1] or match[2] for match in FUNCTION.finditer(text)}


def move_functions(text, later=frozenset()):
    """Makes the functions in the first column members of the table `fn`. The table is created with its final size, without the
    functions in `later`."""
    names = list_functions(text)
    text = DECLARED.sub(lambda match: "" if match[1] in names else match[0], text)
    variables = {name for groups in VARIABLE.findall(NOT_CODE.sub("", text)) for name in NAME.findall(" ".join(groups))}
    if both := sorted(names & variables):
        raise SystemExit(f"{both[0]}: a function and a variable or parameter have this name")
    text = FUNCTION.sub(lambda match: f"function fn.{match[1] or match[2]}", text)
    use = re.compile(rf"(?<![\w.:])(?:{'|'.join(sorted(names)) or '$.'})\b(?!\s*=[^=])")
    pieces = re.split(f"({NOT_CODE.pattern})", text)
    text = "".join(piece if at % 2 else use.sub(r"fn.\g<0>", piece) for at, piece in enumerate(pieces))
    return f"local fn = {{{', '.join(f'{name} = 0' for name in sorted(names - later))}}}\n{text}"


def insert_constants(text, constants, script):
    """Inserts the values of the shared constants, so that Redis need not define variables for them at each call."""
    code = NOT_CODE.sub("", text)
    defined = {name for match in LOCAL.finditer(code) for name in CONSTANT.findall(match[0])}
    if unknown := set(CONSTANT.findall(code)) - set(constants) - defined:
        raise SystemExit(f"{script}: {sorted(unknown)[0]}: no table and no definition has this constant")
    return CONSTANT.sub(lambda match: constants.get(match[0], match[0]), text)


def main(output, *files):
    constants, table = tables.script_constants(), check_scripts.Table()
    lines = ['#include "store/scripts/all_scripts.h"', "", "namespace mycojobs::scripts {"]
    names = []
    files = [pathlib.Path(file) for file in files]
    for file in [*files, *sorted({part for file in files for part in (file.parent / "lib").glob("*.lua")})]:
        check_scripts.check(table, file, file.read_text())
    for file in files:
        for name, parts, body in read_scripts(file):
            text = insert_constants(assemble(file.parent / "lib", parts, body), constants, name)
            sha1 = hashlib.sha1(text.encode()).hexdigest()
            names.append(name)
            lines.append(f'const Script {name}{{"{name}", "{sha1}", R"lua({text})lua"}};')
    pointers = ", ".join(f"&{name}" for name in names)
    lines.append(f"constexpr const Script* kAll[] = {{{pointers}}};")
    lines.append("const std::span<const Script* const> all(kAll);")
    pathlib.Path(output).write_text("\n".join([*lines, "}  // namespace mycojobs::scripts", ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
