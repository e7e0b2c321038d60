"""The file of expected counts, the counting, and the report of differences. See compare.py."""
import os
import re
import subprocess
import tempfile

TIMES = 200
LEAST = 100  # differences are relative to at least this count, for counts close to zero
# Disables variants that the C library selects by the processor (memcpy and others), so every machine counts the plain
# x86-64 variants. The loader ignores names that a processor or a later libc does not know.
PLAIN = ["AVX", "AVX2", "AVX512F", "AVX512VL", "AVX512BW", "AVX_Fast_Unaligned_Load", "BMI1", "BMI2", "ERMS", "FSRM", "LZCNT",
         "MOVBE", "POPCNT", "RTM", "SSSE3", "SSE4_1", "SSE4_2", "Fast_Unaligned_Copy", "Fast_Unaligned_Load", "Prefer_No_VZEROUPPER"]
ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join("-" + name for name in PLAIN), "LC_ALL": "C", "PATH": "/usr/bin:/bin"}


class Expected:
    """counts.txt: lines of `#`, kept; `tolerance PERCENT`; `OPERATION INSTRUCTIONS`."""

    def __init__(self, text):
        self.comments, self.tolerance, self.counts = [], None, {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words:
                continue
            if words[0].startswith("#"):
                self.comments.append(line)
            elif len(words) == 2 and words[0] == "tolerance" and self.tolerance is None:
                self.tolerance = float(words[1])
            elif len(words) == 2 and words[1].isdigit() and words[0] not in self.counts:
                self.counts[words[0]] = int(words[1])
            else:
                raise ValueError(f"line {number}: {line!r} is neither a tolerance nor an operation with its count")
        if self.tolerance is None or not 0 < self.tolerance < 100:
            raise ValueError("no line `tolerance PERCENT`")

    def text(self, counts):
        width = max(len(name) for name in counts)
        lines = self.comments + [f"tolerance {self.tolerance:g}"] + [f"{name:<{width}} {count:>8}" for name, count in counts.items()]
        return "\n".join(lines) + "\n"


def compare(expected, got):
    """Returns rows (operation, expected, got, percent, error) for every operation of either; error is empty if the count is accepted."""
    rows = []
    for name in [*expected.counts, *(name for name in got if name not in expected.counts)]:
        before, now = expected.counts.get(name), got.get(name)
        if before is None:
            rows.append((name, None, now, None, "is not in the file"))
        elif now is None:
            rows.append((name, before, None, None, "was not counted"))
        else:
            percent = 100 * (now - before) / max(before, LEAST)
            wrong = ""
            if percent > expected.tolerance:
                wrong = "costs more"
            elif percent < -expected.tolerance:
                wrong = "costs less: record it"
            rows.append((name, before, now, percent, wrong))
    return rows


def table(rows):
    shown = [("operation", "expected", "got", "percent", "")]
    for name, before, now, percent, wrong in rows:
        shown.append((name, "-" if before is None else str(before), "-" if now is None else str(now),
                      "-" if percent is None else f"{percent:+.1f}", wrong))
    widths = [max(len(row[column]) for row in shown) for column in range(5)]
    return "\n".join(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}".rstrip()
                     for row in shown)


def per_operation(dump):
    """Returns (operation, instructions per run) of a file of callgrind, or None for the last file, which belongs to no operation."""
    name = re.search(r"^desc: Trigger: Client Request: (\S+)$", dump, re.M)
    if name is None:
        return None
    total = re.search(r"^(?:summary|totals): (\d+)", dump, re.M)
    if total is None:
        raise ValueError(f"no total of {name[1]} in what callgrind has written")
    return name[1], round(int(total[1]) / TIMES)


def count(program):
    """Returns operation -> instructions per run. The name, folder and environment of the program are always the same, because their
    lengths move the stack and thereby change the cost of copying."""
    folder, name = os.path.split(os.path.abspath(program))
    with tempfile.TemporaryDirectory(prefix="mycojobs-instructions-") as out:
        done = subprocess.run(["valgrind", "--quiet", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}/counts",
                               f"./{name}", str(TIMES)], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{name} under valgrind: exit {done.returncode}\n{done.stdout}{done.stderr}")
        counts = {}
        for file in sorted(os.listdir(out), key=lambda each: [int(part) for part in re.findall(r"\d+", each)]):
            with open(os.path.join(out, file), encoding="utf-8") as dump:
                found = per_operation(dump.read())
            if found is not None:
                counts[found[0]] = found[1]
    if list(counts) != done.stdout.split():
        raise RuntimeError(f"{name} did {done.stdout.split()}, callgrind has counted {list(counts)}")
    return counts
