#!/usr/bin/env python3
"""web/pack.py: names by content, reproducible output, a page without npm modules; rejects cycles and unknown modules."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])


def pack(web, modules, out):
    return subprocess.run([web / "pack.py", "--modules", modules, out], capture_output=True, text=True, check=False)


def fail(text):
    raise SystemExit(text)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    web, modules, out = folder / "web", folder / "modules", folder / "page.cpp"
    shutil.copytree(source / "web", web, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "clients/node").mkdir(parents=True)
    shutil.copy(source / "clients/node/exact_json.js", folder / "clients/node")
    shutil.copytree(source / "examples/hello", folder / "examples/hello")
    done = pack(web, modules, out)
    if done.returncode or "without its page" not in done.stdout or "std::span<const PageFile> page_files() { return {}; }" not in out.read_text():
        fail(f"without modules there is no page, and that is said: {done}")
    for name in ["preact/dist/preact.mjs", "preact/hooks/dist/hooks.mjs", "htm/dist/htm.mjs", "@dagrejs/dagre/dist/dagre.esm.js", "uplot/dist/uPlot.esm.js",
                 "uplot/dist/uPlot.min.css", "preact/LICENSE", "htm/LICENSE", "@dagrejs/dagre/LICENSE", "@dagrejs/graphlib/LICENSE", "uplot/LICENSE"]:
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (modules / name).write_text("export default 1;\n//# sourceMappingURL=x.map\n")
    if pack(web, modules, out).returncode:
        fail(pack(web, modules, out).stderr)
    first, stamp = out.read_text(), out.stat().st_mtime_ns
    if "/assets/main-" not in first or "constexpr PageFile kFiles" not in first:
        fail("there is no main module")
    if first.count("application/json") != 1:
        fail("the examples are not there")
    if pack(web, modules, out).returncode or out.stat().st_mtime_ns != stamp:
        fail("what has not changed is not written again")
    (web / "src/text.js").write_text((web / "src/text.js").read_text() + "// more\n")
    pack(web, modules, out)
    if out.read_text() == first:
        fail("another text has another name")
    (web / "src/text.js").write_text("import './main.js';\n")
    if "circle" not in pack(web, modules, out).stderr:
        fail("modules in a circle cannot be named by their content")
    (web / "src/text.js").write_text("import 'left-pad';\n")
    if "left-pad" not in pack(web, modules, out).stderr:
        fail("a module that is unknown is refused")
    (folder / "examples/hello/jobs.txt").write_text("compute.py 0 --retries 1\n")
    (web / "src/text.js").write_text("")
    if "--retries" not in pack(web, modules, out).stderr:
        fail("a flag that the page cannot give is refused")
    lock = (source / "web/package-lock.json").read_text()
    if "resolved" in lock or "http://" in lock:
        fail("package-lock.json names addresses of a registry")
