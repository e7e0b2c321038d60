"""Exact delivery: of the jobs that were sent, each once, and no other."""
import collections
import dataclasses


class Skipped(Exception):
    """Not measured, and why: no figure, and no verdict on what was not waited for. left: jobs are still queued."""

    def __init__(self, why, left=False):
        super().__init__(why)
        self.left = left


@dataclasses.dataclass
class Verdict:
    """What a check of one workload has found."""

    sent: int
    lost: list
    doubled: list
    unknown: list

    @property
    def exact(self):
        return not (self.lost or self.doubled or self.unknown)

    def text(self):
        if self.exact:
            return f"{self.sent} of {self.sent} once"
        parts = [
            f"{len(ids)} {word} ({', '.join(str(each) for each in sorted(ids)[:3])}{', ...' if len(ids) > 3 else ''})"
            for word, ids in (("lost", self.lost), ("doubled", self.doubled), ("unknown", self.unknown))
            if ids
        ]
        return f"of {self.sent}: " + ", ".join(parts)


def check(sent, seen):
    """Compares the ids that were sent (each once) with those that ran, as often as they ran."""
    expected = set(sent)
    times = collections.Counter(seen)
    return Verdict(
        len(expected),
        [each for each in expected if times[each] == 0],
        [each for each in expected if times[each] > 1],
        [each for each in times if each not in expected],
    )


class Ledger:
    """The file in which each job of a peer writes "id moment" as it starts: one write to an open file, about 2 us."""

    def __init__(self, path):
        self.path = path
        self.at = 0
        open(path, "ab").close()

    def news(self):
        """[(id, monotonic seconds)] since the last call. A line that is not yet whole is left for the next one."""
        with open(self.path, "rb") as file:
            file.seek(self.at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        rows = (line.split() for line in whole.splitlines())
        return [(int(ident), float(moment)) for ident, moment in rows]
