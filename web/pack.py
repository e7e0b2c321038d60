#!/usr/bin/env python3
"""Converts the web page to a C++ source file: pack.py --modules NODE_MODULES OUT.cpp (declarations: agent/api/page.h).

The name of each file except index.html contains a hash of its content, and modules import each other by these names.
Browsers can therefore cache the files without expiry and never mix two versions. The sources are not changed otherwise.
If the npm modules are missing, the program is built without the page and a note is printed. OUT.cpp is written only if
its content has changed."""

import argparse
import gzip
import hashlib
import json
import pathlib
import re

WEB = pathlib.Path(__file__).resolve().parent
EXAMPLES = WEB.parent / "examples/hello"
PACKAGES = {  # import name and file of each package
    "preact": "preact/dist/preact.mjs",
    "preact/hooks": "preact/hooks/dist/hooks.mjs",
    "htm": "htm/dist/htm.mjs",
    "@dagrejs/dagre": "@dagrejs/dagre/dist/dagre.esm.js",
    "uplot": "uplot/dist/uPlot.esm.js",
}
LICENCES = ["preact/LICENSE", "htm/LICENSE", "@dagrejs/dagre/LICENSE", "@dagrejs/graphlib/LICENSE", "uplot/LICENSE"]
STYLES = ["uplot/dist/uPlot.min.css"]  # before style.css
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
         ".json": "application/json", ".html": "text/html; charset=utf-8", ".txt": "text/plain; charset=utf-8"}
STATIC = re.compile(r"""(\b(?:from|import)\s*)(["'])([^"'\n]+)\2""")
LAZY = re.compile(r"""(\bimport\(\s*)(["'])([^"'\n]+)\2(?=\s*\))""")
MOST = 150 << 10  # maximum of bytes that the page loads first


class Pack:
    def __init__(self, modules):
        self.modules, self.files, self.names, self.under_way = modules, {}, {}, []
        self.first = []  # modules that the page loads first

    def add(self, name, text):
        """Adds a file and returns its address."""
        stem, ending = name.rsplit(".", 1)
        address = f"/assets/{stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.{ending}"
        self.files[address] = text.encode()
        return address

    def module(self, path, at_once):
        if path in self.under_way:
            raise SystemExit(f"{path}: modules import one another in a circle: {self.under_way}")
        if path not in self.names:
            self.under_way.append(path)
            text = re.sub(r"(?m)^//# sourceMappingURL=.*\n?", "", path.read_text())

            def named(static):
                return lambda found: f"{found[1]}{found[2]}{self.module(self.file_of(path, found[3]), static and at_once)}{found[2]}"

            text = LAZY.sub(named(False), STATIC.sub(named(True), text))
            self.under_way.pop()
            self.names[path] = self.add(path.name.replace(".esm.js", ".js").replace(".mjs", ".js"), text)
        if at_once and self.names[path] not in self.first:
            self.first.append(self.names[path])
        return self.names[path]

    def file_of(self, module, name):
        if name.startswith(("./", "../")):
            return (module.parent / name).resolve()
        if name not in PACKAGES:
            raise SystemExit(f"{module}: imports {name}, which is not one of {', '.join(PACKAGES)}")
        return (self.modules / PACKAGES[name]).resolve()

    def page(self):
        licences = "\n\n".join(f"{name.rsplit('/', 1)[0]}\n\n{(self.modules / name).read_text()}" for name in LICENCES)
        styles = "".join((self.modules / name).read_text() for name in STYLES) + (WEB / "style.css").read_text()
        places = {"main": self.module(WEB / "src/main.js", True), "style": self.add("style.css", styles),
                  "examples": self.add("examples.json", json.dumps(examples())), "icon": self.add("icon.svg", (WEB / "icon.svg").read_text()), "licences": self.add("licences.txt", licences)}
        places["preload"] = "\n".join(f'<link rel="modulepreload" href="{each}">' for each in self.first)
        text = (WEB / "index.html").read_text()
        for name, value in places.items():
            text = text.replace("{{" + name + "}}", value)
        self.files["/"] = text.encode()
        first = sum(len(zipped(self.files[each])) for each in ["/", places["style"], places["icon"], *self.first])
        if first > MOST:
            raise SystemExit(f"the first load is {first} bytes, over {MOST}")
        print(f"the page: {len(self.files)} files, first load {first} bytes", flush=True)
        return self.files


def examples():
    """Returns the jobs of examples/hello/jobs.txt as parameters of job.start."""
    jobs = []
    for row in (EXAMPLES / "jobs.txt").read_text().splitlines():
        if not row or row.startswith("#"):
            continue
        file, _, *flags = row.split()
        job = {"name": file, "script_type": "python", "script": (EXAMPLES / file).read_text()}
        for flag, value in zip(flags[::2], flags[1::2]):
            if flag == "--env":
                job.setdefault("env_vars", {}).update([value.split("=", 1)])
            elif flag == "--timeout":
                job["timeout"] = int(value.removesuffix("s"))
            else:
                raise SystemExit(f"jobs.txt: {flag} is not an option of the page")
        jobs.append(job)
    return jobs


def zipped(data):
    return gzip.compress(data, 9, mtime=0)


def literal(data):
    text = "".join(f"\\{each:03o}" for each in data)
    return "\n".join(f'"{text[at:at + 480]}"' for at in range(0, max(len(text), 1), 480))


def source(files, note):
    lines = ["// Written by web/pack.py.", '#include "api/page.h"', "", "namespace mycojobs::api {", "namespace {"]
    rows = []
    for number, (path, data) in enumerate(sorted(files.items())):
        packed = zipped(data)
        tag = hashlib.sha256(data).hexdigest()[:16]
        ending = ".html" if path == "/" else path[path.rindex("."):]
        lines.append(f"constexpr char kFile{number}[] =\n{literal(packed)};")
        rows.append(f'    {{"{path}", "{TYPES[ending]}", "\\"{tag}\\"", std::string_view(kFile{number}, {len(packed)})}},')
    if rows:
        lines += ["constexpr PageFile kFiles[] = {", *rows, "};"]
    lines += ["}  // namespace", f"std::span<const PageFile> page_files() {{ return {'kFiles' if rows else '{}'}; }}",
              f'std::string_view page_unavailable_reason() {{ return "{note}"; }}', "}  // namespace mycojobs::api", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", type=pathlib.Path, required=True)
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    missing = [each for each in [*PACKAGES.values(), *LICENCES, *STYLES] if not (options.modules / each).is_file()]
    files, note = {}, ""
    if missing:
        note = "this program was built without its page: the modules of npm were missing (./dev build installs them)"
        print(f"{note}: {options.modules / missing[0]}", flush=True)
    else:
        files = Pack(options.modules.resolve()).page()
    text = source(files, note)
    if not options.out.is_file() or options.out.read_text() != text:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
