"""Checks that each submitted job ran exactly once, and that no other job ran."""
import collections
import dataclasses


class Skipped(Exception):
    """Raised by a workload that cannot be measured; the message is the reason. has_remaining_jobs: the queue of the
    system still contains jobs of the workload, so the system cannot be used by further workloads."""

    def __init__(self, reason, has_remaining_jobs=False):
        super().__init__(reason)
        self.has_remaining_jobs = has_remaining_jobs


@dataclasses.dataclass
class DeliveryVerdict:
    """Result of check_delivery(): the number of submitted jobs, and the ids of the jobs that did not run once."""

    sent: int
    lost: list
    duplicated: list
    unknown: list

    @property
    def is_exact(self):
        return not (self.lost or self.duplicated or self.unknown)

    def to_text(self):
        if self.is_exact:
            return f"{self.sent} of {self.sent} once"
        parts = [
            f"{len(ids)} {kind} ({', '.join(str(ident) for ident in sorted(ids)[:3])}{', ...' if len(ids) > 3 else ''})"
            for kind, ids in (("lost", self.lost), ("duplicated", self.duplicated), ("unknown", self.unknown))
            if ids
        ]
        return f"of {self.sent}: " + ", ".join(parts)


def check_delivery(sent_ids, started_ids):
    """Compares the ids of the submitted jobs with the ids of the started jobs. A job that started twice is listed twice
    in started_ids."""
    expected = set(sent_ids)
    starts = collections.Counter(started_ids)
    return DeliveryVerdict(
        len(expected),
        [ident for ident in expected if starts[ident] == 0],
        [ident for ident in expected if starts[ident] > 1],
        [ident for ident in starts if ident not in expected],
    )


class StartLedger:
    """Reads the file to which each job of the other systems appends a line "<id> <monotonic seconds>" when it starts. A
    job writes its line with one write() to an open file, which takes about 2 us."""

    def __init__(self, path):
        self.path = path
        self.offset = 0
        open(path, "ab").close()

    def read_new_entries(self):
        """Returns [(id, monotonic seconds)] of the lines since the previous call. An incomplete last line is returned by
        a later call."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
        complete_lines = data[: data.rfind(b"\n") + 1]
        self.offset += len(complete_lines)
        rows = (line.split() for line in complete_lines.splitlines())
        return [(int(ident), float(seconds)) for ident, seconds in rows]
