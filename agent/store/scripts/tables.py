"""Reads the tables that C++ and the scripts share. make_constants.py and assemble.py generate both sides from them."""

import pathlib
import re
import tomllib

AGENT = pathlib.Path(__file__).resolve().parents[2]
KEYS = AGENT / "store/keys.toml"
LIMITS = AGENT / "model/limits.toml"
FIELDS = AGENT / "model/fields.toml"
RIGHTS = AGENT / "security/rights.toml"
STATES = AGENT / "model/states.toml"

KEY_FIELDS = {"pattern", "type", "content", "rebuilt_from", "loss", "agent_access"}
KEY_TYPES = {"string", "list", "hash", "set", "zset", "stream", "channel"}
KEY_ACCESS = {"write", "read", "none"}
# A field in the `content` of a hash: name, prefix:<placeholder>, prefix <placeholder>, or placeholders alone.
FIELD_ENTRY = re.compile(r"(?P<name>[a-z_]\w*)|(?P<prefix>[a-z_]\w*[: ])<[^<>]+>|<[^<>]+>(?: <[^<>]+>)*")
ACCESS_LISTS = ("admins", "submitters", "executors", "readers")
GRANTS = {"nothing", "created", "running", "named_by_gate", "everything"}


def read_table(path, required, optional=frozenset()):
    """{section: {field: value}} of a TOML file. An invalid section ends the program with an error that names it."""
    table = tomllib.loads(path.read_text())
    for name, section in table.items():
        if unknown := set(section) - required - optional:
            raise SystemExit(f"{path}: [{name}]: unknown field {sorted(unknown)[0]}")
        if missing := required - set(section):
            raise SystemExit(f"{path}: [{name}]: {sorted(missing)[0]} is missing")
    return table


def read_keys():
    required = {"pattern", "type", "content"}
    keys = read_table(KEYS, required, KEY_FIELDS - required)
    patterns = [(key["pattern"], key["type"] == "channel") for key in keys.values()]
    if twice := next((pattern for pattern, kind in patterns if patterns.count((pattern, kind)) > 1), None):
        raise SystemExit(f"{KEYS}: two sections have the pattern {twice}")
    for name, key in keys.items():
        if key["type"] not in KEY_TYPES or key.get("agent_access", "write") not in KEY_ACCESS:
            raise SystemExit(f"{KEYS}: [{name}]: invalid type or agent_access")
        if not key["pattern"].startswith("mj:"):
            raise SystemExit(f"{KEYS}: [{name}]: the pattern does not begin with mj:")
        if key["type"] == "channel" and set(key) != required:
            raise SystemExit(f"{KEYS}: [{name}]: a channel has only pattern, type and content")
        if key["type"] == "hash":
            key_fields(key)
    return keys


def read_limits():
    return read_table(LIMITS, {"value", "meaning"})


def read_states():
    states = read_table(STATES, {"stored_in", "values"},
                        {"enum", "terminal", "event_enum", "transitions", "fields", "changes", "states"})
    for name, section in states.items():
        if unknown := set(section.get("terminal", [])) - set(section["values"]):
            raise SystemExit(f"{STATES}: [{name}]: terminal: unknown value {sorted(unknown)[0]}")
        for event, changes in section.get("transitions", {}).items():
            if unknown := (set(changes) | set(changes.values())) - set(section["values"]):
                raise SystemExit(f"{STATES}: [{name}.transitions]: {event}: unknown value {sorted(unknown)[0]}")
    facts, job_states = states["fact_kind"], set(states["job_state"]["values"])
    if set(facts["fields"]) != set(facts["values"]) or set(facts["changes"]) != set(facts["values"]) - {"restored"}:
        raise SystemExit(f"{STATES}: [fact_kind]: the kinds in values, fields and changes differ")
    for kind, (before, after) in fact_changes(states).items():
        if unknown := {*before, *after} - job_states:
            raise SystemExit(f"{STATES}: [fact_kind.changes]: {kind}: unknown state {sorted(unknown)[0]}")
    reasons = states["park_reason"]
    if set(reasons["states"]) != set(reasons["values"]) or set(reasons["states"].values()) - job_states:
        raise SystemExit(f"{STATES}: [park_reason.states]: a reason is missing, or a state is unknown")
    return states


