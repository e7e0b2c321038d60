"""What a soak looks at: memory, descriptors, threads, cgroups, mounts, zombies, files, Redis. One sample is a dictionary, series -> number."""
import os

NAMES = {"mycojobs": "agent", "mycojobs-guard": "guardian", "mycojobs-launch": "launcher", "redis-server": "redis"}
ZYGOTE = "mj-"  # prefix of the names of script hosts
MIB = 1 << 20


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # a process that has just ended


def count(folder):
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def children(pid):
    return [int(child) for task in tasks(pid) for child in read(f"/proc/{pid}/task/{task}/children").split()]


def tasks(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


class Watch:
    def __init__(self, agent):
        self.agent, self.cgroups = agent, None

    def long_lived(self):
        """Agent, guardian, launcher, Redis, zygotes: (name, pid); and how many live below the zygotes, how many are zombies."""
        found, below, zombies, left = [], 0, 0, [(self.agent.process.pid, False)]
        while left:
            pid, of_zygote = left.pop()
            stat = read(f"/proc/{pid}/stat")
            if not stat:
                continue
            comm, state = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2]
            zombies += state == "Z"
            zygote = not of_zygote and comm.startswith(ZYGOTE)
            if of_zygote:
                below += 1
            elif zygote or comm in NAMES:
                found.append((NAMES.get(comm, "zygote " + comm[len(ZYGOTE):]), pid))
            left += [(child, of_zygote or zygote) for child in children(pid)]
        return found, below, zombies

    def cgroup_folders(self, launcher):
        """Below the launcher's own, in every hierarchy. Where they are does not change while it lives."""
        if self.cgroups is None or self.cgroups[0] != launcher:
            roots = []
            for folder, names, _ in os.walk("/sys/fs/cgroup"):
                mine = [name for name in names if name.startswith("mycojobs-") and name.split("-")[2:3] == [str(launcher)]]
                roots += [os.path.join(folder, name) for name in mine]
                names[:] = [name for name in names if name not in mine]
            self.cgroups = (launcher, roots)
        return sum(1 for root in self.cgroups[1] for _ in os.walk(root)) - len(self.cgroups[1])

    def redis(self, series):
        lines = self.agent.redis.call("INFO").decode().splitlines()
        info = dict(line.split(":", 1) for line in lines if ":" in line)
        kept = self.agent.redis.call("ZCARD", "mj:ended")
        series["redis used, MiB"] = int(info["used_memory"]) / MIB
        series["redis clients"] = int(info["connected_clients"])
        series["redis keys"] = self.agent.redis.call("DBSIZE")
        series["redis ended jobs kept"] = kept
        if kept:
            series["redis bytes a job kept"] = (int(info["used_memory"]) - int(info["used_memory_startup"])) / kept
            series["redis keys a job kept"] = series["redis keys"] / kept

    def sample(self):
        found, below, zombies = self.long_lived()
        series = {"processes below zygotes": below, "zombies": zombies, "zygotes": 0}
        for name, pid in found:
            rollup = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in read(f"/proc/{pid}/smaps_rollup").splitlines()[1:]}
            if not rollup:
                continue
            values = {"anonymous, MiB": rollup["Anonymous"], "private, MiB": rollup["Private_Clean"] + rollup["Private_Dirty"], "pss, MiB": rollup["Pss"],
                      "descriptors": count(f"/proc/{pid}/fd"), "threads": len(tasks(pid))}
            if name != "redis":  # Redis reports its memory itself; copies during a rewrite of its file are not growth
                values["mounts"] = len(read(f"/proc/{pid}/mountinfo").splitlines())
            else:
                del values["anonymous, MiB"], values["private, MiB"], values["pss, MiB"]
            series["zygotes"] += name.startswith("zygote")
            if name == "launcher":
                series["cgroups of the launcher"] = self.cgroup_folders(pid)
            for what, value in values.items():  # the larger value of a zygote and its successor
                series[f"{name} {what}"] = max(value, series.get(f"{name} {what}", 0))
        series["files in the state folder"] = sum(len(files) for _, _, files in os.walk(self.agent.state))
        self.redis(series)
        return series
