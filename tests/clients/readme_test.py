#!/usr/bin/python3
"""The examples on the clients' README pages: installed, run, and compared with the results in the comments `-> text`."""
import os
import re
import subprocess
import sys
import unittest

from world import BIN, LIMIT_S, NODE_CLIENT, PYTHON_CLIENT, Case

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


def blocks(folder, language):
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        return [text for kind, text in BLOCK.findall(file.read()) if kind == language]


class Readme(Case):
    def run_in(self, folder, script, **more):
        """Runs the commands of a shell block with the test's server in place of the page's server."""
        servers = {"COORDINATOR_URL": self.world.url, "MYCOJOBS_TOKEN": self.world.token}
        for name, value in servers.items():
            script = re.sub(rf"^export {name}=.*$", f"export {name}={value}", script, flags=re.M)
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **more}
        done = subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S * 3)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def promised(self, code, output):
        wanted = re.findall(r"(?:#|//) -> (.*)$", code, re.M)
        self.assertTrue(wanted)
        at = 0
        for text in wanted:
            found = output.find(text, at)
            self.assertGreaterEqual(found, 0, f"{text!r} is not in what follows of:\n{output}")
            at = found + len(text)

    def test_python(self):
        folder = self.world.path("python")
        os.makedirs(os.path.join(folder, "clients"))
        subprocess.run(["cp", "-r", PYTHON_CLIENT, os.path.join(folder, "clients/python")], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", os.path.join(folder, "venv")], check=True)
        (install,) = blocks(PYTHON_CLIENT, "sh")
        codes = blocks(PYTHON_CLIENT, "python")
        self.assertEqual(len(codes), 2)
        for number, code in enumerate(codes):
            with open(os.path.join(folder, f"part{number}.py"), "w", encoding="utf-8") as file:
                file.write(code)
        # 0 disables build isolation
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        script = ". venv/bin/activate\n" + install
        for number, code in enumerate(codes):
            output = self.run_in(folder, f"{script}python part{number}.py", **offline)
            self.promised(code, output)
            script = ". venv/bin/activate\n" + "\n".join(line for line in install.splitlines() if line.startswith("export")) + "\n"
        where = self.run_in(folder, ". venv/bin/activate\npython -c 'import mycojobs; print(mycojobs.__file__)'\n")
        self.assertIn(os.path.join(folder, "venv"), where, "it is the installed one")
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(where.strip()), "py.typed")))

    def test_node(self):
        folder = self.world.path("node")
        os.makedirs(os.path.join(folder, "clients"))
        subprocess.run(["cp", "-r", NODE_CLIENT, os.path.join(folder, "clients/node")], check=True)
        (install,), (code,) = blocks(NODE_CLIENT, "sh"), blocks(NODE_CLIENT, "js")
        with open(os.path.join(folder, "part.mjs"), "w", encoding="utf-8") as file:
            file.write(code)
        offline = {"npm_config_offline": "true", "npm_config_audit": "false", "npm_config_update_notifier": "false", "npm_config_cache": self.world.path("npm")}
        self.promised(code, self.run_in(folder, install + "node part.mjs", **offline))
        self.assertTrue(os.path.exists(os.path.join(folder, "node_modules/mycojobs/index.d.ts")), "it is the installed one")


if __name__ == "__main__":
    unittest.main()
