#!/usr/bin/python3
"""The comparison can fail, and parses its input correctly."""
import unittest

from counts import TIMES, Expected, compare, per_operation, table

FILE = """# why
tolerance 5
a.b 1000
c.d   20
"""


def wrongs(got):
    return {name: wrong for name, _, _, _, wrong in compare(Expected(FILE), got) if wrong}


class Comparison(unittest.TestCase):
    def test_values_within_the_tolerance_pass(self):
        self.assertEqual(wrongs({"a.b": 1050, "c.d": 19}), {})

    def test_an_operation_that_costs_more_is_named(self):
        self.assertEqual(wrongs({"a.b": 1051, "c.d": 20}), {"a.b": "costs more"})

    def test_a_gain_must_be_recorded(self):
        self.assertEqual(wrongs({"a.b": 949, "c.d": 20}), {"a.b": "costs less: record it"})

    def test_file_and_program_must_name_the_same_operations(self):
        self.assertEqual(wrongs({"a.b": 1000, "e.f": 1}), {"c.d": "was not counted", "e.f": "is not in the file"})

    def test_the_table_names_expected_got_and_percent(self):
        self.assertIn("a.b            1000  1100    +10.0  costs more", table(compare(Expected(FILE), {"a.b": 1100, "c.d": 20})))

    def test_writing_keeps_comments_and_tolerance(self):
        written = Expected(Expected(FILE).text({"a.b": 7, "x.y": 8}))
        self.assertEqual((written.comments, written.tolerance, written.counts), (["# why"], 5.0, {"a.b": 7, "x.y": 8}))

    def test_invalid_line_is_rejected(self):
        for text in (FILE + "a.b 12\n", FILE + "e.f -1\n", FILE + "e.f\n", "a.b 1\n"):
            with self.assertRaises(ValueError):
                Expected(text)

    def test_dump_contains_operation_and_total(self):
        self.assertEqual(per_operation(f"desc: Trigger: Client Request: a.b\nevents: Ir\nsummary: {7 * TIMES}\n"), ("a.b", 7))
        self.assertIsNone(per_operation("desc: Trigger: Program termination\nsummary: 1\n"))
        with self.assertRaises(ValueError):
            per_operation("desc: Trigger: Client Request: a.b\n")


if __name__ == "__main__":
    unittest.main()
