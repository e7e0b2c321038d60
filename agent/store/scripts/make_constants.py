"""Writes the constants that C++ and the scripts share: internal keys (../keys.toml) and limits (../../model/limits.toml).

    make_constants.py KEYS.toml LIMITS.toml FOLDER

FOLDER gets store/key_names.h, store/key_table.inc (the rows of internal_keys()) and model/limits.h. A file that would not
change is not written, so that its users are not compiled again. assemble.py inserts the same constants into the scripts."""

import pathlib
import sys
import tomllib

KEY_FIELDS = {"pattern", "type", "content", "rebuilt_from", "loss", "agent_access"}
TYPES = {"string", "list", "hash", "set", "zset", "stream", "channel"}
ACCESS = {"write": "AgentAccess::write", "read": "AgentAccess::read", "none": "AgentAccess::none"}


def read_table(path, required, optional=frozenset()):
    """{section: {field: value}} of a TOML file. An invalid section ends the program with an error that names it."""
    table = tomllib.loads(pathlib.Path(path).read_text())
    for name, section in table.items():
        if unknown := set(section) - required - optional:
            raise SystemExit(f"{path}: [{name}]: unknown field {sorted(unknown)[0]}")
        if missing := required - set(section):
            raise SystemExit(f"{path}: [{name}]: {sorted(missing)[0]} is missing")
    return table


def read_keys(path):
    required = {"pattern", "type", "content"}
    keys = read_table(path, required, KEY_FIELDS - required)
    patterns = [(key["pattern"], key["type"] == "channel") for key in keys.values()]
    if twice := next((pattern for pattern, kind in patterns if patterns.count((pattern, kind)) > 1), None):
        raise SystemExit(f"{path}: two sections have the pattern {twice}")
    for name, key in keys.items():
        if key["type"] not in TYPES or key.get("agent_access", "write") not in ACCESS:
            raise SystemExit(f"{path}: [{name}]: invalid type or agent_access")
        if not key["pattern"].startswith("mj:"):
            raise SystemExit(f"{path}: [{name}]: the pattern does not begin with mj:")
        if key["type"] == "channel" and set(key) != required:
            raise SystemExit(f"{path}: [{name}]: a channel has only pattern, type and content")
    return keys


def read_limits(path):
    return read_table(path, {"value", "meaning"})


def constant(section):
    return "k" + "".join(word.capitalize() for word in section.split("_"))


def key_constant(section, key):
    return constant(section) + ("Channel" if key["type"] == "channel" else "Key")


def key_prefix(key):
    """The part of the pattern in front of its first placeholder."""
    return key["pattern"].split("<")[0]


def script_constants(keys_path, limits_path):
    """{constant: its text in Lua}"""
    limits = {constant(name): str(limit["value"]) for name, limit in read_limits(limits_path).items()}
    return limits | {key_constant(name, key): f"'{key_prefix(key)}'" for name, key in read_keys(keys_path).items()}


def quote(text):
    return '"' + " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"') + '"'


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_header(path, source, lines):
    write(path, "\n".join([f"// Generated from {source}.", "#pragma once", "", "namespace mycojobs {", "", *lines, "",
                           "}  // namespace mycojobs", ""]))


def main(keys_path, limits_path, folder):
    keys, limits, folder = read_keys(keys_path), read_limits(limits_path), pathlib.Path(folder)
    write_header(folder / "store/key_names.h", "agent/store/keys.toml",
                 [f"inline constexpr char {key_constant(name, key)}[] = {quote(key_prefix(key))};" for name, key in keys.items()])
    write_header(folder / "model/limits.h", "agent/model/limits.toml",
                 [f"inline constexpr int {constant(name)} = {limit['value']};  // {limit['meaning']}" for name, limit in limits.items()])
    fields = ("pattern", "type", "content", "rebuilt_from", "loss")
    rows = [", ".join([*(quote(key.get(field, "")) for field in fields), ACCESS[key.get("agent_access", "write")]])
            for key in keys.values() if key["type"] != "channel"]
    write(folder / "store/key_table.inc", "".join(f"InternalKey{{{row}}},\n" for row in rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
