# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make the Debian packages of the library by upstream's own packaging (debian/ in its tarball).

A version has four parts: Debian's version, "+mrnotify", our revision, and the release of Debian on
which the package was built. 56.1-1+mrnotify3~deb12u1 sorts after Debian 12's 44.0-2, and after
trixie's 56.1-1 with its rebuilds (+b1) and updates (+deb13u1). It sorts before 56.1-2, which Debian
would build from other sources, and before the same package of a later release. REVISION is our next
revision.
"""
import email.utils
import glob
import hashlib
import os
import re
import shutil
import subprocess

import compiler_cache
import fetch
import overlay

REVISION = 3
PLACE = os.path.join(fetch.BUILD, "packages")
# The maintainer in debian/changelog: the committer of this project.
MAINTAINER = "Seed 17fc4077 maintainers <maintainers@users.noreply.a-seed-17fc4077.example>"
# Libraries that a distribution may rename. Debian 13 adds ENDING, because its time_t has 64 bits.
# With FIELDS, the renamed package replaces the package with the old name.
RENAMED = ("librdmacm1", "libibnetdisc5")
ENDING = "t64"
FIELDS = """\
Provides: {name} (= ${{binary:Version}})
Replaces: {name}
Breaks: {name} (<< ${{binary:Version}})
"""
ENTRY = """\
{package} ({version}) {suite}; urgency=medium

  * rdma-core {upstream} with MR notifications and the registration cache:
    ibv_reg_mr_notify(3), ibv_mr_cache(7).
  * Built from the overlay whose files have the sum {sum}.

 -- {maintainer}  {date}

"""


def release():
    """The os-release of this machine's distribution as a dictionary."""
    with open("/etc/os-release", encoding="utf-8") as lines:
        pairs = (line.rstrip("\n").partition("=") for line in lines)
        return {name: value.strip('"') for name, _, value in pairs}


def version():
    """The version of the packages that are made here."""
    system = release()
    name = "deb" if system["ID"] == "debian" else system["ID"]
    built_on = name + system.get("VERSION_ID", "") + "u1"
    return f"{fetch.read_pin(fetch.base())['version']}+mrnotify{REVISION}~{built_on}"


def renamed():
    """The libraries that this distribution has renamed. An upgrade must use the new names.

    If the machine lacks apt's lists, fetch.py's apt finds the names.
    """
    def ask(*command):
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    if not ask("apt-cache", "madison", "libibverbs1"):
        apt = fetch.machine_apt(fetch.BUILD)
        if not apt.versions("libibverbs1"):
            raise fetch.FetchError("apt has no package libibverbs1, so the names of other packages "
                                   "are unknown")
        ask = apt.run
    return [name for name in RENAMED if ask("apt-cache", "pkgnames", name + ENDING)]


def rename(tree, names):
    """Give these libraries the names of this distribution."""
    for name in names:
        for path in glob.glob(os.path.join(tree, "debian", name + ".*")):
            os.rename(path, path.replace(f"/{name}.", f"/{name}{ENDING}."))
    for path in glob.glob(os.path.join(tree, "debian/*")):
        if names and os.path.basename(path) != "changelog" and os.path.isfile(path):
            with open(path, encoding="utf-8") as text:
                before = text.read()
            after = re.sub(rf"\b({'|'.join(names)})\b", rf"\1{ENDING}", before)
            for name in names:
                line = f"\nPackage: {name}{ENDING}\n"
                after = after.replace(line, line + FIELDS.format(name=name))
            with open(path, "w", encoding="utf-8") as out:
                out.write(after)


def inputs():
    """The files from which the packages are made, without upstream's tarball."""
    name = fetch.base()
    patches = overlay.patches_of(name)
    forms = filter(os.path.exists, (overlay.form_of(patch, name) for patch in patches))
    return sorted([*overlay.our_files(name, fetch.REPO).values(), *patches, *forms,
                   os.path.abspath(__file__)])


def fingerprint(source):
    """A sum of all inputs of the packages."""
    total = hashlib.sha256(" ".join([version(), *renamed()]).encode())
    for path in [*inputs(), source]:
        total.update(os.path.relpath(path, fetch.REPO).encode() + b"\0")
        total.update(str(os.stat(path).st_mtime).encode() if os.path.isdir(path)
                     else fetch.sha256(path).encode())
    compiler = subprocess.run(["c++", "--version"], capture_output=True, check=True).stdout
    total.update(compiler)
    return total.hexdigest()


