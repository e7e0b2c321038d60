#!/usr/bin/python3
"""The types of both clients: mypy checks the Python client and its README examples, tsc checks the declarations and types.mts."""
import os
import re
import subprocess
import tempfile
import unittest

from world import PYTHON_CLIENT

HERE = os.path.dirname(os.path.abspath(__file__))


class Types(unittest.TestCase):
    def run_tool(self, *words, folder=HERE, **more):
        done = subprocess.run(words, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_python(self):
        with tempfile.TemporaryDirectory() as cache:
            self.run_tool("/usr/bin/mypy", "--cache-dir", cache, folder=PYTHON_CLIENT)
            with open(os.path.join(PYTHON_CLIENT, "README.md"), encoding="utf-8") as file:
                codes = re.findall(r"^```python\n(.*?)^```$", file.read(), re.S | re.M)
            for number, code in enumerate(codes):
                path = os.path.join(cache, f"part{number}.py")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(code)
                self.run_tool("/usr/bin/mypy", "--cache-dir", cache, "--check-untyped-defs", path, folder=cache, MYPYPATH=PYTHON_CLIENT)

    def test_node(self):
        self.run_tool("tsc", "--strict", "--noEmit", "--target", "es2022", "--lib", "es2022,dom", "--module", "nodenext", "types.mts")


if __name__ == "__main__":
    unittest.main()
