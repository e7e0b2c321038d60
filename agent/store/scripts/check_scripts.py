"""Checks that the scripts use the tables that they share with C++ (tables.py). assemble.py calls check() for each file.

An error names the file, the line and the cause:
- A field is not in the table of its hash. Checked are literals in commands on hashes (HGET, HSET, ...), in set_claim() and
  write_claim(), in lists of fields (kRunFields), and fields of tables with a record, such as claim.state.
- A state is a literal where a constant of states.toml belongs: claim.state == 'live'.
- A fact has a field that its kind does not have, or lacks one.
- A function stores a state of a job that its fact does not lead to ([fact_kind.changes] of states.toml)."""

import bisect
import re

import tables

TOKEN = re.compile(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|[A-Za-z_]\w*|\d[\w.]*|\.\.\.|\.\.|[=~<>]=|\S")
HASH_COMMANDS = {"HGET", "HMGET", "HDEL", "HEXISTS", "HSTRLEN", "HSET", "HSETNX"}
# Variables with the key of a record, unless the file assigns another key to the variable.
KEY_VARIABLES = {"job": ["job"], "entry": ["job"], "message": ["message"]}
# Variables with the fields of a hash as a table.
RECORD_VARIABLES = {"claim": ["mj:claim:"], "next_claim": ["mj:claim:"], "claim_fields": ["mj:claim:"], "mark": ["mj:flow:"],
                    "flow_mark": ["mj:flow:"], "mark_fields": ["mj:message:"], "record_fields": ["job", "flow"], "record": ["job", "flow"]}
# Elements that such a table has for the script alone; they are not stored.
UNSTORED = {"claim": {"end_charge", "over"}, "record": {"err"}}
# Lists of fields, by the name of the variable.
FIELD_LISTS = {"kRecord": ["job"], "kShortFields": ["job"], "kRunFields": ["mj:claim:"]}
STATE_NAMES = {"state", "previous_state", "job_state", "status", "end_status", "record_status", "answer"}


class Table:
    """The shared tables in the form that the checks need."""

    def __init__(self):
        self.fields = {name: {*record["fields"], *record.get("unknown", {})} for name, record in tables.read_fields().items()}
        self.prefixes = {record["key"].split("<")[0]: name for name, record in tables.read_fields().items() if "key" in record}
        self.keys = {}  # constant of a key: name of its table
        for name, key in tables.read_keys().items():
            if key["type"] == "hash":
                self.fields[tables.key_prefix(key)] = tables.key_fields(key)
            self.keys[tables.key_constant(name, key)] = tables.key_prefix(key)
        states = tables.read_states()
        self.kinds = {tables.constant(f"fact_kind_{kind}"): kind for kind in states["fact_kind"]["values"]}
        self.job_states = {tables.constant(f"job_state_{state}"): state for state in states["job_state"]["values"]}
        self.fact_fields = tables.fact_field_constants()
        self.fields_of_kind = {kind: names.split() for kind, names in states["fact_kind"]["fields"].items()}
        self.state_of_reason = {tables.constant(f"park_reason_{reason}"): tables.constant(f"job_state_{state}")
                                for reason, state in states["park_reason"]["states"].items()}
        self.states_after = {kind: after for kind, (_, after) in tables.fact_changes(states).items()}


def text_of(expression):
    """The text of an expression that is a literal, otherwise None."""
    return expression[0][1:-1] if len(expression) == 1 and expression[0][0] in "'\"" else None


class Checker:
    def __init__(self, table, name, text, first_line):
        self.table, self.name = table, name
        matches = [match for match in TOKEN.finditer(text) if not match[0].startswith("--")]
        self.tokens = [match[0] for match in matches]
        line_ends = [match.start() for match in re.finditer("\n", text)]
        self.lines = [bisect.bisect(line_ends, match.start()) + first_line for match in matches]
        self.key_variables = self.find_key_variables()
        self.fact_kind = None  # kind of the last fact in the current definition

    def fail(self, at, message):
        raise SystemExit(f"{self.name}:{self.lines[at]}: {message}")

    def token(self, at):
        return self.tokens[at] if 0 <= at < len(self.tokens) else ""

    def list_after(self, at):
        """The expressions in the brackets that begin at the token, each as a list of tokens."""
        depth, expressions = 0, [[]]
        for token in self.tokens[at:]:
            depth += token in ("(", "{", "[")
            depth -= token in (")", "}", "]")
            if depth == 0:
                break
            if token == "," and depth == 1:
                expressions.append([])
            elif depth > 1 or token not in ("(", "{", "["):
                expressions[-1].append(token)
        return expressions

    def names_before(self, at):
        """The names on the left side of the assignment at the token."""
        names = [self.token(at - 1)]
        while self.token(at - 2) == "," and self.token(at - 3).isidentifier():
            at -= 2
            names.insert(0, self.token(at - 1))
        return names

    def values_after(self, at):
        """The expressions on the right side of the assignment at the token. It ends with a line that ends an expression."""
        depth, values = 0, [[]]
        for position in range(at + 1, len(self.tokens)):
            token, before = self.tokens[position], self.tokens[position - 1]
            depth += token in ("(", "{", "[")
            depth -= token in (")", "}", "]")
            is_new_line = self.lines[position] != self.lines[position - 1] and before not in (",", "..", "=", "or", "and")
            if depth < 0 or (is_new_line and depth == 0):
                break
            if token == "," and depth == 0:
                values.append([])
            else:
                values[-1].append(token)
        return values

    def find_key_variables(self):
        """{variable: names of the tables of the hashes whose keys the script assigns to it}"""
        found = {}
        for at, token in enumerate(self.tokens):
            if token == "=" and self.token(at - 1).isidentifier():
                for name, value in zip(self.names_before(at), self.values_after(at)):
                    hashes = self.hashes_of_literal(value) if value else []
                    found.setdefault(name, []).extend(each for each in hashes if each in self.table.fields)
        return found

    def hashes_of_literal(self, expression):
        if expression[0] in self.table.keys:
            return [self.table.keys[expression[0]]]
        if expression[0] == "state_key":
            return ["mj:claim:", "mj:flow:"]
        return [self.table.prefixes[expression[0][1:-1]]] if expression[0][1:-1] in self.table.prefixes else []

    def hashes_of(self, expression):
        """The tables that a key may belong to; empty if the expression does not tell."""
        if expression == ["job", ".", "key"]:
            return ["job"]
        if len(expression) == 1 and expression[0].isidentifier() and expression[0] not in self.table.keys:
            return self.key_variables.get(expression[0]) or KEY_VARIABLES.get(expression[0], [])
        return self.hashes_of_literal(expression)

    def check_field(self, at, field, hashes):
        hashes = hashes or list(self.table.fields)
        for name in hashes:
            if name not in self.table.fields:
                self.fail(at, f"{name} is not a hash")
        known_fields = set().union(*(self.table.fields[name] for name in hashes))
        prefixes = tuple(known for known in known_fields if known.endswith((":", " ")))
        if field not in known_fields and not field.startswith(prefixes):
            places = " or ".join(hashes) if len(hashes) < 4 else "any record or key"
            self.fail(at, f"{field} is not a field of {places} (agent/model/fields.toml, agent/store/keys.toml)")

    def check_command(self, at):
        command, *arguments = self.list_after(at + 1)
        if text_of(command) not in HASH_COMMANDS:
            return
        hashes, fields = self.hashes_of(arguments[0]), arguments[1:]
        self.check_fields(at, fields[::2] if text_of(command) in ("HSET", "HSETNX") else fields, hashes)
        if text_of(command) in ("HSET", "HSETNX"):
            self.check_values(at, fields)

    def check_fields(self, at, expressions, hashes):
        for expression in expressions:
            if expression and text_of(expression[:1]) is not None:
                self.check_field(at, text_of(expression[:1]), hashes)

    def check_values(self, at, pairs):
        """No field with a state gets a literal: 'state', is_delayed and 'delayed' or kJobStateQueued."""
        for field, value in zip(pairs[::2], pairs[1::2]):
            if text_of(field) not in ("state", "status", "answer"):
                continue
            for before, token in zip(["or", *value], value):
                if token[0] == "'" and token != "''" and before in ("and", "or"):
                    self.fail(at, f"{text_of(field)} is {token}: use the constant of states.toml")

    def check_call(self, at):
        function = self.tokens[at]
        if function in ("call", "pcall", "call_index"):
            self.check_command(at)
        elif function in ("set_claim", "write_claim") and self.token(at - 1) != "function":
            pairs = self.list_after(at + 1)[2:]
            self.check_fields(at, pairs[::2], ["mj:claim:"])
            self.check_values(at, pairs)
            self.check_change(at, pairs)
        elif function == "add_fact" and self.token(at - 1) != "function":
            self.check_fact(at)
        elif function == "park_job" and self.token(at - 1) != "function":
            state, reason = (argument[0] for argument in self.list_after(at + 1)[3:5])
            if self.table.state_of_reason.get(reason) != state:
                self.fail(at, f"a job is parked in {state} for {reason} ([park_reason.states] of states.toml)")

    def check_fact(self, at):
        kind, *pairs = self.list_after(at + 1)[3:]
        if text_of(kind) is not None:
            self.fail(at, f"the kind of the fact is {kind[0]}: use the constant of states.toml")
        self.fact_kind = self.table.kinds.get(kind[0]) if len(kind) == 1 else None
        names = [self.table.fact_fields.get(field[0], text_of(field)) for field in pairs[::2]]
        if not self.fact_kind:
            return
        known = self.table.fields_of_kind[self.fact_kind]
        for name in names:
            if name is not None and name not in known and name + "?" not in known:
                self.fail(at, f"a fact {self.fact_kind} does not have the field {name} ([fact_kind.fields] of states.toml)")
        if pairs and pairs[-1][0] in ("unpack", "..."):
            return
        for name in known:
            if not name.endswith("?") and name not in names:
                self.fail(at, f"a fact {self.fact_kind} lacks the field {name} ([fact_kind.fields] of states.toml)")

    def check_change(self, at, pairs):
        for field, value in zip(pairs[::2], pairs[1::2]):
            state = self.table.job_states.get(value[0]) if len(value) == 1 and text_of(field) == "state" else None
            if state and self.fact_kind and state not in self.table.states_after[self.fact_kind]:
                self.fail(at, f"a job in state {state} after a fact {self.fact_kind} ([fact_kind.changes] of states.toml)")

    def check_element(self, at):
        """A field of a table with a record: claim.state, claim['end']."""
        variable, field = self.tokens[at], self.token(at + 2)
        if variable not in RECORD_VARIABLES or self.token(at + 1) not in (".", "["):
            return
        is_name = self.token(at + 1) == "." and field.isidentifier()
        field = field if is_name else text_of([field]) if field and self.token(at + 3) == "]" else None
        if field is not None and field not in UNSTORED.get(variable, set()):
            self.check_field(at, field, RECORD_VARIABLES[variable])

    def check_comparison(self, at):
        if self.tokens[at] in ("==", "~=") and self.token(at - 1) in STATE_NAMES and self.token(at + 1)[:1] == "'" and self.token(at + 1) != "''":
            self.fail(at, f"{self.token(at - 1)} is compared with {self.token(at + 1)}: use the constant of states.toml")

    def check_list(self, at):
        if self.tokens[at] in FIELD_LISTS and self.token(at + 1) == "=" and self.token(at + 2) == "{":
            self.check_fields(at, self.list_after(at + 2), FIELD_LISTS[self.tokens[at]])

    def run(self):
        for at, token in enumerate(self.tokens):
            if token == "function":
                self.fact_kind = None
            if self.token(at + 1) == "(":
                self.check_call(at)
            self.check_element(at)
            self.check_comparison(at)
            self.check_list(at)


def check(table, name, text):
    """Ends the program with an error if a file of scripts does not agree with the tables."""
    first_line = 1
    for script in re.split(r"(?m)^(?=--# \w+:)", text):
        Checker(table, name, script, first_line).run()
        first_line += script.count("\n")
