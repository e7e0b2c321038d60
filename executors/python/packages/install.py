"""Installs the packages of a Python script with pip. Runs in a sandbox that can reach only the package index.

Reads the request /job/request.json, which has these fields:
  folder        writable folder of the environment; packages are installed into its subfolder "site"
  index         URL of the package index
  requirements  list of requirements in the syntax of PEP 508
  lock          lock file to install from; if empty, pip resolves the requirements
  build         names of packages that are built from their source distributions
  context       number of the context, for messages
  ca            file with the CAs of the index; if empty, those of the host are used
  max_bytes     maximum size of the folder

Writes the result `lock`, the lock file of the installed packages, or the result `error`, the end of pip's output. Only
wheels are installed, except for the packages in `build`: a source distribution runs code of its package during the
installation.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading

SIZE_CHECK_SECONDS = 0.2  # interval between checks of max_bytes
MIN_ENTRY_BYTES = 4096  # minimum number of bytes that a file or folder counts
MAX_ERROR_LENGTH = 16 << 10  # maximum number of characters of pip's output in the result "error"
# The lock file if no package is needed, because the markers of all requirements exclude this Python. An empty lock file
# would mean that the requirements are not resolved yet. lock_file.cpp accepts this text.
EMPTY_LOCK_FILE = "# no package is needed\n"


def main():
    with open("/job/request.json", encoding="utf-8") as file:
        request = json.load(file)
    if importlib.util.find_spec("pip") is None:
        return write_result({"error": "ERROR: pip is missing on this host: apt install python3-pip\n"})
    folder = request["folder"]
    # The temporary folder must be on the file system of the environment, so that pip can rename files to their place.
    os.environ["TMPDIR"] = f"{folder}/tmp"
    os.mkdir(os.environ["TMPDIR"])
    pip = [
        sys.executable, "-I", "-m", "pip", "install", "--isolated", "--quiet", "--no-input", "--progress-bar=off",
        "--disable-pip-version-check", "--no-cache-dir", "--only-binary=:all:", "--no-warn-script-location",
        "--root-user-action=ignore", "--retries=2", "--index-url", request["index"],
    ]  # fmt: skip
    pip += [f"--no-binary={name}" for name in request["build"]]
    pip += ["--cert", request["ca"]] if request["ca"] else []
    command = [*pip, "--target", f"{folder}/site", "--report", "/job/report.json"]
    if request["lock"]:
        with open("/job/lock.txt", "w", encoding="utf-8") as file:
            file.write(request["lock"])
        command += ["--no-deps", "--require-hashes", "--requirement", "/job/lock.txt"]
    else:
        command += ["--", *request["requirements"]]
    error = run_pip(command, folder, request["max_bytes"])
    if error:
        return write_result({"error": explain_missing_wheel(pip, folder, request["context"], error) + error})
    with open("/job/report.json", encoding="utf-8") as file:
        report = json.load(file)
    lines = sorted(format_lock_line(package) for package in report["install"]) or [EMPTY_LOCK_FILE]
    return write_result({"lock": request["lock"] or "".join(lines)})


def write_result(result):
    with open(os.environ["MYCOJOBS_RESULT"], "w", encoding="utf-8") as file:
        json.dump(result, file)


def explain_missing_wheel(pip, folder, context, error):
    """Returns a line that precedes the error of pip, if a package has source distributions only; otherwise an empty text.

    pip names the files that it has skipped in its detailed log only.
    """
    missing = re.search(r"Could not find a version that satisfies the requirement ([A-Za-z0-9._-]+)", error)
    if not missing:
        return ""
    log = f"{folder}/tmp/pip.log"
    search = [*pip, "--dry-run", "--no-deps", "--target", f"{folder}/tmp/none", "--log", log, "--", missing[1]]
    found = subprocess.run(search, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    name = normalize_name(missing[1])
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            skipped = re.findall(r"No sources permitted for ([A-Za-z0-9._-]+)", file.read())
    except OSError:
        return ""
    if found.returncode == 0 or name not in map(normalize_name, skipped):
        return ""
    return (
        f"ERROR: {name} has no wheel for this Python, only source distributions, whose code runs when they are built: "
        f'to have it built, name it in [contexts.{context}.python.packages] build = ["{name}"]\n'
    )


def normalize_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def run_pip(command, folder, max_bytes):
    """Runs a pip command, and kills pip if the files in the folder exceed max_bytes.

    Returns an empty text on success, else an error message or the end of pip's output.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    ended = threading.Event()
    exceeded = threading.Event()

    def kill_when_too_large():
        while not ended.wait(SIZE_CHECK_SECONDS):
            if count_bytes(folder) > max_bytes:
                exceeded.set()
                process.kill()
                return

    watch_thread = threading.Thread(target=kill_when_too_large)
    watch_thread.start()
    output = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        output = (output + line)[-MAX_ERROR_LENGTH:]
    code = process.wait()
    ended.set()
    watch_thread.join()
    if exceeded.is_set():
        return f"ERROR: the packages take more than max_bytes = {max_bytes}\n"
    return "" if code == 0 else output or f"ERROR: pip has ended with {code}\n"


def count_bytes(folder):
    """Returns the disk usage of all files and folders below the folder in bytes.

    Empty files count too, since each of them uses an inode. environment_cache.cpp counts in the same way.
    """
    total = 0
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            try:
                total += max(os.lstat(f"{parent}/{name}").st_blocks * 512, MIN_ENTRY_BYTES)
            except OSError:
                pass  # pip has moved or deleted the file since os.walk() listed it
    return total


def format_lock_line(package):
    """Returns the line of the lock file for a package in the field `install` of pip's installation report."""
    archive = package["download_info"].get("archive_info", {})
    digest = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").removeprefix("sha256=")
    return f"{normalize_name(package['metadata']['name'])}=={package['metadata']['version']} --hash=sha256:{digest}\n"


main()
