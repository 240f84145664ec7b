#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Installs and removes the packages by the commands in Documentation/install.md.

The commands run on a scratch root (tests/lab/scratch_root.py), so this machine does not change.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "tests/lab"))

import namespace  # noqa: E402
import scratch_root  # noqa: E402

# Prints a mark, and then each installed package of rdma-core's source, with its version.
SHOW = """
echo {mark}
dpkg-query -W -f '${{source:Package}} ${{Package}} ${{Version}}\\n' | grep '^rdma-core '
dpkg --audit
"""

# The packages on hold (apt-mark) after the page's commands.
HELD = "echo held: $(apt-mark showhold | grep -E '^(lib)?(ibverbs|rdmacm)')\n"

# Removes all these packages.
NOTHING = """
apt-get purge -y -qq $(dpkg-query -W -f '${source:Package} ${Package}\\n' |
    awk '/^rdma-core / { print $2 }')
"""

# Installs two packages that only this test makes. The first has the name of the DKMS package. The
# second is removed, but keeps its configuration.
OTHERS = """
cd "$(mktemp -d)"
package() {
    mkdir -p "$1/DEBIAN"
    printf '%s\\n' "Package: $1" "Version: $2" 'Architecture: all' 'Description: none' \
        'Maintainer: none <none@example.org>' >"$1/DEBIAN/control"
    printf '#!/bin/sh\\n' >"$1/DEBIAN/postrm"
    chmod 755 "$1/DEBIAN/postrm"
    dpkg-deb --build "$1" >/dev/null
    dpkg -i "$1.deb"
}
package rdma-mr-notify-dkms 56.1+mrnotify3
package rdma-gone 56.1-1+mrnotify2
dpkg -r rdma-gone
dpkg-query -W -f '${db:Status-Status} of dpkg\\n' rdma-gone | grep '^config-files '
"""


def command(beginning):
    """The page's command that begins with this text, changed so that root can run it without
    questions.
    """
    with open(os.path.join(REPO, "Documentation/install.md"), encoding="utf-8") as text:
        line = re.search(rf"^ +(sudo {beginning}.*)$", text.read(), re.MULTILINE).group(1)
    line = line.partition("  # ")[0].replace("apt-get install", "apt-get install -y -qq")
    return f"bash -c {shlex.quote(line.replace('sudo', f'cd {REPO};'))}\n"


class Packages(unittest.TestCase):
    """Each test installs and removes the packages on its own root."""

    @classmethod
    def setUpClass(cls):
        made = subprocess.run([os.path.join(REPO, "buildlib/package"), "debs"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.splitlines()
        cls.version = os.path.basename(made[0]).split("_")[1]

    def shown(self, script):
        """Run a script; return {mark: [(package, version)]}, which SHOW printed, and the whole
        output.
        """
        with tempfile.TemporaryFile("w+") as output, \
                tempfile.TemporaryDirectory(dir=scratch_root.BUILD) as place:
            status = scratch_root.run(
                place, "export DEBIAN_FRONTEND=noninteractive\n" + script, (), output)
            namespace.remove(place)
            os.mkdir(place)
            output.seek(0)
            said = output.read()
        self.assertEqual(status, 0, said)
        parts = re.split("^([A-Z]+)$", said, flags=re.MULTILINE)
        return {mark: re.findall(r"^rdma-core (\S+) (\S+)$", part, re.MULTILINE)
                for mark, part in zip(parts[1::2], parts[2::2])}, said

    def test_there_and_back(self):
        shown, said = self.shown(
            SHOW.format(mark="BEFORE") + command("apt-get install --only-upgrade")
            + SHOW.format(mark="UPGRADED") + OTHERS
            + command("apt-mark hold") + HELD + command("apt-mark unhold") + HELD
            + command("apt-get install --allow-downgrades") + SHOW.format(mark="BACK"))
        self.assertIn("libibverbs1", dict(shown["BEFORE"]))
        self.assertEqual(shown["UPGRADED"], [(name, self.version) for name, _ in shown["BEFORE"]],
                         said)
        self.assertEqual(shown["BACK"], shown["BEFORE"], said)
        held, free = re.findall("^held:(.*)$", said, re.MULTILINE)
        self.assertRegex(held, "^ ibverbs-providers libibverbs1 librdmacm1(t64)?$")
        self.assertEqual(free, "")

    def test_where_nothing_of_it_is_installed(self):
        """The page's second line installs the dependencies."""
        shown, said = self.shown(
            NOTHING + command("apt-get install --only-upgrade")
            + command("apt-get install [.]/") + SHOW.format(mark="INSTALLED"))
        self.assertLessEqual({("ibverbs-utils", self.version), ("libibverbs1", self.version),
                              ("ibverbs-providers", self.version)}, set(shown["INSTALLED"]), said)
        self.assertEqual({version for _, version in shown["INSTALLED"]}, {self.version}, said)


if __name__ == "__main__":
    unittest.main()
