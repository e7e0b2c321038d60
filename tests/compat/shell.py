#!/usr/bin/python3
"""Runs shell idioms, ten uses of each of several common Debian programs, and the test suites of bats-core and shunit2: each as a job
whose policy permits programs (exec), and outside. Prints the differences with their causes; `--write` writes bench/shell.md.

The suites are fetched from Debian's source packages with apt, into a temporary folder outside the repository. `--sources FOLDER`
uses unpacked trees instead: FOLDER/bats and FOLDER/shunit2.

Usage: ./dev compat --shell [--write] [--sources FOLDER] [SUITE...]   Exit code 1: a difference has no explanation.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LISTS = os.path.join(HERE, "shell")
NOBODY = 65534

# One group of jobs: a script type with its policy, as an operator configures it.
CONFIGURATION = """
[executors.bash]
command = ["/bin/bash", "{{script}}"]
[executors.bash.policy]
memory = "1 GiB"
disk = "512 MiB"
file_size = "512 MiB"
pids = 256
"output.keep" = "8 MiB"
"fs.read" = [{folder}]
[executors.compiling]
command = ["/bin/bash", "{{script}}"]
[executors.compiling.policy]
memory = "1 GiB"
disk = "512 MiB"
pids = 256
"syscalls.add" = ["mmap", "mprotect", "pkey_mprotect"]
"""

SUITES = {"idioms": "bash", "programs": "bash", "compiled_at_run_time": "compiling", "bats": "bash", "shunit2": "bash"}

# Scripts of the fetched suites. Their output is read by parse_tap() and parse_shunit2().
BATS = 'cp -r "$SOURCES/bats" bats && cd bats && bin/bats --tap test 2>&1\n'
SHUNIT2 = """cp -r "$SOURCES/shunit2" shunit2 && cd shunit2 && for shell in sh bash; do for file in *_test.sh; do
  echo "file $file with $shell"
  SHUNIT_COLOR=none $shell "$file" 2>&1
