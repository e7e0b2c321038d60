"""The rows of a run, asked by workload and system; and where they are kept."""
import json
import os
import statistics


class Results:
    """data: {machine, versions, settings, rows, problems}, as the JSON file has it."""

    def __init__(self, data):
        self.data = data
        self.rows = data["rows"]
        self.modes = sorted({row["aof"] for row in self.rows}, reverse=True)  # AOF on first

    def rows_of(self, workload, system=None, aof=None, variant=None):
        return [
            row
            for row in self.rows
            if row["workload"] == workload
            and (system is None or row["system"] == system)
            and (aof is None or row["aof"] == aof)
            and (variant is None or row["variant"] == variant)
        ]

    def values(self, workload, system, field, aof=None, variant=None):
        """A figure of all rounds; field may be a path: "mycojobs.p50_ms". If aof is not said: on, if it was measured so."""
        if aof is None and self.modes:
            aof = self.modes[0]
        found = []
        for row in self.rows_of(workload, system, aof, variant):
            value = row.get("figures")
            for part in field.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found.append(value)
        return found

    def median(self, *which, **more):
        found = self.values(*which, **more)
        return statistics.median(found) if found else None

    def best(self, workload, system, field):
        """The variant with the highest median of the field, or None."""
        variants = {row["variant"] for row in self.rows_of(workload, system)}
        medians = {each: self.median(workload, system, field, variant=each) for each in variants}
        return max((each for each in medians if medians[each] is not None), key=medians.get, default=None)

    def highest(self, workload, system, field):
        best = self.best(workload, system, field)
        return None if best is None else self.median(workload, system, field, variant=best)

    def others(self):
        """(median, most) of what others used of the machine, while it was watched."""
        found = [row["others"] for row in self.rows if "others" in row]
        return (statistics.median(found), max(found)) if found else (0.0, 0.0)

    def why_not(self, workload, system, aof=None, variant=None):
        """Why there is no figure: a reason, or ""."""
        for row in self.rows_of(workload, system, aof, variant):
            if row.get("skipped") or row.get("error"):
                return row.get("skipped") or f"failed: {row['error'][:80]}"
        return ""

    def save(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        head = {key: value for key, value in self.data.items() if key != "rows"}
        # A row a line: files of some hundred lines that can be compared.
        lines = ",\n".join("  " + json.dumps(_rounded(row)) for row in self.rows)
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n")
        return path


def load(path):
    with open(path, encoding="utf-8") as file:
        return Results(json.load(file))


def _rounded(value):
    """Six digits: no clock here knows more."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
