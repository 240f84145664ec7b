#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A script in a namespace of the lab changes only its own folders on this machine."""
import os
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "tests/lab"))

import machine  # noqa: E402
import namespace  # noqa: E402


class Namespace(unittest.TestCase):
    """Each test runs scripts on an overlay of this machine's root. The test's folder is outside
    /tmp, because a namespace has its own /tmp.
    """

    def setUp(self):
        os.makedirs(machine.BUILD, exist_ok=True)
        self.folder = tempfile.mkdtemp(dir=machine.BUILD)
        self.addCleanup(namespace.remove, self.folder)
        self.place = os.path.join(self.folder, "place")

    def run_script(self, script, binds=(), **environment):
        """The output of the script, and its status."""
        with tempfile.TemporaryFile("w+") as said:
            status = namespace.run(self.place, ["/"], script, environment, binds,
                                   stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
            said.seek(0)
            return said.read(), status

    def test_status_and_environment(self):
        said, status = self.run_script('echo "$A $HOME $(id -u)"; exit 7', A="b c")
        self.assertEqual((said, status), ("b c /root 0\n", 7))

    def test_changes_go_to_the_layer(self):
        mark = os.path.join("/etc", os.path.basename(self.folder))
        said, status = self.run_script(f"touch {mark}; rm /etc/os-release; touch /run/x /tmp/x")
        self.assertEqual(status, 0, said)
        self.assertFalse(os.path.exists(mark))
        self.assertTrue(os.path.exists("/etc/os-release"))
        self.assertTrue(os.path.exists(self.place + "/upper" + mark))
        self.assertFalse(os.path.exists("/run/x"))

    def test_binds(self):
        for name in ("ro", "rw"):
            os.mkdir(os.path.join(self.folder, name))
        binds = [(os.path.join(self.folder, name), "/srv/" + name, name) for name in ("ro", "rw")]
        said, status = self.run_script("touch /srv/rw/x; ! touch /srv/ro/x", binds)
        self.assertEqual(status, 0, said)
        self.assertEqual(os.listdir(os.path.join(self.folder, "rw")), ["x"])
        self.assertEqual(os.listdir(os.path.join(self.folder, "ro")), [])

    def test_files_can_be_bound(self):
        path = os.path.join(self.folder, "file")
        with open(path, "w", encoding="utf-8") as out:
            out.write("content")
        said, status = self.run_script("cat /srv/new/file", [(path, "/srv/new/file", "ro")])
        self.assertEqual((said, status), ("content", 0))


if __name__ == "__main__":
    unittest.main()