done; done
"""

# Explanations for entries with another result in a job: suite and name, output of the job, and reason. The first match
# counts. "policy": the operator can grant it. "design": a property of all jobs; docs/sandbox.md explains it.
EXPLANATIONS = [
    ("idioms tailf", r"inotify cannot be used", "policy: inotify is refused with EMFILE, since jobs of a context share its limits; tail polls"),
    ("compiled_at_run_time node10", r"EMFILE", "policy: inotify is refused with EMFILE, since jobs of a context share its limits; use fs.watchFile"),
    ("idioms statf", r"tmpfs", "design: /tmp of a job is in memory"),
    ("idioms (pypty|script)", r"pty|pseudo-terminal", "design: a job has no terminals"),
    ("idioms devtty", r"Read-only", "design: a job has no terminal, and /dev is read-only"),
    ("idioms (free|uptime|cpuinfo|pgrepf)", r"", "design: /proc of a job shows only its own processes"),
    ("idioms (hostname|whoami|getent)", r"mycojobs|job", "design: a job has its own host name and user"),
    ("idioms ulimit", r"256", "policy: open_files"),
    ("idioms devtcp|programs (curl5|curl7)|compiled_at_run_time node9", r"Address family|socket|\b(7|failed)$", "policy: no network (net)"),
    ("idioms (ionice|renice|chrt)", r"Operation not permitted",
     "policy: a job has the priority of its agent; it may lower its own priority (nice), but neither that of a process by number nor the scheduling or I/O class"),
    ("idioms (node|nodeos)", r"rc=133|Fatal error", "policy: no memory that is writable and executable; docs/executors/command.md has the policy for node"),
    ("idioms gpg", r"agent|socket|Address family", "policy: no UNIX sockets, which gpg needs to reach its agent"),
    ("idioms dpkg", r"no packages found", "design: /var/lib/dpkg does not exist in a job"),
    ("programs (git7|git10)", r"JIT", "policy: no memory that is writable and executable, and git 2.39 works without it only for patterns that begin with (*NO_JIT)"),
    ("programs r8", r"JIT", "policy: no memory that is writable and executable; R prints a warning and continues"),
    ("compiled_at_run_time java7", r"rc=0 $", "policy: jshell starts a second Java program and connects to it over TCP (net)"),
    ("programs php5", r"JIT", "policy: no memory that is writable and executable; php -d pcre.jit=0 does not ask for it"),
    ("programs php[0-9]+", r"undefined function", "design: /etc/php may contain passwords and is omitted, so no extension is loaded; php -d extension=posix loads one"),
    ("programs ffmpeg[0-9]+", r"insecure memory", "policy: no locked memory (RLIMIT_MEMLOCK is 0); libgcrypt warns on stderr"),
    ("programs gcc5", r"LeakSanitizer", "policy: the leak check of AddressSanitizer needs ptrace; set ASAN_OPTIONS=detect_leaks=0"),
]


def parse_list(output):
    return dict(re.findall(r"^t (\S+): (rc=.*)$", output, re.M))


def parse_tap(output):
    """"ok 3 name in 2ms # skip reason" -> name: ok."""
    found = {}
    for failed, name, skip in re.findall(r"^(not )?ok \d+ (.*?)(?: in \d+ms)?( # skip.*)?$", output, re.M):
        found[name] = "skipped" if skip else "not ok" if failed else "ok"
    return found


def parse_shunit2(output):
    """A test fails if a line that starts with ASSERT: follows its name."""
    found, file, test = {}, "", None
    for line in output.splitlines():
        if line.startswith("file "):
            file, test = line[5:], None
        elif re.fullmatch(r"test\w+", line):
            test = f"{file}: {line}"
            found[test] = "ok"
        elif line.startswith("ASSERT:") and test:
            found[test] = line[:160]
        elif line.startswith("Ran "):
            found[f"{file}: all"] = line
    return found


def parser_of(suite):
    return {"bats": parse_tap, "shunit2": parse_shunit2}.get(suite, parse_list)


def script_of(suite):
    texts = []
    for name in ["prelude"] + ([suite] if suite not in ("bats", "shunit2") else []):
        with open(os.path.join(LISTS, f"{name}.sh"), encoding="utf-8") as file:
            texts.append(file.read())
    return "".join(texts) + {"bats": BATS, "shunit2": SHUNIT2}.get(suite, "")


def normalized(text, folder):
    """Removes data that differs between runs: the folder, process ids, times."""
    text = text.replace(folder, "/tmp")
    for pattern, instead in ((r"==\d+==", "==N=="), (r"line (\d+): +\d+ (Killed|Aborted|Segmentation)", r"line \1: N \2"), (r"after \d+ ms", "after N ms")):
        text = re.sub(pattern, instead, text)
    return text


def run(command, folder, environment, timeout):
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, start_new_session=True)
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def outside(suite, folder, sources, timeout):
    """Runs as an unprivileged user, because jobs are not root either."""
    home = os.path.join(folder, "outside")
    os.mkdir(home)
    script = os.path.join(home, "script")
    with open(script, "w", encoding="utf-8") as file:
        file.write(script_of(suite))
    command = ["/bin/bash", script]
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
    environment = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "HOME": home, "TMPDIR": home, "SOURCES": sources}
    out, _ = run(command, home, environment, timeout)
    return parser_of(suite)(normalized(out, home))


def inside(suite, mycojobs, folder, sources, timeout):
    script = os.path.join(folder, "script.sh")
    with open(script, "w", encoding="utf-8") as file:
        file.write(script_of(suite))
    configuration = os.path.join(folder, "agent.toml")
    with open(configuration, "w", encoding="utf-8") as file:
        file.write(CONFIGURATION.format(folder=f'"{sources}"' if sources else ""))
    command = [mycojobs, "sandbox", "run", script, "--type", SUITES[suite], "--config", configuration, "--timeout", f"{timeout}s",
               "--state-dir", os.path.join(folder, "state"), "--log-level", "error", "--env", f"SOURCES={sources}"]
    out, err = run(command, "/", {"PATH": "/usr/bin:/bin"}, timeout + 60)
    found = parser_of(suite)(normalized(out, "/tmp"))
    if not found:
        sys.exit(f"{suite}: the job printed no results; expected entries, found: {(err or out).strip()[-1000:]}")
    return found


def compare(suite, mycojobs, sources, timeout=3600):
    """Returns the entries, and the differences: name -> results outside and in the job."""
    with tempfile.TemporaryDirectory(prefix="mycojobs-compat-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        there = outside(suite, folder, sources, timeout)
        here = inside(suite, mycojobs, folder, sources, timeout)
    differ = {name: (end, here.get(name, "absent")) for name, end in there.items() if here.get(name) != end}
    return {"suite": suite, "entries": len(there), "differ": differ}


def explanation_of(suite, name, end):
    for entries, printed, reason in EXPLANATIONS:
        if re.fullmatch(entries, f"{suite} {name}") and re.search(printed, end):
            return reason
    return None


def fetch(folder):
    """Fetches the source packages with separate package lists and a cache below `folder`. They are verified with Debian's signatures."""
    with open("/etc/os-release", encoding="utf-8") as file:
        release = re.search(r"^VERSION_CODENAME=(\w+)$", file.read(), re.M).group(1)
    lists = os.path.join(folder, "sources.list")
    with open(lists, "w", encoding="utf-8") as file:
        file.write(f"deb-src {os.environ.get('MYCOJOBS_DEBIAN_MIRROR', 'http://deb.debian.org/debian')} {release} main\n")
    settings = [f"Dir::Etc::sourcelist={lists}", "Dir::Etc::sourceparts=-", f"Dir::State::lists={folder}/lists", f"Dir::Cache={folder}/cache",
                "APT::Sandbox::User=root"]
    apt = ["apt-get", "-qq", *(word for setting in settings for word in ("-o", setting))]
    subprocess.run([*apt, "update"], cwd=folder, check=True)
    for package in ("bats", "shunit2"):
        subprocess.run([*apt, "source", "--download-only", package], cwd=folder, check=True)
        description = next(name for name in os.listdir(folder) if name.startswith(f"{package}_") and name.endswith(".dsc"))
        subprocess.run(["dpkg-source", "--no-check", "-x", description, package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder


def sources_for(options, folder):
    """Returns a folder with the sources that all users can read, for granting to jobs; "" if no suite needs it."""
    if not {"bats", "shunit2"} & set(options.suites):
        return ""
    os.mkdir(os.path.join(folder, "fetched"))
    fetched = options.sources or fetch(os.path.join(folder, "fetched"))
    readable = os.path.join(folder, "sources")
    for package in ("bats", "shunit2"):
        shutil.copytree(os.path.join(fetched, package), os.path.join(readable, package), symlinks=True)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    return readable


def cell(text):
    return text[:100].replace("|", "\\|").replace("`", "'")


def page(results):
    lines = ["# Shell scripts and Debian's programs as jobs", "",
             "`./dev compat --shell` writes this page. It runs shell idioms, ten uses each of common Debian programs (tests/compat/shell/), and the test suites of",
             "bats-core and shunit2 from Debian's source packages. Each list runs as a job of `/bin/bash` whose policy allows programs, and outside of a job as an",
             "ordinary user. The list `compiled_at_run_time` (node, java) has the policy of [node](../docs/executors/command.md). The exit codes and outputs are compared.", "",
             "| list | entries | differences |", "|---|---|---|"]
    lines += [f"| {each['suite']} | {each['entries']} | {len(each['differ'])} |" for each in results]
    lines += ["", "## Differences", "", "| entry | outside | in a job | reason |", "|---|---|---|---|"]
    for each in results:
        for name, (there, here) in each["differ"].items():
            why = explanation_of(each["suite"], name, here) or "**unexplained**"
            lines.append(f"| {each['suite']} {cell(name)} | `{cell(there)}` | `{cell(here)}` | {why} |")
    return "\n".join(lines) + "\n"


def report(result):
    print(f"{result['suite']}: {len(result['differ'])} of {result['entries']} entries differ", flush=True)
    explained = True
    for name, (there, here) in result["differ"].items():
        why = explanation_of(result["suite"], name, here)
        explained = explained and why is not None
        print(f"  {name}: {why or 'UNEXPLAINED'}" + ("" if why else f"\n    outside: {there}\n    in a job: {here}"), flush=True)
    return explained and result["entries"] > 0


def main():
    parser = argparse.ArgumentParser(description="Shell scripts and common programs, as jobs and outside")
    parser.add_argument("--mycojobs", default=os.path.join(ROOT, "build/bin/mycojobs"))
    parser.add_argument("--sources", help="folder with unpacked sources, bats and shunit2, instead of Debian's packages")
    parser.add_argument("--write", action="store_true", help="write bench/shell.md; only with all suites")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {' '.join(SUITES)}")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"unknown suite {', '.join(sorted(unknown))}; expected one of {', '.join(SUITES)}")
    if options.write and options.suites:
        parser.error("--write needs all suites; name none")
    options.suites = options.suites or list(SUITES)
    with tempfile.TemporaryDirectory(prefix="mycojobs-compat-sources-", dir="/var/tmp") as folder:
        sources = sources_for(options, folder)
        results = [compare(suite, os.path.abspath(options.mycojobs), sources) for suite in options.suites]
    explained = [report(result) for result in results]
    if options.write:
        with open(os.path.join(ROOT, "bench/shell.md"), "w", encoding="utf-8") as file:
            file.write(page(results))
    return 0 if all(explained) else 1


if __name__ == "__main__":
    sys.exit(main())