def newest_change():
    """The time of the overlay's last change: of the commit or, without git, of the newest file."""
    done = subprocess.run(["git", "-C", fetch.REPO, "log", "-1", "--format=%ct", "--",
                           *sorted({os.path.dirname(path) for path in inputs()})],
                          capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout.strip():
        return int(done.stdout)
    return int(max(os.stat(path).st_mtime for path in inputs()))


def add_changelog_entry(tree, total):
    """Describe these packages in debian/changelog; return the time of the entry."""
    path = os.path.join(tree, "debian/changelog")
    with open(path, encoding="utf-8") as text:
        before = text.read()
    when = newest_change()
    with open(path, "w", encoding="utf-8") as out:
        out.write(ENTRY.format(
            package="rdma-core", version=version(), maintainer=MAINTAINER, sum=total[:16],
            upstream=fetch.tree_version(tree), date=email.utils.formatdate(when),
            suite=release().get("VERSION_CODENAME", "unstable")) + before)
    return when


def environment(tree, when):
    """The build's environment. From the caller's shell it has only HOME, TMPDIR and the settings
    of ccache."""
    kept = {name: value for name, value in os.environ.items()
            if name in ("HOME", "TMPDIR") or name.startswith("CCACHE_")}
    env = {**kept, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
           # Build no packages of debug information.
           "DEB_BUILD_OPTIONS": f"nocheck noautodbgsym parallel={os.cpu_count()}",
           "DEB_CFLAGS_STRIP": "-g", "DEB_CXXFLAGS_STRIP": "-g",
           # New, missing and unlisted symbols fail the build.
           "DPKG_GENSYMBOLS_CHECK_LEVEL": "4", "SOURCE_DATE_EPOCH": str(when)}
    if shutil.which("ccache", path=env["PATH"]):
        env["CCACHE_BASEDIR"] = tree
        env["CCACHE_DEPEND"] = "1"
        env.update(compiler_cache.settings(kept))
        env["EXTRA_CMAKE_FLAGS"] = ("-DCMAKE_C_COMPILER_LAUNCHER=ccache "
                                    "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    return env


def build(tree, env):
    """Run dpkg-buildpackage; its output goes to a file, and is shown if it fails."""
    log = os.path.join(PLACE, "debs.log")
    done = subprocess.run([os.path.join(fetch.REPO, "buildlib/step"),
                           f"package: building the packages of {version()}", log,
                           "dpkg-buildpackage", "-b", "-uc", "-us"], cwd=tree, env=env, check=False)
    if done.returncode:
        raise fetch.FetchError(f"dpkg-buildpackage failed: {log}")


def packages():
    """The sum and the paths of the newest packages, or no paths. debs.stamp has sum and names."""
    try:
        with open(os.path.join(PLACE, "debs.stamp"), encoding="utf-8") as text:
            total, *names = text.read().splitlines()
    except FileNotFoundError:
        return "", []
    paths = [os.path.join(PLACE, name) for name in names]
    return total, paths if all(map(os.path.exists, paths)) else []


def make():
    """Make the packages if anything changed; return their paths."""
    work, name = os.path.join(PLACE, "work"), fetch.base()
    with fetch.locked(work, name):
        with fetch.locked(fetch.BUILD, name):
            source = os.environ.get(fetch.SOURCE_VARIABLE[name])
            if not source:
                source, _ = fetch.tarball_of(name, fetch.BUILD)
                fetch.check_sum(source, fetch.read_pin(name)["sha256"])
        total = fingerprint(source)
        known, made = packages()
        if made and known == total:
            return made
        for path in made:
            os.unlink(path)
        for path in glob.glob(os.path.join(work, "src/*.deb")):
            os.unlink(path)  # left by an interrupted build
        tree = fetch.fetch(name, work, source, update=True)
        overlay.overlay(name, tree, copy=True)
        rename(tree, renamed())
        when = add_changelog_entry(tree, total)
        build(tree, environment(tree, when))
        names = []
        for path in sorted(glob.glob(os.path.join(os.path.dirname(tree), "*.deb"))):
            names.append(os.path.basename(path))
            os.replace(path, os.path.join(PLACE, names[-1]))
        with open(os.path.join(PLACE, "debs.stamp"), "w", encoding="utf-8") as out:
            out.write("\n".join([total, *names]) + "\n")
        return packages()[1]