def read_fields():
    fields = read_table(FIELDS, {"fields"}, {"struct", "key", "members", "json_objects", "json_values", "unknown", "protected", "end"})
    for name, record in fields.items():
        known = {*record["fields"], *record.get("unknown", {})}
        for list_name in ("members", "json_objects", "json_values", "protected", "end"):
            if unknown := set(record.get(list_name, [])) - known:
                raise SystemExit(f"{FIELDS}: [{name}]: {list_name}: unknown field {sorted(unknown)[0]}")
    for kind, names in read_states()["fact_kind"]["fields"].items():
        if unknown := {name.rstrip("?") for name in names.split()} - set(fields["fact"]["fields"]):
            raise SystemExit(f"{STATES}: [fact_kind.fields]: {kind}: unknown field {sorted(unknown)[0]}")
    return fields


def read_rights():
    rights = read_table(RIGHTS, {"name", "refusal_list", "grants"}, {"creator_refusal_list"})
    for action, row in rights.items():
        if set(row["grants"]) - {*ACCESS_LISTS, "creator"} or set(row["grants"].values()) - GRANTS:
            raise SystemExit(f"{RIGHTS}: [{action}]: grants: unknown list or grant")
        if {row["refusal_list"], row.get("creator_refusal_list", "admins")} - {*ACCESS_LISTS}:
            raise SystemExit(f"{RIGHTS}: [{action}]: unknown list for a refusal")
    work = [name for name in ACCESS_LISTS if rights["work"]["grants"].get(name) == "everything"]
    if work[-1] != "executors":  # claims.lua reads this list first
        raise SystemExit(f"{RIGHTS}: [work]: the last list that grants everything is not executors")
    return rights


def rights_constants():
    """{constant: its text in Lua}: for each action its name, the lists that grant everything (as arguments, and as a text for
    a refusal), and the list that a refusal suggests."""
    constants = {}
    for action, row in read_rights().items():
        lists = [name for name in ACCESS_LISTS if row["grants"].get(name) == "everything"]
        name = constant(f"rights_{action}")
        constants |= {f"{name}Name": f"'{row['name']}'", f"{name}Lists": ", ".join(f"'{each}'" for each in reversed(lists)),
                      f"{name}ListsText": f"'{', '.join(lists)}'", f"{name}RefusalList": f"'{row['refusal_list']}'"}
    return constants


def fact_field_constants():
    """{constant: name of a field of a fact}"""
    return {constant(f"fact_{field['name']}_field"): name for name, field in read_fields()["fact"]["fields"].items()}


def key_fields(key):
    """The fields of a hash: the entries of `content` without the texts in parentheses. A field that ends with a placeholder
    is a prefix, such as "approved:"; a placeholder alone is a name that scripts compute."""
    text = key["content"]
    while (shorter := re.sub(r"\([^()]*\)", " ", text)) != text:
        text = shorter
    fields = set()
    for entry in re.split("[,;]", text):
        match = FIELD_ENTRY.fullmatch(entry.strip())
        if not match:
            raise SystemExit(f"{KEYS}: {key['pattern']}: {entry.strip()!r} is not a field; put explanations in parentheses")
        fields |= {match["name"], match["prefix"]} - {None}
    return fields


def fact_changes(states):
    """{kind of a fact: (states before, states after)}"""
    return {kind: tuple(side.split() for side in text.split("->")) for kind, text in states["fact_kind"]["changes"].items()}


def constant(name):
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def key_constant(section, key):
    return constant(section) + ("Channel" if key["type"] == "channel" else "Key")


def key_prefix(key):
    """The part of the pattern in front of its first placeholder."""
    return key["pattern"].split("<")[0]


def state_texts():
    """{constant: text} of each value of states.toml."""
    return {constant(f"{section}_{value}"): "" if value == "none" else value
            for section, state in read_states().items() for value in state["values"]}


def script_constants():
    """{constant: its text in Lua}"""
    texts = state_texts() | fact_field_constants() | {key_constant(name, key): key_prefix(key) for name, key in read_keys().items()}
    constants = {constant(name): str(limit["value"]) for name, limit in read_limits().items()}
    constants |= {name: f"'{text}'" for name, text in texts.items()}
    states = [value for value in read_states()["job_state"]["values"] if value != "none"]
    constants["kJobStateSet"] = "{" + ", ".join(f"{value} = true" for value in states) + "}"
    constants |= rights_constants()
    constants["kJobEndFields"] = ", ".join(f"'{name}'" for name in read_fields()["job"]["end"])
    return constants
