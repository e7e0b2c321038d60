#!/usr/bin/python3
"""The packages of a build are complete, pass lintian, and are equal when they are packed in two folders.

    package_test.py BUILD

`./dev package --twice` compares two compilations, which takes long."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPECTED = {
    "mycojobs": """/etc/mycojobs/config.toml /lib/systemd/system/mycojobs-agent.service /lib/systemd/system/mycojobs-agent@.service
        /lib/systemd/system/mycojobs-coordinator.service /usr/bin/mycojobs /usr/lib/systemd/user/mycojobs-agent.service
        /usr/lib/systemd/user/mycojobs-coordinator.service /usr/libexec/mycojobs/mycojobs-launcher /usr/libexec/mycojobs/mycojobs-pyhost
        /usr/libexec/mycojobs/mycojobs-luahost /usr/libexec/mycojobs/mycojobs-exechost /usr/libexec/mycojobs/mycojobs-egress
        /usr/libexec/mycojobs/mycojobs-pluginhost /usr/libexec/mycojobs/mycojobs-workflowhost /usr/share/bash-completion/completions/mycojobs /usr/share/man/man1/mycojobs.1.gz
        /usr/share/man/man5/mycojobs.toml.5.gz /usr/share/man/man8/mycojobs-agent.8.gz /usr/share/man/man8/mycojobs-coordinator.8.gz
        /usr/share/zsh/vendor-completions/_mycojobs /usr/share/doc/mycojobs/copyright /usr/share/doc/mycojobs/docs/install.md""",
    "mycojobs-dev": "/usr/include/mycojobs/plugin.h /usr/lib/cmake/mycojobs/mycojobsConfig.cmake /usr/share/doc/mycojobs-dev/copyright",
    "python3-mycojobs": "/usr/lib/python3/dist-packages/mycojobs/__init__.py /usr/share/doc/python3-mycojobs/copyright",
}


def run(*words, ok=True, **more):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    if ok and done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def pack(build, folder, zone):
    """Returns the files of the packages by name. The copied sources have the current time."""
    run(ROOT / "debian/make.sh", folder, f"MYCOJOBS_BUILT={build}", "DEB_BUILD_OPTIONS=noautodbgsym", f"TZ={zone}")
    return {path.name: path for path in pathlib.Path(folder).glob("*.deb")}


def wrong_with_contents(name, package):
    files = {line.split(None, 5)[5].lstrip(".") for line in run("dpkg-deb", "--contents", package).splitlines()}
    # location in Debian 13
    files |= {path.removeprefix("/usr") for path in files if path.startswith("/usr/lib/systemd/system/")}
    yield from (f"{name} has no {path}" for path in EXPECTED[name].split() if path not in files)
    if name == "mycojobs":
        conffiles = run("dpkg-deb", "--info", package, "conffiles").split()
        if conffiles != ["/etc/mycojobs/config.toml"]:
            yield f"conffiles: {conffiles}"
        depends = run("dpkg-deb", "--field", package, "Depends")
        if "libpython3" not in depends or "libhiredis" not in depends:
            yield f"not what its libraries need: {depends}"


def wrong_with_scripts(package):
    """Finds maintainer scripts that would start or enable a unit that was not started or enabled before."""
    postinst = run("dpkg-deb", "--info", package, "postinst")
    for line in postinst.splitlines():
        if re.search(r"\b(systemctl|deb-systemd-invoke)\b.*\b(start|restart|enable)\b", line) and "start $running" not in line:
            yield f"postinst: {line.strip()}"
    enables = postinst.count("deb-systemd-helper enable") + postinst.count("deb-systemd-helper --user enable")
    if enables != len(re.findall(r"if deb-systemd-helper --quiet (?:--user )?was-enabled", postinst)):
        yield "postinst enables units that were not enabled"


def wrong_with_plugins(build, package, folder):
    """A plugin is built with mycojobs-dev alone, following the example for users, and the program loads it."""
    run("dpkg-deb", "--extract", package, folder)
    include = f"{folder}/usr/include"
    run("cc", "-std=c99", "-pedantic", "-Werror", "-fsyntax-only", "-x", "c", "-I", include, "-", input="#include <mycojobs/plugin.h>\n")
    example = f"{folder}/usr/share/doc/mycojobs-dev/examples/plugin"
    run("cmake", "-G", "Ninja", "-S", example, "-B", f"{folder}/build", f"-DCMAKE_PREFIX_PATH={folder}/usr", "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF")
    config = re.search(r"mycojobs_DIR:\S+=(.*)", pathlib.Path(folder, "build/CMakeCache.txt").read_text())[1]
    if not config.startswith(folder):
        yield f"CMake found {config}"
    run("cmake", "--build", f"{folder}/build")
    shown = run(build / "bin/mycojobs", "plugin", "check", f"{folder}/build/awk.so")
    if "awk" not in shown:
        yield f"plugin check: {shown}"


def wrong_with_settings():
    """The configuration file must be valid when its settings are uncommented."""
    lines = []
    for line in (ROOT / "debian/config.toml").read_text().splitlines():
        setting = re.fullmatch(r"# (\[[a-z]+\]|[a-z_.]+ = .*)", line)
        lines.append(setting[1] if setting else line)
    if sum(not line.startswith("#") and bool(line) for line in lines) < 8:
        yield "debian/config.toml has hardly a setting"
    return "\n".join(lines) + "\n"


def wrong_with_versions():
    changelog = re.match(r"mycojobs \(([^)-]+)\)", (ROOT / "debian/changelog").read_text())
    cmake = re.search(r"project\(mycojobs VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    if not changelog or not cmake or changelog[1] != cmake[1]:
        yield f"debian/changelog has version {changelog and changelog[1]}, CMakeLists.txt {cmake and cmake[1]}"


def wrong_with_config_check(build):
    wrong = wrong_with_settings()
    while True:
        try:
            yield next(wrong)
        except StopIteration as end:
            text = end.value
            break
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([build / "bin/mycojobs", "config", "check", file.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"debian/config.toml without its marks of comments: {done.stderr}"


def wrong_with_manual_pages(build):
    for page in (build / "pages").glob("*.[158]"):
        done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page], capture_output=True, text=True, check=False,
                              env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MANROFFSEQ": ""})
        if done.returncode != 0 or done.stderr:
            yield f"{page.name}: {done.stderr}"


def main(build):
    wrong = [*wrong_with_versions(), *wrong_with_config_check(build), *wrong_with_manual_pages(build)]
    with tempfile.TemporaryDirectory() as folder:
        first = pack(build, f"{folder}/first", "UTC")
        second = pack(build, f"{folder}/another/and-longer", "Pacific/Kiritimati")
        client = any((ROOT / "clients/python/mycojobs").glob("*.py"))
        names = {path.split("_")[0] for path in first}
        if names != {"mycojobs", "mycojobs-dev"} | ({"python3-mycojobs"} if client else set()):
            wrong.append(f"packages: {sorted(names)}")
        for file, path in first.items():
            if path.read_bytes() != second[file].read_bytes():
                wrong.append(f"{file} differs when it is packed in another folder")
            wrong += wrong_with_contents(file.split("_")[0], path)
        wrong += wrong_with_plugins(build, next(path for name, path in first.items() if name.startswith("mycojobs-dev_")), f"{folder}/dev")
        wrong += wrong_with_scripts(next(path for name, path in first.items() if name.startswith("mycojobs_")))
        changes = next(pathlib.Path(folder, "first").glob("*.changes"))
        done = subprocess.run(["lintian", "--fail-on", "error,warning", changes], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            wrong.append(f"lintian:\n{done.stdout}{done.stderr}")
    for each in wrong:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
