"""The results of a run: reads, queries and writes them."""
import json
import os
import statistics


class Results:
    """The content of a results file: {machine, versions, settings, rows, problems}. run.py describes a row.

    The functions with a parameter aof use the rows with this setting. None selects the rows with the AOF on, or all rows
    of a run without the AOF."""

    def __init__(self, data):
        self.data = data
        self.rows = data["rows"]
        self.aof_modes = sorted({row["aof"] for row in self.rows}, reverse=True)  # True first

    def find_rows(self, workload, system=None, aof=None, variant=None):
        """Returns the rows of a workload. None as an argument selects all values of the field."""
        return [
            row
            for row in self.rows
            if row["workload"] == workload
            and (system is None or row["system"] == system)
            and (aof is None or row["aof"] == aof)
            and (variant is None or row["variant"] == variant)
        ]

    def find_values(self, workload, system, field, aof=None, variant=None):
        """Returns the values of a figure in all rounds. field: a name or a path such as "mycojobs.p50_ms"."""
        if aof is None and self.aof_modes:
            aof = self.aof_modes[0]
        values = []
        for row in self.find_rows(workload, system, aof, variant):
            value = row.get("figures")
            for part in field.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                values.append(value)
        return values

    def median(self, workload, system, field, aof=None, variant=None):
        """Returns the median of find_values(), or None without a value."""
        values = self.find_values(workload, system, field, aof, variant)
        return statistics.median(values) if values else None

    def find_best_variant(self, workload, system, field):
        """Returns the variant with the highest median of the field, or None without a value."""
        variants = {row["variant"] for row in self.find_rows(workload, system)}
        medians = {variant: self.median(workload, system, field, variant=variant) for variant in variants}
        return max((name for name in medians if medians[name] is not None), key=medians.get, default=None)

    def highest_median(self, workload, system, field):
        """Returns the median of the field in the best variant, or None without a value."""
        best = self.find_best_variant(workload, system, field)
        return None if best is None else self.median(workload, system, field, variant=best)

    def summarize_foreign_cpu(self):
        """Returns (median, maximum) of the fraction of the CPU time that other processes used during the workloads."""
        fractions = [row["others"] for row in self.rows if "others" in row]
        return (statistics.median(fractions), max(fractions)) if fractions else (0.0, 0.0)

    def find_skip_reason(self, workload, system, aof=None, variant=None):
        """Returns the reason why a workload has no figures, or an empty text."""
        for row in self.find_rows(workload, system, aof, variant):
            if row.get("skipped") or row.get("error"):
                return row.get("skipped") or f"failed: {row['error'][:80]}"
        return ""

    def save(self, path):
        """Writes one row per line, so that files can be compared with diff."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        head = {key: value for key, value in self.data.items() if key != "rows"}
        lines = ",\n".join("  " + json.dumps(_round_floats(row)) for row in self.rows)
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n")
        return path


def load(path):
    with open(path, encoding="utf-8") as file:
        return Results(json.load(file))


def _round_floats(value):
    """Rounds all numbers of a JSON value to six digits, which exceeds the precision of the measurements."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _round_floats(member) for key, member in value.items()}
    return [_round_floats(member) for member in value] if isinstance(value, list) else value
