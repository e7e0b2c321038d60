#!/usr/bin/python3
"""The tables that C++ and the scripts share: agent/store/keys.toml, agent/model/*.toml and agent/security/rights.toml."""

import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "agent/store/scripts"))

import assemble  # noqa: E402
import check_scripts  # noqa: E402
import tables  # noqa: E402

FACT = "add_fact(queue, job, claim, kFactKind"


class Scripts(unittest.TestCase):
    TABLE = check_scripts.Table()

    def error(self, text):
        try:
            check_scripts.check(self.TABLE, "a.lua", f"--# a:\n{text}\n")
        except SystemExit as error:
            return str(error)
        return ""

    def test_scripts_that_agree_with_the_tables_pass(self):
        for text in ("redis.call('HSET', job, 'status', kJobStatusStarted, 'detail', 'claimed')",
                     "local key = kClaimKey .. job\nredis.call('HDEL', key, 'until_ms', 'beat')",
                     "redis.call('HGET', 'context:' .. context, 'notify')",
                     "redis.call('HSET', kStoredBytesKey, caller, '1', 'all', '2')",
                     "redis.call('HDEL', kClaimKey .. job, 'approved:' .. name)",
                     "if claim.state == kJobStateLive and claim['end'] then return end",
                     FACT + "Requeued, kFactAttemptField, attempt)\nset_claim(job, claim, 'state', kJobStateQueued)",
                     "park_job(job, claim, queue, kJobStateHeld, kParkReasonHeld, 'held')"):
            self.assertEqual(self.error(text), "", text)

    def test_unknown_fields_are_rejected(self):
        for text, field in (("redis.call('HSET', job, 'status', kJobStatusStarted, 'detal', 'claimed')", "detal"),
                            ("redis.pcall('HGET', job, 'prioritiy')", "prioritiy"),
                            ("call_index('HMGET', kStoredBytesKey, caller, 'al')", "al"),
                            ("redis.call('HMGET', 'context:' .. context, 'admins', 'readres')", "readres"),
                            ("redis.call('HGET', kClaimKey .. job, 'script')", "script"),
                            ("local claim_key = kClaimKey .. job\nredis.call('HDEL', claim_key, 'script')", "script"),
                            ("set_claim(job, claim, 'state', kJobStateQueued, 'atempt', '1')", "atempt"),
                            ("redis.call('HGET', kClaimKey .. job, 'job')", "job"),
                            ("redis.call('HGET', kStoredBytesKey, 'changed')", "changed"),
                            ("redis.call('HGET', kFormatKey, 'formats')", "formats"),
                            ("redis.call('HGET', kJournalHeadsKey, 'queue')", "queue"),
                            ("if claim.untill_ms then return end", "untill_ms"),
                            ("if claim['ende'] then return end", "ende"),
                            ("local kRunFields = {'message', 'cancle'}", "cancle")):
            self.assertIn(f"{field} is not a field of", self.error(text), text)

    def test_error_names_file_and_line(self):
        self.assertIn("a.lua:3: detal is not a field of job ", self.error("local x = 1\nredis.call('HGET', job, 'detal')"))

    def test_functions_become_members_of_one_table(self):
        source = ("local later  -- defined below\nlocal function first(text) return later(text, 'later(1)') end\n"
                  "later = function(text) return text end\nreturn {first = first('x'), other.first, later}\n")
        self.assertEqual(assemble.move_functions(source),
                         "local fn = {first = 0, later = 0}\nfunction fn.first(text) return fn.later(text, 'later(1)') end\n"
                         "function fn.later(text) return text end\nreturn {first = fn.first('x'), other.first, fn.later}\n")

    def test_a_variable_with_the_name_of_a_function_is_rejected(self):
        for text in ("local first = 1", "for _, first in ipairs(list) do end", "local function other(first) end", "local a, first = 1, 2"):
            with self.assertRaisesRegex(SystemExit, "first: a function and a variable"):
                assemble.move_functions(f"local function first() end\n{text}\n")

    def test_functions_that_are_not_listed_are_created_at_their_first_use(self):
        with tempfile.TemporaryDirectory() as folder:
            lib = pathlib.Path(folder)
            (lib / "prelude.lua").write_text("local kBoth = 1\nlocal kRare = 2\nlocal function usual() return kBoth end\n"
                                             "local function rare() return kBoth + kRare end\n")
            self.assertEqual(assemble.assemble(lib, [], "--# at once: usual\nreturn usual() + rare()\n"),
                             "local fn = {usual = 0}\nlocal kBoth = 1\nfunction fn.usual() return kBoth end\n"
                             "setmetatable(fn, {__index = function(_, function_name)\nsetmetatable(fn, nil)\nlocal kRare = 2\n"
                             "function fn.rare() return kBoth + kRare end\nreturn fn[function_name]\nend})\n"
                             "return fn.usual() + fn.rare()\n")
            with self.assertRaisesRegex(SystemExit, "rarely: the script does not use"):
                assemble.assemble(lib, [], "--# at once: rarely\nreturn usual()\n")

    def test_commands_on_hashes_need_a_hash(self):
        self.assertIn("mj:leases is not a hash", self.error("redis.call('HGET', kLeasesKey, 'at')"))

    def test_literal_states_are_rejected(self):
        for text in ("if claim.state == 'live' then return end", "if status ~= 'finished' then return end",
                     "redis.call('HSET', job, 'status', 'started')", "set_claim(job, claim, 'state', 'queued')",
                     "set_claim(job, claim, 'state', is_delayed and 'delayed' or 'queued')",
                     "add_fact(queue, job, claim, 'requeued', kFactAttemptField, attempt)"):
            self.assertIn("use the constant of states.toml", self.error(text), text)

    def test_facts_have_the_fields_of_their_kind(self):
        self.assertIn("a fact requeued does not have the field d", self.error(FACT + "Requeued, 'a', attempt, 'd', '1')"))
        self.assertIn("a fact retry lacks the field due", self.error(FACT + "Retry, kFactClaimIdField, id, kFactEpochField, epoch)"))

    def test_states_follow_from_facts(self):
        text = FACT + "Requeued, kFactAttemptField, attempt)\nset_claim(job, claim, 'state', kJobStateLive)"
        self.assertIn("a job in state live after a fact requeued", self.error(text))
        self.assertIn("parked in kJobStateHeld for kParkReasonQuota",
                      self.error("park_job(job, claim, queue, kJobStateHeld, kParkReasonQuota, 'quota')"))

    def test_constants_are_inserted_as_values(self):
        constants = tables.script_constants()
        self.assertEqual(assemble.insert_constants("x(kJobStateLive, kMaxPriority)", constants, "a"), "x('live', 100)")
        self.assertEqual(assemble.insert_constants("local kPage = 7\nx(kPage)", constants, "a"), "local kPage = 7\nx(kPage)")
        for text in ("x(kJobStateLiv)", "x(kClaimsKey)", "x(kPage)"):
            with self.assertRaises(SystemExit):
                assemble.insert_constants(text, constants, "a")


