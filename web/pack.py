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
STATIC_IMPORT = re.compile(r"""(\b(?:from|import)\s*)(["'])([^"'\n]+)\2""")
LAZY_IMPORT = re.compile(r"""(\bimport\(\s*)(["'])([^"'\n]+)\2(?=\s*\))""")
MAX_FIRST_LOAD_BYTES = 150 << 10  # maximum of bytes that the page loads first


class Pack:
    def __init__(self, modules):
        self.modules, self.files, self.names, self.open_modules = modules, {}, {}, []
        self.first_load = []  # modules that the page loads first

    def add(self, name, text):
        """Adds a file and returns its address."""
        stem, ending = name.rsplit(".", 1)
        address = f"/assets/{stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.{ending}"
        self.files[address] = text.encode()
        return address

    def module(self, path, is_first_load):
        if path in self.open_modules:
            raise SystemExit(f"{path}: modules import one another in a circle: {self.open_modules}")
        if path not in self.names:
            self.open_modules.append(path)
            text = re.sub(r"(?m)^//# sourceMappingURL=.*\n?", "", path.read_text())

            def replace_imports(is_static):
                return lambda match: f"{match[1]}{match[2]}{self.module(self.file_of(path, match[3]), is_static and is_first_load)}{match[2]}"

            text = LAZY_IMPORT.sub(replace_imports(False), STATIC_IMPORT.sub(replace_imports(True), text))
            self.open_modules.pop()
            self.names[path] = self.add(path.name.replace(".esm.js", ".js").replace(".mjs", ".js"), text)
        if is_first_load and self.names[path] not in self.first_load:
            self.first_load.append(self.names[path])
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
        values = {"main": self.module(WEB / "src/main.js", True), "style": self.add("style.css", styles),
                  "examples": self.add("examples.json", json.dumps(examples())), "icon": self.add("icon.svg", (WEB / "icon.svg").read_text()), "licences": self.add("licences.txt", licences)}
        values["preload"] = "\n".join(f'<link rel="modulepreload" href="{each}">' for each in self.first_load)
        text = (WEB / "index.html").read_text()
        for name, value in values.items():
            text = text.replace("{{" + name + "}}", value)
        self.files["/"] = text.encode()
        first_load_bytes = sum(len(compress(self.files[each])) for each in ["/", values["style"], values["icon"], *self.first_load])
        if first_load_bytes > MAX_FIRST_LOAD_BYTES:
            raise SystemExit(f"the first load is {first_load_bytes} bytes, over {MAX_FIRST_LOAD_BYTES}")
        print(f"the page: {len(self.files)} files, first load {first_load_bytes} bytes", flush=True)
        return self.files


def examples():
    """Returns the jobs of examples/hello/jobs.txt as parameters of job.start."""
    jobs = []
    for line in (EXAMPLES / "jobs.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        file, _, *flags = line.split()
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


def compress(data):
    return gzip.compress(data, 9, mtime=0)


def literal(data):
    text = "".join(f"\\{each:03o}" for each in data)
    return "\n".join(f'"{text[at:at + 480]}"' for at in range(0, max(len(text), 1), 480))


def source(files, note):
    lines = ["// Written by web/pack.py.", '#include "api/page.h"', "", "namespace mycojobs::api {", "namespace {"]
    rows = []
    for number, (path, data) in enumerate(sorted(files.items())):
        packed = compress(data)
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
