"""Installs the packages of a Python script with pip. Runs in a sandbox that reaches the package index alone.

Reads /job/order.json: folder (the writable folder of the environment), index, requirements, lock (lines of a
requirements file with hashes; empty if the packages are to be resolved) and max_bytes. Writes the result `lock`, or
`error`: the end of pip's output. Only wheels are installed, so no code of a package runs here.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading

CHECK_SECONDS = 0.2
MAX_OUTPUT = 16 << 10
NO_PACKAGE = "# no package is needed\n"  # markers exclude all requirements


def main():
    with open("/job/order.json", encoding="utf-8") as file:
        order = json.load(file)
    if importlib.util.find_spec("pip") is None:
        return write_result({"error": "ERROR: pip is missing on this host: apt install python3-pip\n"})
    folder = order["folder"]
    os.environ["TMPDIR"] = f"{folder}/tmp"  # on the file system of the environment, so that pip can rename files
    os.mkdir(os.environ["TMPDIR"])
    command = [
        sys.executable, "-I", "-m", "pip", "install", "--isolated", "--quiet", "--no-input", "--progress-bar=off",
        "--disable-pip-version-check", "--no-cache-dir", "--only-binary=:all:", "--no-warn-script-location",
        "--root-user-action=ignore", "--retries=2", "--index-url", order["index"], "--target", f"{folder}/site",
        "--report", "/job/report.json",
    ]  # fmt: skip
    if order["lock"]:
        with open("/job/lock.txt", "w", encoding="utf-8") as file:
            file.write(order["lock"])
        command += ["--no-deps", "--require-hashes", "--requirement", "/job/lock.txt"]
    else:
        command += ["--", *order["requirements"]]
    error = run_within_limit(command, folder, order["max_bytes"])
    if error:
        return write_result({"error": error})
    with open("/job/report.json", encoding="utf-8") as file:
        report = json.load(file)
    lines = sorted(lock_line(each) for each in report["install"]) or [NO_PACKAGE]
    return write_result({"lock": order["lock"] or "".join(lines)})


def write_result(result):
    with open(os.environ["MYCOJOBS_RESULT"], "w", encoding="utf-8") as file:
        json.dump(result, file)


def run_within_limit(command, folder, max_bytes):
    """Runs pip, and kills it when its files exceed the limit. Returns the end of its output if it fails."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    ended = threading.Event()
    exceeded = threading.Event()

    def watch():
        while not ended.wait(CHECK_SECONDS):
            if count_bytes(folder) > max_bytes:
                exceeded.set()
                process.kill()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        output = (output + line)[-MAX_OUTPUT:]
    code = process.wait()
    ended.set()
    watcher.join()
    if exceeded.is_set():
        return f"ERROR: the packages take more than max_bytes = {max_bytes}\n"
    return "" if code == 0 else output or f"ERROR: pip has ended with {code}\n"


def count_bytes(folder):
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(f"{parent}/{name}").st_blocks * 512
            except OSError:
                pass  # pip has moved or deleted it
    return total


def lock_line(package):
    archive = package["download_info"].get("archive_info", {})
    digest = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").removeprefix("sha256=")
    name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
    return f"{name}=={package['metadata']['version']} --hash=sha256:{digest}\n"


main()
