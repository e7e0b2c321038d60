#!/usr/bin/env python3
"""A package index for tests, on the loopback interface, with wheels that this program makes.

package_index.py serve FOLDER [USER:PASSWORD] [CERTIFICATE KEY]
    makes a dozen wheels and a source distribution, prints "port N" and serves the folder, by HTTPS with a certificate
package_index.py add FOLDER NAME VERSION    adds another wheel to a folder that is served
"""

import base64
import functools
import hashlib
import html
import http.server
import io
import pathlib
import ssl
import sys
import sysconfig
import tarfile
import zipfile

# Builds the wheel of a source distribution. The module has a trace of the build.
BACKEND = """
import gamma, os, zipfile

def build_wheel(folder, settings=None, metadata=None):
    files = {"source.py": f"VERSION = '1.0'\\nBUILT_IN = {os.getcwd()!r}\\n"}
    info = "source-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\\nName: source\\nVersion: 1.0\\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[f"{info}/RECORD"] = ""
    with zipfile.ZipFile(os.path.join(folder, "source-1.0-py3-none-any.whl"), "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    return "source-1.0-py3-none-any.whl"
"""


def make_wheel(folder, name, version, files, requires=()):
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        **files,
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    parent = pathlib.Path(folder, "simple", name)
    parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(parent / f"{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def make_module(folder, name, version, requires=()):
    make_wheel(folder, name, version, {f"{name}.py": f"VERSION = {version!r}\n"}, requires)


def make_wheels(folder):
    make_module(folder, "alpha", "1.0", ["beta>=1", "gamma"])
    make_module(folder, "alpha", "0.9")
    make_module(folder, "beta", "1.0")
    make_module(folder, "beta", "1.1")
    make_module(folder, "gamma", "3.0", ["delta"])
    make_module(folder, "delta", "0.1")
    make_module(folder, "colors", "2.0")
    # A file that Python would run at its start in a folder of packages.
    make_wheel(folder, "starter", "1.0", {"starter.pth": "import sys; sys.stderr.write('pth runs')\n", "starter.py": ""})
    make_wheel(folder, "huge", "1.0", {"huge.py": "", "huge.bin": bytes(8 << 20)})
    make_wheel(folder, "json", "9.0", {"json.py": "raise ImportError('the module of a package hides the library')\n"})
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    library = pathlib.Path(sysconfig.get_path("platstdlib"), "lib-dynload", f"_bz2{suffix}")
    make_wheel(folder, "native", "1.0", {"native/__init__.py": "", f"native/_bz2{suffix}": library.read_bytes()})
    make_wheel(folder, "tool", "1.0", {"tool/__init__.py": "", "tool/__main__.py": "print('the tool runs')\n"})
    make_source(folder)


def make_source(folder):
    """Makes a source distribution that needs another package for its build."""
    parent = pathlib.Path(folder, "simple", "source")
    parent.mkdir()
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: source\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = ["gamma"]\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND,
    }
    with tarfile.open(parent / "source-1.0.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"source-1.0/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))


class Index(http.server.SimpleHTTPRequestHandler):
    authorization = None

    def do_GET(self):
        if self.authorization and self.headers["Authorization"] != self.authorization:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()

    def list_directory(self, path):
        links = []
        for file in sorted(pathlib.Path(path).iterdir()):
            digest = f"#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}" if file.is_file() else "/"
            links.append(f'<a href="{html.escape(file.name)}{digest}">{html.escape(file.name)}</a>')
        page = f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


def main():
    command, folder = sys.argv[1:3]
    if command == "add":
        return make_module(folder, *sys.argv[3:5])
    make_wheels(folder)
    if sys.argv[3:] and sys.argv[3]:
        Index.authorization = "Basic " + base64.b64encode(sys.argv[3].encode()).decode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Index, directory=folder))
    if sys.argv[4:]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[4:6])
        # The handshake is in the thread of the connection.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(f"port {server.server_address[1]}", flush=True)
    server.serve_forever()


main()
