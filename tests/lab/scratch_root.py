# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Install packages on a root of their own, without a change of the host.

Why: packages must be tested as users get them, by apt and dpkg with all scripts. So apt and dpkg
run in their own mount namespace, on an overlay whose lower layer is the host's root. The upper
layer is kept until a package changes. A guest gets the upper layer above the host's files
(tests/lab/run --packages).
"""
import contextlib
import fcntl
import hashlib
import os
import subprocess

import namespace
from machine import BUILD, REPO, LabError

PACKAGES = os.path.join(BUILD, "packages")
PLACE = os.path.join(BUILD, "lab", "packages")
# Calls apt as a user does. Updates the indexes only if a package is missing.
INSTALL = """\
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
install() {
    apt-get install -y -qq --no-install-recommends --allow-downgrades -o Dpkg::Use-Pty=0 "$@"
}
install $DEBS || { apt-get update -qq && install $DEBS; }
rm /usr/sbin/policy-rc.d
ldconfig
"""


def run(place, script, debs=(), output=None):
    """Run a shell script as root on the scratch root with its layer in `place`; return its
    status.
    """
    os.makedirs(PACKAGES, exist_ok=True)
    return namespace.run(place, ["/"], script, {"PACKAGES": PACKAGES, "DEBS": " ".join(debs)},
                         [(PACKAGES, PACKAGES, "rw")], stdin=subprocess.DEVNULL, stdout=output,
                         stderr=subprocess.STDOUT if output else None)


def fingerprint(debs):
    """A checksum of the fork's packages, the list of installed packages, and the installation
    script.
    """
    total = hashlib.sha256((namespace.NAMESPACE + INSTALL).encode())
    for path in [*debs, "/var/lib/dpkg/status"]:
        with open(path, "rb") as content:
            total.update(hashlib.file_digest(content, "sha256").digest())
    return total.hexdigest()


def make(debs, total):
    """Install the packages on a new layer."""
    namespace.remove(*(os.path.join(PLACE, name) for name in ("stamp", "upper", "work", "root")))
    log = os.path.join(PLACE, "log")
    with open(log, "w", encoding="utf-8") as output:
        status = run(PLACE, INSTALL, debs, output)
    if status:
        with open(log, encoding="utf-8", errors="replace") as text:
            end = "".join(text.readlines()[-20:])
        raise LabError(f"{end}the packages cannot be installed; the whole output is in {log}")
    with open(os.path.join(PLACE, "stamp"), "w", encoding="utf-8") as out:
        out.write(total)


def up_to_date(total):
    """Does the layer have this checksum?"""
    try:
        with open(os.path.join(PLACE, "stamp"), encoding="utf-8") as text:
            return text.read() == total
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def installed():
    """Build the fork's packages, and install them on a root. The context's value is its upper
    layer.

    The layer does not change in this context, because users share a lock, and making the layer
    takes this lock exclusively.
    """
    debs = subprocess.run([os.path.join(REPO, "buildlib/package"), "debs"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.splitlines()
    os.makedirs(PLACE, exist_ok=True)
    total = fingerprint(debs)
    with open(os.path.join(PLACE, ".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not up_to_date(total):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not up_to_date(total):
                make(debs, total)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield os.path.join(PLACE, "upper")
