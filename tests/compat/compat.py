#!/usr/bin/python3
"""Runs CPython's own test suite (Debian's libpython3.11-testsuite): each module as a job in the sandbox with the default policy, and by
/usr/bin/python3 outside. Prints the differences with their causes; `--write` writes bench/compat.md.

Usage: ./dev compat [--jobs N] [--timeout SECONDS] [--write] [MODULE...]   Exit code 1: no policy explains the difference of a test.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = "/usr/bin/python3"
MARK = b"\x1ecompat "
# Windows modules, and modules that need a display.
LEFT_OUT = re.compile(r"test_(idle|tk|tkinter|ttk|turtle|winreg|winsound|winconsoleio|winapi|wmi|msilib|startfile|launcher|gdb|tix|tools|regrtest)")

# Causes of differences between a job and a run outside. Each pattern is matched against the name and the error of a
# test; the first match counts. Causes that start with "policy" are in the default policy, and a grant or a higher limit
# removes them. "design" is a property of all jobs. "ours" is a known defect that is not fixed yet.
CAUSES = [
    ("policy: no process (exec)", r"fork_exec|os\.fork\(|forkpty|posix_spawn|TestPosixSpawn|os\.spawn|_spawnvef|os\.exec|^test_(cmd_line|tracemalloc): PermissionError|failed: Operation not permitted"),
    ("policy: system calls that are refused (syscalls.add)", r"F_SETPIPE_SZ|test_fcntl_64_bit|MmapTests\.test_access_parameter|test_setres[ug]id|test_prlimit|SendRecvFds"),
    ("policy: no network (net)", r"Errno 97|Address family not supported|IPv6|dualstack|no attribute 'server'|getaddrinfo|gaierror|Network is unreachable|name lookup failure|sockets\[0\]\.getsockname"),
    ("policy: the system is read-only", r"Read-only file system|Errno 30"),
    ("policy: memory", r"over the memory limit|MemoryError"),
    ("policy: processes and threads", r"can't start new thread"),
    ("policy: size of files", r"Errno 27|largefile support|test_fsize_ismax"),
    ("design: no terminals", r"pty devices|openpty|Pseudo-terminals|test_tcsetpgrp"),
    ("design: nothing runs from /job (exec)", r"TestWhich"),
    ("policy: no splice, no sendfile (syscalls.add)", r"test_splice|os\.sendfile\(\) not supported"),
    ("design: fsync does nothing, whatever it is given", r"TestInvalidFD\.test_f(data)?sync"),
    ("design: no extended attributes", r"extended attribute"),
    ("design: locale C, and UTF-8 by Python's own mode", r"Locale cannot encode|LC_CTYPE locale is 'C'"),
    # The test waits for output of a child that could not be forked.
    ("policy: no process (exec)", r"^test_thread: .*over its time limit"),
    # The programs of the tests did not write their output.
    ("policy: no process (exec)", r"find_library|Unable to find C library|could not find libc|lib_gl|gcc, needed|test_mailcap|test_pipes|test_json\.test_tool|test_doctest\.test_CLI|requires (ifconfig|ip)\b"),
]


def modules():
    where = subprocess.run([PYTHON, "-I", "-c", "import test; print(test.__path__[0])"], capture_output=True, text=True, check=True).stdout.strip()
    names = {name.removesuffix(".py") for name in os.listdir(where) if name.startswith("test_")}
    return sorted(name for name in names if "." not in name and not LEFT_OUT.match(name))


def script_of(name):
    with open(os.path.join(HERE, "module_run.py"), encoding="utf-8") as file:
        return f"MODULE = {name!r}\n" + file.read()


def ends_of(output):
    at = output.rfind(MARK)
    try:
        return json.loads(output[at + len(MARK):].split(b"\n", 1)[0]) if at >= 0 else None
    except ValueError:
        return None


def run(command, folder, timeout):
    """Returns the result of each test, or None and the reason that there are no results."""
    try:
        done = subprocess.run(command, cwd=folder, env={"PATH": "/usr/bin:/bin"}, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"not ended within {timeout} s"
    ends = ends_of(done.stdout)
    words = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return ends, "" if ends is not None else " | ".join(words[-6:])[-400:]


def outside(script, folder, timeout):
    # Not as root, because jobs are not root and tests check the user.
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if as_nobody:
        os.chown(folder, 65534, 65534)
    return run([*as_nobody, PYTHON, "-I", "-B", "-X", "utf8", script], folder, timeout)


def inside(mycojobs, script, folder, timeout):
    state = os.path.join(folder, "state")
    return run([mycojobs, "sandbox", "run", script, "--timeout", f"{timeout}s", "--state-dir", state, "--log-level", "error"], "/", timeout + 30)


def compare(name, mycojobs, timeout):
    with tempfile.TemporaryDirectory(prefix="mycojobs-compat-") as top:
        os.chmod(top, 0o755)
        script = os.path.join(top, f"{name}.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(script_of(name))
        os.mkdir(os.path.join(top, "out"))
        there, why_not = outside(script, os.path.join(top, "out"), timeout)
        if there is None or not any(end == "ok" for end, _ in there.values()):
            return {"module": name, "comparable": False, "why": why_not or "no test of it passes outside"}
        here, why = inside(mycojobs, script, top, timeout * 2)
    if here is None:
        return {"module": name, "comparable": True, "tests": len(there), "differ": {name: ["no end", why]}}
    differ = {}
    for test, (end, _) in there.items():
        now, reason = here.get(test, ["absent", ""])
        if end == "ok" and now != "ok":
            differ[test] = [now, reason]
    if len(differ) > 1 and all(end == "absent" for end, _ in differ.values()):
        differ = {name: next(iter(here.values()), ["absent", ""])}
    return {"module": name, "comparable": True, "tests": sum(end == "ok" for end, _ in there.values()), "differ": differ}


def cause_of(test, reason):
    for cause, pattern in CAUSES:
        if re.search(pattern, f"{test}: {reason}"):
            return cause
    return None


def causes_of(result):
    """Returns the causes of a module with their numbers of tests; None counts tests without an explanation."""
    counts = {}
    for test, (_, reason) in result["differ"].items():
        cause = cause_of(test, reason)
        counts[cause] = counts.get(cause, 0) + 1
    return counts


def page(found):
    """Returns bench/compat.md: all modules, grouped by result."""
    comparable = [each for each in found if each["comparable"]]
    alike = [each for each in comparable if not each["differ"]]
    lines = ["# CPython's own tests as jobs", "",
             "`./dev compat` writes this page. It runs each module of Debian's libpython3.11-testsuite as a job with the default policy. It runs the same module with",
             "`/usr/bin/python3` outside of a job, as an ordinary user and without resources such as the network. The tests that pass outside are compared.", "",
             "| modules | number |", "|---|---|", f"| comparable | {len(comparable)} |", f"| identical results for every test | {len(alike)} |",
             f"| tests that pass outside | {sum(each['tests'] for each in comparable)} |",
             f"| tests with another result as a job | {sum(len(each['differ']) for each in comparable)} |",
             f"| not comparable: no test passes outside within the time limit | {len(found) - len(comparable)} |", "",
             "## Differences", "", "| module | tests | reason |", "|---|---|---|"]
    for each in comparable:
        if each["differ"]:
            why = "; ".join(f"{cause or '**unexplained**'} {count}" for cause, count in sorted(causes_of(each).items(), key=str))
            lines.append(f"| {each['module']} | {len(each['differ'])} of {each['tests']} | {why} |")
    lines += ["", "## Identical results", "", ", ".join(each["module"] for each in alike), "", "## Not comparable", "",
              ", ".join(each["module"] for each in found if not each["comparable"]), ""]
    return "\n".join(lines)


def say(result):
    if not result["comparable"]:
        return print(f"{result['module']}: not comparable: {result['why']}", flush=True)
    if not result["differ"]:
        return print(f"{result['module']}: {result['tests']} tests alike", flush=True)
    why = ", ".join(f"{cause or 'UNEXPLAINED'} {count}" for cause, count in sorted(causes_of(result).items(), key=str))
    print(f"{result['module']}: {len(result['differ'])} of {result['tests']} tests differ: {why}", flush=True)
    for test, (end, reason) in result["differ"].items():
        if cause_of(test, reason) is None:
            print(f"  {test}: {end}: {reason}", flush=True)


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main():
    parser = argparse.ArgumentParser(description="CPython's own test suite as jobs and outside")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="modules at a time")
    parser.add_argument("--timeout", type=int, default=60, help="seconds for a module outside; twice as long inside")
    parser.add_argument("--mycojobs", default=os.path.join(ROOT, "build/bin/mycojobs"))
    parser.add_argument("--found", default=os.path.join(ROOT, "build/compat.jsonl"), help="all that was found, a module a line; modules that are named replace theirs")
    parser.add_argument("--write", action="store_true", help="write bench/compat.md of it")
    parser.add_argument("modules", nargs="*")
    options = parser.parse_args()
    found = {each["module"]: each for each in (read(options.found) if options.modules and os.path.exists(options.found) else [])}
    tried = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda name: compare(name, options.mycojobs, options.timeout), options.modules or modules()):
            say(result)
            tried.append(result)
            found[result["module"]] = result
    with open(options.found, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(found[name]) + "\n" for name in sorted(found))
    if options.write:
        with open(os.path.join(ROOT, "bench/compat.md"), "w", encoding="utf-8") as file:
            file.write(page([found[name] for name in sorted(found)]))
    return 1 if any(each["comparable"] and None in causes_of(each) for each in tried) else 0


if __name__ == "__main__":
    sys.exit(main())
