"""Writes what C++ and the scripts share into headers of C++ (the tables: tables.py).

    make_constants.py FOLDER

FOLDER gets store/key_names.h, store/key_table.inc (the rows of internal_keys()), model/limits.h, model/states.h,
model/record_visitors.inc, model/job_field_sets.h, jobs/transitions.h, jobs/fact_table.inc (the rows of fact_shapes()) and
security/grant_table.inc. A file that would not change is not written, so that its users are not compiled again. assemble.py inserts
the same constants into the scripts."""

import pathlib
import sys

from tables import (ACCESS_LISTS, constant, fact_changes, fact_field_constants, key_constant, key_prefix, read_fields, read_keys,
                    read_limits, read_rights, read_states)


def quote(text):
    return '"' + " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"') + '"'


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_header(path, source, includes, lines):
    write(path, "\n".join([f"// Generated from {source}.", "#pragma once", "", *(f"#include {name}" if name else "" for name in includes), "",
                           "namespace mycojobs {", "", *lines, "", "}  // namespace mycojobs", ""]))


def write_keys(folder):
    keys = read_keys()
    write_header(folder / "store/key_names.h", "agent/store/keys.toml", [],
                 [f"inline constexpr char {key_constant(name, key)}[] = {quote(key_prefix(key))};" for name, key in keys.items()])
    fields = ("pattern", "type", "content", "rebuilt_from", "loss")
    rows = [", ".join([*(quote(key.get(field, "")) for field in fields), "AgentAccess::" + key.get("agent_access", "write")])
            for key in keys.values() if key["type"] != "channel"]
    write(folder / "store/key_table.inc", "".join(f"InternalKey{{{row}}},\n" for row in rows))


def write_limits(folder):
    write_header(folder / "model/limits.h", "agent/model/limits.toml", [],
                 [f"inline constexpr int {constant(name)} = {limit['value']};  // {limit['meaning']}" for name, limit in read_limits().items()])


def enum_lines(enum, meanings):
    return [f"enum class {enum} {{", *(f"  {name},{'  // ' * bool(meaning)}{' '.join(meaning.split())}" for name, meaning in meanings.items()), "};"]


def names_line(enum, texts):
    return f"template <>\nstruct StateNames<{enum}> {{\n  static constexpr std::string_view kTable[] = {{{', '.join(texts)}}};\n}};"


def write_states(folder):
    lines = ["// The names of the values of an enum, in the order of the values.", "template <class Enum>", "struct StateNames;"]
    for section, state in read_states().items():
        lines += ["", f"// Stored in {' '.join(state['stored_in'].split())}."]
        for value, meaning in state["values"].items():
            text = quote("" if value == "none" else value)
            comment = "" if "enum" in state else f"  // {' '.join(meaning.split())}"
            lines.append(f"inline constexpr std::string_view {constant(f'{section}_{value}')} = {text};{comment}")
        if "enum" in state:
            lines += enum_lines(state["enum"], state["values"])
            lines.append(names_line(state["enum"], [constant(f"{section}_{value}") for value in state["values"]]))
    write_header(folder / "model/states.h", "agent/model/states.toml", ["<string_view>"], lines)