class Keys(unittest.TestCase):
    def test_fields_of_a_hash_are_the_entries_outside_parentheses(self):
        for content, fields in (("state (a, b), end (digest; (x)); (of both also) left", {"state", "end", "left"}),
                                ("log:<job> (lines), i <field>, rev", {"log:", "i ", "rev"}),
                                ("<caller> (its jobs), all", {"all"}), ("<actor> <key> (of an event)", set())):
            self.assertEqual(tables.key_fields({"pattern": "mj:a", "content": content}), fields, content)

    def test_content_of_a_hash_has_only_fields(self):
        for content in ("state, of a message also left", "at: time of the latest check", "state,, left", "name<id>", "a hash (id)"):
            with self.assertRaises(SystemExit, msg=content):
                tables.key_fields({"pattern": "mj:a", "content": content})


class Sources(unittest.TestCase):
    def test_fields_that_cpp_reads_are_in_the_tables(self):
        keys = {name: tables.key_fields(key) for name, key in tables.read_keys().items() if key["type"] == "hash"}
        records = {name: {*record["fields"], *record.get("unknown", {})} for name, record in tables.read_fields().items()}
        reads = ((r'field_of\([\w.>*-]*\b(?:mark|state), "(\w+)"\)', keys["message"] | keys["flow"], 50),
                 (r'\bhas_(?:value|field)\("(\w+)"', keys["message"], 15),
                 (r'\{"(\w+)", \[\]\(ClaimView', keys["claim"], 20),
                 (r'\bget_field\(situation, "(\w+)"\)', records["job"], 15),
                 (r'(?:field_of|number_of)\([^,()]*(?:record|unknown|\bjob)\b, "(\w+)"\)', set().union(*records.values()), 40))
        sources = {path: path.read_text() for path in (ROOT / "agent").rglob("*.cpp")}
        for pattern, fields, min_count in reads:
            found = [(str(path), name) for path, text in sources.items() for name in re.findall(pattern, text)]
            self.assertGreaterEqual(len(found), min_count, pattern)
            self.assertEqual([(path, name) for path, name in found if name not in fields], [], pattern)

    def test_cpp_compares_stored_states_with_constants(self):
        literal = re.compile(r'(?:\bclaim\.(?:state|reason)|\bget_flow_state\([^()]*\)|\("(?:state|answer)"\)|\bexpected_state_) [=!]= "'
                             r'|has_value\("(?:state|answer)", "')
        found = [(str(path), match[0]) for path in (ROOT / "agent").rglob("*.cpp") for match in literal.finditer(path.read_text())]
        self.assertEqual(found, [])


class Documents(unittest.TestCase):
    PROTOCOL = (ROOT / "docs/protocol.md").read_text()

    def test_protocol_has_the_statuses(self):
        for section in ("job_status", "flow_status", "message_status", "node_status"):
            state = tables.read_states()[section]
            self.assertIn(f"- {state['enum']}: `{' '.join(state['values'])}`\n", self.PROTOCOL)

        for section in ("message_state", "flow_state"):
            self.assertIn(f"({', '.join(tables.read_states()[section]['values'])})", self.PROTOCOL)

    def test_protocol_has_the_fields_of_jobs(self):
        words = set(re.findall(r"\w+", re.split("(?m)^## ", self.PROTOCOL)[1]))
        job = tables.read_fields()["job"]["fields"]
        self.assertEqual(sorted(set(job) - words), [])


if __name__ == "__main__":
    unittest.main()
