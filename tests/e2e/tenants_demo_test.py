#!/usr/bin/python3
"""examples/tenants/demo.sh prints correct facts within its time limit, and leaves nothing behind.

The namespaces and the folder have names unique to the demonstration, so other processes of this host do not matter.
"""
import glob
import os
import re
import subprocess
import sys
import time
import unittest

DEMO, PROGRAM = sys.argv[1], sys.argv[2]
FACTS = [
    "the right side answers over HTTPS",
    "without the CA its certificate is refused",
    "its line came back",
    "the message has ended",
    "signature holds",
    "result is what the runner signed",
    "log is what the runner signed",
    "the flow has completed",
    "with what its node said there",
    "its node ran on the right side",
    "her own side refuses it, with the reason",
    "the other side refuses it, with the reason",
    "and noted there: mycojobs context refusals",
]


def find_processes(word):
    paths = []
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                if word.encode() in file.read() and str(os.getpid()) != path.split("/")[2]:
                    paths.append(path)
        except OSError:  # the process has ended or belongs to another user
            continue
    return paths


class Demo(unittest.TestCase):
    def test_output_is_correct_and_nothing_is_left(self):
        start_s = time.monotonic()
        env = dict(os.environ)
        shell = subprocess.Popen(
            ["bash", DEMO, PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True
        )
        output, _ = shell.communicate(timeout=110)
        elapsed_s = time.monotonic() - start_s
        self.assertEqual(shell.returncode, 0, output)
        for fact in FACTS:
            self.assertIn("  ok  " + fact, output)
        self.assertNotIn("WRONG", output)
        self.assertLess(elapsed_s, 60, output)  # 3 s on an idle machine; the bound allows for a busy machine
        folder = re.search(r"^  made in (\S+)$", output, re.M).group(1)
        self.assertFalse(os.path.exists(folder))
        self.assertEqual(find_processes(folder), [])
        remaining_namespaces = [path for path in glob.glob("/run/netns/*") if os.path.basename(path).startswith(f"mj{shell.pid}")]
        self.assertEqual(remaining_namespaces, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
