#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A private, throw-away apt state below the build folder.

Why: upstream's sources come by name and version from the machine's Debian archive. The apt
configuration of the machine must not change. It may lack deb-src lines and other suites, and may
belong to root. So apt runs here with its own source list, lists and cache. Only the address of the
archive comes from the machine's configuration. apt reads it, because apt knows both formats.
"""
import contextlib
import fcntl
import os
import subprocess

KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg",
            "/usr/share/keyrings/debian-archive-keyring.pgp")
# The settings that the private configuration takes from the machine: how to reach the archive, and
# which keys to trust. Hooks that run after an update or an installation are left out.
KEPT = ("Acquire::", "Dir::Etc::source", "Dir::Etc::netrc", "Dir::Etc::trusted",
        "Dir::Etc::preferences")


class AptError(Exception):
    """The archive could not give the package or the source; the message has the reason."""


@contextlib.contextmanager
def alone(path):
    """A context that one thread of one process can enter at a time. It uses a lock file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def archive_uris(security=False):
    """Base addresses of the configured archives that may be Debian's, the likeliest first.

    With `security`, return the addresses of archives of security updates. There may be none.
    """
    # Tabs separate the fields, because an address may have blanks. A flat repository lacks release
    # and component.
    form = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"
    targets = subprocess.run(["apt-get", "indextargets", "--no-release-info", "--format", form],
                             capture_output=True, text=True, check=True).stdout
    uris = []
    for uri, release, component in (line.split("\t") for line in set(targets.splitlines())):
        if (component == "main" and release.endswith("-security") == security and uri not in uris
                and not uri.startswith("cdrom:")):
            uris.append(uri)
    if not uris and not security:
        raise AptError("apt's configuration on this machine names no Debian archive")
    name = "/debian-security" if security else "/debian"
    return sorted(uris, key=lambda uri: (not uri.rstrip("/").endswith(name), uri))


def keyring():
    """The distribution's own keyring."""
    for path in KEYRINGS:
        if os.path.exists(path):
            return path
    raise AptError("no keyring of the distribution: install debian-archive-keyring")


class PrivateApt:
    """An apt state in `folder`. The text `sources` names its sources, in one-line format. If
    `sources` is None, the state has the machine's sources.

    If several processes use the state, they wait for each other. apt itself would fail instead.
    """

    def __init__(self, folder, sources=None):
        self.folder = os.path.abspath(folder)
        os.makedirs(os.path.join(self.folder, "lists/partial"), exist_ok=True)
        os.makedirs(os.path.join(self.folder, "cache/archives/partial"), exist_ok=True)
        self.conf = os.path.join(self.folder, "apt.conf")
        machine = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
        lines = [line for line in machine.stdout.splitlines() if line.startswith(KEPT)]
        lines += [f'Dir::State "{self.folder}";',
                  f'Dir::State::lists "{self.folder}/lists";',
                  'Dir::State::status "/var/lib/dpkg/status";',
                  f'Dir::Cache "{self.folder}/cache";',
                  'Dir::Etc::main "/dev/null";', 'Dir::Etc::parts "/dev/null";',
                  'APT::Sandbox::User "";']
        if sources is not None:
            path = os.path.join(self.folder, "sources.list")
            with open(path, "w", encoding="utf-8") as out:
                out.write(sources)
            lines += [f'Dir::Etc::sourcelist "{path}";', 'Dir::Etc::sourceparts "/dev/null";']
        with self.alone(), open(self.conf, "w", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")

    def alone(self):
        """A context in which no other process changes or uses the state."""
        return alone(os.path.join(self.folder, ".lock"))

    def run(self, *command, cwd=None):
        """Run an apt tool with this state; return its output, or raise AptError with the end of its
        output.
        """
        env = dict(os.environ, APT_CONFIG=self.conf, LC_ALL="C")
        with self.alone():
            done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise AptError(f"{' '.join(command)}: " + "\n".join(done.stderr.splitlines()[-5:]))
        return done.stdout

    def update(self):
        """Fetch the indexes."""
        self.run("apt-get", "update", "-qq")

    def versions(self, package):
        """The versions of a binary package that are offered, newest first."""
        rows = self.run("apt-cache", "madison", package).splitlines()
        return [row.split("|")[1].strip() for row in rows if row.count("|") == 2]

    def download(self, packages, folder):
        """Put the .deb files of `packages` ("name" or "name=version") into `folder`."""
        os.makedirs(folder, exist_ok=True)
        self.run("apt-get", "download", "-qq", *packages, cwd=folder)

    def source_tarball(self, package, version, folder):
        """Put the upstream tarball of a source package into `folder`."""
        os.makedirs(folder, exist_ok=True)
        self.run("apt-get", "source", "-qq", "--tar-only", f"{package}={version}", cwd=folder)


def source_tarball(state, package, version, suite, folder):
    """Get the upstream tarball of package=version of `suite` from the machine's own archive."""
    problems = []
    for uri in archive_uris():
        try:
            apt = PrivateApt(state, f"deb-src [signed-by={keyring()}] {uri} {suite} main\n")
            apt.update()
            apt.source_tarball(package, version, folder)
            return
        except AptError as problem:
            problems.append(str(problem))
    raise AptError(f"{package}={version} of suite {suite} not found:\n" + "\n".join(problems))