def write_transitions(folder):
    states = read_states()
    lines = ["template <class State, class Event>", "struct Transition {", "  State from;", "  Event event;", "  State to;", "};"]
    for section, state in states.items():
        if "enum" not in state:
            continue
        enum, name = state["enum"], constant(section)
        lines += ["", f"inline constexpr {enum} {name}Terminals[] = {{{', '.join(f'{enum}::{value}' for value in state['terminal'])}}};"]
        if "transitions" in state:
            event_enum = state["event_enum"]
            lines += enum_lines(event_enum, {event: "" for event in state["transitions"]})
            lines.append(names_line(event_enum, [quote(event) for event in state["transitions"]]))
            lines.append(f"inline constexpr Transition<{enum}, {event_enum}> {name}Transitions[] = {{")
            lines += [f"    {{{enum}::{before}, {event_enum}::{event}, {enum}::{after}}},"
                      for event, changes in state["transitions"].items() for before, after in changes.items()]
            lines.append("};")
    lines += ["", "// Each change of a job's state that a fact may describe. FactKind::restored may describe any change.",
              "inline constexpr Transition<JobState, FactKind> kFactChanges[] = {"]
    lines += [f"    {{JobState::{before}, FactKind::{kind}, JobState::{after}}},"
              for kind, (befores, afters) in fact_changes(states).items() for before in befores for after in afters]
    lines += ["};", "", "// Names of the fields of facts."]
    fields = read_fields()["fact"]["fields"]
    lines += [f"inline constexpr std::string_view {name} = {quote(text)};  // {fields[text]['meaning']}"
              for name, text in fact_field_constants().items()]
    lines += ["", "// The state of a job that was parked for this reason.", "struct ParkReason {", "  std::string_view reason;",
              "  JobState state;", "};", "inline constexpr ParkReason kParkReasons[] = {"]
    lines += [f"    {{{constant(f'park_reason_{reason}')}, JobState::{state}}}," for reason, state in states["park_reason"]["states"].items()]
    lines.append("};")
    write_header(folder / "jobs/transitions.h", "agent/model/states.toml and fields.toml", ["<string_view>", "", '"model/states.h"'], lines)


def write_facts(folder):
    states, fields = read_states(), read_fields()["fact"]["fields"]
    names = {name: text for text, name in fact_field_constants().items()}
    lines = ["constexpr auto kFactShapes = std::to_array<FactShape>({"]
    for kind, meaning in states["fact_kind"]["values"].items():
        row = [f"{{{names[name.rstrip('?')]}, FactField::{'optional_' * name.endswith('?')}{fields[name.rstrip('?')]['type']}}}"
               for name in states["fact_kind"]["fields"][kind].split()]
        lines.append(f"    {{FactKind::{kind}, {quote(meaning)}, {{{{{', '.join(row)}}}}}}},")
    lines.append("});")
    write(folder / "jobs/fact_table.inc", "\n".join(["// Generated from agent/model/states.toml and fields.toml.", *lines, ""]))


def visitor(record):
    lines = [f"template <IsRecord<{record['struct']}> R, class Visitor>", "void visit(R& record, Visitor visitor) {"]
    for name in record["fields"]:
        style = "json_object" if name in record.get("json_objects", []) else "json_any" if name in record.get("json_values", []) else ""
        lines.append(f"  visitor({quote(name)}, record.{record.get('members', {}).get(name, name)}"
                     f"{f', JsonTextStyle::{style}' if style else ''});")
    return [*lines, "}"]


def write_records(folder):
    records = read_fields()
    lines = [line for record in records.values() if "struct" in record for line in visitor(record)]
    write(folder / "model/record_visitors.inc", "\n".join(["// Generated from agent/model/fields.toml.", *lines, ""]))
    write_header(folder / "model/job_field_sets.h", "agent/model/fields.toml", ["<string_view>"],
                 ["// Fields of a job that only the store, a claim or an end may write.",
                  f"inline constexpr std::string_view kProtectedJobFields[] = {{{', '.join(map(quote, records['job']['protected']))}}};",
                  "// Fields that an end writes, in addition to `status` and `detail`. A retry and the next end delete all of them. A",
                  "// requeue and a replan delete only some.",
                  f"inline constexpr std::string_view kJobEndFields[] = {{{', '.join(map(quote, records['job']['end']))}}};"])


def write_rights(folder):
    rows = []
    for action, row in read_rights().items():
        grants = [f"Grant::{row['grants'].get(name, 'nothing')}" for name in (*ACCESS_LISTS, "creator")]
        lists = [quote(row["refusal_list"]), quote(row.get("creator_refusal_list", row["refusal_list"]))]
        rows.append(f"GrantRow{{{', '.join([f'Action::{action}', quote(row['name']), *grants, *lists])}}},\n")
    write(folder / "security/grant_table.inc", "// Generated from agent/security/rights.toml.\n" + "".join(rows))


def main(folder):
    folder = pathlib.Path(folder)
    write_keys(folder)
    write_limits(folder)
    write_states(folder)
    write_transitions(folder)
    write_facts(folder)
    write_records(folder)
    write_rights(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
