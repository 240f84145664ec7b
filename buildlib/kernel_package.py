# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Unpack the image and the headers of the distribution's kernel below the build folder.

The packages are not installed, because an installation would also install an initramfs generator
and run the hooks of a boot loader. All packages must be of one version, see fetch.py.
"""
import glob
import os
import re
import shutil
import subprocess

import fetch

SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"


class Package:
    """The unpacked kernel packages."""

    def __init__(self, place):
        self.place = place
        # Debian 13's packages have /usr/lib in place of /lib.
        self.modules, = glob.glob(os.path.join(place, "lib/modules/*")) or glob.glob(
            os.path.join(place, "usr/lib/modules/*"))
        self.release = os.path.basename(self.modules)
        self.headers = os.path.join(place, "usr/src/linux-headers-" + self.release)

    @property
    def image(self):
        """The compressed kernel."""
        boot = os.path.join(self.place, "boot", "vmlinuz-" + self.release)
        return boot if os.path.exists(boot) else os.path.join(self.modules, "vmlinuz")

    def module_files(self):
        """{module name: path} of all modules of the package."""
        return {module_name(path): path for path in
                glob.glob(os.path.join(self.modules, "kernel/**/*.ko*"), recursive=True)}


def module_name(path):
    """A module's name as the kernel prints it."""
    return os.path.basename(path).partition(".ko")[0].replace("-", "_")


def names(version, upstream="linux"):
    """The packages that hold the image and the headers of one version of the kernel.

    Since Linux 7, the package of the image is empty, and depends on packages with the parts of
    the image.
    """
    apt = fetch.archive_apt(fetch.BUILD, upstream)
    for meta in fetch.kernel_packages(upstream):
        if version in apt.versions(meta):
            about = apt.run("apt-cache", "show", f"{meta}={version}")
            break
    else:
        raise fetch.FetchError(f"apt on this machine offers no kernel image {version}")
    release = re.search(r"^Depends:.*?\blinux-image-(\S+)", about, re.MULTILINE).group(1)
    common = release.rpartition("-")[0]
    parts = [f"linux-{part}-{release}" for part in ("binary", "modules", "base")]
    if version not in apt.versions(parts[0]):
        parts = [f"linux-image-{release}"]
    return (*parts, f"linux-headers-{release}", f"linux-headers-{common}-common",
            f"linux-kbuild-{common}")


def needs_libc(program):
    """Does a program need a newer C library than this machine's?"""
    with open(program, "rb") as content:
        if content.read(4) != b"\x7fELF":
            return False
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return "`GLIBC_" in done.stdout + done.stderr


def let_tools_start(folder, place, build, upstream):
    """If the tools of a later Debian don't start here, give them the C library of that Debian.

    The tools are in `folder`, which will be renamed to `place`.
    """
    tools = [path for path in glob.glob(os.path.join(folder, "usr/lib/linux-kbuild-*/**"),
                                        recursive=True)
             if os.path.isfile(path) and os.access(path, os.X_OK) and needs_libc(path)]
    if not tools:
        return
    suite = fetch.read_pin(upstream)["suite"].removesuffix("-backports")
    apt = fetch.suite_apt(build, suite, "libc6")
    libc = {"libc6": apt.versions("libc6")[0]}
    for deb in fetch.download_packages(libc, build, apt=apt).values():
        subprocess.run(["dpkg", "-x", deb, os.path.join(folder, "libc")], check=True)
    loader, = glob.glob(os.path.join(folder, "libc/usr/lib*/ld-linux-*.so.*")) or glob.glob(
        os.path.join(folder, "libc/usr/lib/*/ld-linux-*.so.*"))
    libraries = os.path.dirname(*glob.glob(os.path.join(folder, "libc/usr/lib/*/libc.so.6")))
    for path in tools:
        os.rename(path, path + ".program")
        words = [path.replace(folder, place, 1) for path in (loader, libraries, path)]
        with open(path, "w", encoding="utf-8") as out:
            out.write("#!/bin/sh\nexec '{0}' --library-path '{1}' '{2}.program' \"$@\"\n"
                      .format(*words))
        os.chmod(path, 0o755)


def unpack(build=fetch.BUILD, upstream="linux"):
    """Download and unpack the packages in use, if no earlier call has done so.

    The caller holds fetch.locked(build, upstream).
    """
    version = fetch.linux_version(build, name=upstream)
    place = os.path.join(build, "kernel-" + version)
    if os.path.isdir(place):
        return Package(place)
    new = place + ".new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    wanted = {name: version for name in names(version, upstream)}
    debs = fetch.download_packages(wanted, build, upstream)
    fetch.say(f"unpacking the distribution's kernel {version}")
    for deb in debs.values():
        subprocess.run(["dpkg", "-x", deb, new], check=True)
    for makefile in glob.glob(os.path.join(new, "usr/src/linux-headers-*/Makefile")):
        with open(makefile, encoding="utf-8") as text:
            content = text.read()
        if re.search(r"(?m)^(KBUILD_OUTPUT=|include )/usr/src/", content):  # absolute paths
            with open(makefile, "w", encoding="utf-8") as text:
                text.write(content.replace("/usr/src/", f"{place}/usr/src/"))
    let_tools_start(new, place, build, upstream)
    os.rename(new, place)
    return Package(place)
