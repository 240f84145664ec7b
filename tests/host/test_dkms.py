#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Check the DKMS package after tests/lab/dkms_life, and on Debian 13 after tests/lab/dkms_update.

dkms_life installs the package, updates the kernel, and removes the package. dkms_update updates to
Linux 7.3 and goes back. Both scripts run once for each state of the package. They keep their
outputs (build/lab/dkms/life, build/lab/dkms-next/life), which are checked here. The guests `dkms`
and `dkms-next` load the modules into a kernel (tests/guest/dkms_modules).
"""
import glob
import io
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [os.path.join(REPO, path)
                for path in ("buildlib/packaging", "buildlib", "tests/lab")]

import build  # noqa: E402
import dkms  # noqa: E402
import fetch  # noqa: E402
import kernel_archive  # noqa: E402
import kernel_package  # noqa: E402
import machine as machines  # noqa: E402
import namespace  # noqa: E402
import overlay  # noqa: E402

OTHER = "6.1.0-1-amd64"
# The kernels, the source and the compiler of the tests in Mishaps.
STUBS = """\
rm -rf /lib/modules /var/lib/dkms/* /var/lib/$NAME /boot/initrd.img-* /etc/dkms/no-autoinstall
cp /srv/stub/linux-source-6.12.tar.xz /usr/src/
cat >/usr/sbin/update-initramfs <<'END'
#!/bin/sh
echo "$*" >>/initramfs
[ ! -e /full ]
END
cat >/usr/sbin/mokutil <<'END'
#!/bin/sh
cat "/secure-boot$1" 2>/dev/null
END
chmod 755 /usr/sbin/update-initramfs /usr/sbin/mokutil
for release in $KERNELS; do
    cd "$(mktemp -d)"
    modules=/lib/modules/$release
    mkdir -p "$modules/kernel/drivers/infiniband/core" "$modules/build/include/generated/uapi/linux"
    printf '#define LINUX_VERSION_%s\\n' "MAJOR 6" "PATCHLEVEL 12" "SUBLEVEL 1" \
        >"$modules/build/include/generated/uapi/linux/version.h"
    echo 'char a[] __attribute__((section(".modinfo"))) = "license=GPL";' | gcc -xc -c -o stub.ko -
    cp stub.ko "$modules/kernel/drivers/infiniband/core/ib_core.ko"
    mv stub.ko "$modules/build/"
    touch "$modules/modules.order" "$modules/modules.builtin" "/boot/initrd.img-$release"
    depmod "$release"
done
dpkg -i /srv/stub/good.deb
"""
# A "compiler" that only copies.
STUB_MAKE = ("mkdir built && touch Module.symvers && test ! -e /broken && "
             "for name in ib_core siw; do cp $(HEADERS)/stub.ko built/$$name.ko; done")
STUB_HOOK = """\
--- a/Makefile
+++ b/Makefile
@@ -1,3 +1,4 @@
 VERSION = {}
 PATCHLEVEL = {}
 SUBLEVEL = 1
+EXTRAVERSION = -ours
"""


class Outputs:
    """The outputs of dkms_life or dkms_update. The subclass names the machine."""

    @classmethod
    def setUpClass(cls):
        machine = machines.load(cls.machine)
        with build.ready(machine):
            pass
        cls.folder = machine.dkms_life
        with fetch.locked(fetch.BUILD, machine.linux):
            cls.new = kernel_package.unpack(upstream=machine.linux).release

    def users(self, tree):
        """The modules of a tree that use RDMA, and the modules that the package adds."""
        lines = (line.partition(":") for line in self.dependencies(tree).splitlines())
        return {kernel_package.module_name(path) for path, _, needed in lines
                if "kernel/drivers/infiniband/" in path + needed}.union(dkms.ADDED)

    def said(self, name):
        """The output and the exit status of one step."""
        with open(os.path.join(self.folder, name + ".out"), encoding="utf-8") as text, \
                open(os.path.join(self.folder, name + ".status"), encoding="utf-8") as status:
            return text.read(), int(status.read())

    def files(self, tree):
        """{path in a tree of modules: its inode}. An unchanged module keeps its inode."""
        root = os.path.join(self.folder, tree)
        return {os.path.relpath(os.path.join(folder, name), root):
                os.lstat(os.path.join(folder, name)).st_ino
                for folder, _, names in os.walk(root) for name in names
                if not name.startswith("modules.")}

    def dependencies(self, tree):
        """modules.dep of a tree, as text."""
        with open(os.path.join(self.folder, tree, "modules.dep"), encoding="utf-8") as text:
            return text.read()

    def installed_lines(self, status):
        """The releases for which `dkms status` says that our modules are installed."""
        lines = [line.split(", ") for line in self.said(status)[0].splitlines()]
        return [line[1] for line in lines if line[0] == f"{dkms.NAME}/{dkms.version()}"
                and line[2].partition(" (")[0].endswith(": installed")]

    def has_our_modules(self, tree, stock, replaced=False):
        """The tree has all our modules, and its other modules are unchanged.

        There are two exceptions. dkms 3.2 moves modules away and says that it will restore them. If
        an update `replaced` the kernel under the same name, all modules may change.
        """
        before, after, ours = self.files(stock), self.files(tree), self.users(stock)
        moved = {kernel_package.module_name(name) for name, inode in before.items()
                 if name not in after or not replaced and after[name] != inode}
        aside = ours if "Original modules exist" in self.said("installed-status")[0] else set()
        self.assertEqual(sorted(moved - aside)[:9], [])
        added = {kernel_package.module_name(path): os.path.dirname(path)
                 for path in set(after) - set(before)}
        self.assertEqual(added, {name: "updates/dkms" for name in ours})
        self.assertLessEqual({"ib_core", "ib_uverbs", "rdma_cm", "rdma_rxe", "siw"}, set(added))

    def is_left_alone(self, tree):
        """The tree has only the distribution's modules."""
        self.assertFalse([path for path in self.files(tree) if path.startswith("updates/")])
        self.assertNotIn("updates/", self.dependencies(tree))

    def test_an_initramfs_has_our_modules(self):
        text, status = self.said("initrd")
        self.assertEqual(status, 0)
        self.assertIn("/updates/dkms/", text)

    def test_no_module_is_left_with_the_wrong_core(self):
        ours = 0
        for line in self.dependencies("installed").splitlines():
            path, _, needed = line.partition(":")
            if path.startswith("updates/dkms/"):
                ours += 1
                self.assertNotIn("kernel/drivers/infiniband/", needed, path)
            else:
                self.assertNotIn("updates/dkms/", needed, path)
        self.assertEqual(ours, len(self.users("removed")))


class Life(Outputs, unittest.TestCase):
    """The administrator's view."""

    machine = "dkms"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        version = fetch.linux_version(fetch.BUILD)
        cls.old = cls.new.replace(kernel_archive.point(version),
                                  kernel_archive.point(kernel_archive.older(version)))

    def version_of_a_symbol(self, path):
        """The checksum that ib_register_client had when a module was built. (Debian's kernels
        have had no checksums since Linux 7.)
        """
        path, = glob.glob(os.path.join(self.folder, path))
        said = subprocess.run(["/sbin/modprobe", "--dump-modversions", path], text=True, check=True,
                              stdout=subprocess.PIPE).stdout
        return re.search(r"^(0x\w+)\tib_register_client$", said, re.MULTILINE).group(1)

    def test_a_module_from_elsewhere_can_be_built_for_ours(self):
        theirs, ours, stock = map(self.version_of_a_symbol, (
            "foreign.ko", "installed/updates/dkms/ib_uverbs.ko*",
            "removed/kernel/drivers/infiniband/core/ib_uverbs.ko*"))
        self.assertNotEqual(ours, stock)
        self.assertEqual(theirs, ours, self.said("foreign")[0])

    def test_installs(self):
        text, status = self.said("install")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.installed_lines("installed-status"), [self.old])
        self.assertNotIn(dkms.NAME, self.said("before")[0])
        self.has_our_modules("installed-old", "stock-old")

    def test_an_upgrade_of_the_kernel_keeps_it(self):
        text, status = self.said("upgrade")
        self.assertEqual(status, 0, text)
        self.assertEqual(sorted(self.installed_lines("upgraded-status")), [self.old, self.new])
        self.has_our_modules("installed", "removed", replaced=True)

    def test_the_source_of_the_older_kernel_is_kept(self):
        text, status = self.said("kept")
        self.assertEqual(status, 0, text)

    def test_removing_a_kernel_removes_its_modules(self):
        text, status = self.said("purge-old")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.installed_lines("purged-status"), [self.new])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "modules", self.old)))

    def test_without_the_source_a_kernel_is_left_alone(self):
        point = self.new.partition("+")[0]
        said = (f"{dkms.NAME}: not for kernel {self.new}: the source of Linux {point} is not here",
                "linux-source-6.12 is " + self.old.partition("+")[0])
        for step, expected in (("kernel-first", 0), ("again", 0), ("no-source", 77)):
            text, status = self.said(step)
            self.assertEqual(status, expected, text)
            for line in said:
                self.assertIn(line, text)
        self.is_left_alone("refused")

    def test_image_and_headers_ask_for_it(self):
        text, _ = self.said("kernel-first")
        self.assertEqual(text.count(f"{dkms.NAME}: not for kernel {self.new}"), 2, text)

    def test_a_kernel_that_is_replaced_gets_its_own_modules_back(self):
        self.assertEqual(self.installed_lines("kernel-first-status"), [])

    def test_a_build_that_fails_leaves_a_kernel_alone(self):
        text, status = self.said("broken")
        self.assertEqual(status, 0, text)
        self.assertIn(f"NOT BUILT for {self.new}", text)
        self.assertIn("make.log", text)

    def test_the_source_may_come_last(self):
        text, status = self.said("source-new")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.installed_lines("again-status"), [self.new])
        self.has_our_modules("late", "removed")

    def test_a_hook_that_does_not_apply_leaves_a_kernel_alone(self):
        point = self.new.partition("+")[0]
        for step, expected in (("bad-hook", 0), ("bad-hook-dkms", 77)):
            text, status = self.said(step)
            self.assertEqual(status, expected, text)
            self.assertIn(f"the patch notify/9999-old.patch does not apply to Linux {point}", text)
            self.assertIn("drivers/infiniband/sw/rxe/", text)

    def test_refuses_another_kernel(self):
        text, status = self.said("other-refused")
        self.assertEqual(status, 77, text)
        self.assertIn(f"not for kernel {OTHER}: this package is for Linux 6.12 and 7.3",
                      self.said("install")[0])

    def test_another_kernel_installs_all_the_same(self):
        text, status = self.said("other-kernel")    # dkms' own hook must not build for this kernel
        self.assertEqual(status, 0, text)

    def test_removes(self):
        text, status = self.said("remove")
        self.assertEqual(status, 0, text)
        self.is_left_alone("removed")
        self.assertEqual(self.said("verify"), ("", 0))      # the kernel's files are intact
        self.assertEqual(self.said("after"), self.said("before"))
        self.assertEqual(self.said("purge")[1], 0)
        self.assertEqual(self.said("left"), ("", 0))


class Update(Outputs, unittest.TestCase):
    """An update from Debian 13's kernel to the kernel of its backports, and back."""

    machine = "dkms-next"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.old, = set(os.listdir(os.path.join(cls.folder, "modules"))) - {cls.new}

    def test_installs(self):
        self.assertRegex(self.old, r"^6\.12\.")
        self.assertEqual(self.installed_lines("installed-status"), [self.old])
        self.has_our_modules("installed-old", "stock-old")

    def test_the_update_builds_them(self):
        self.assertRegex(self.new, r"^7\.3\.")
        self.assertEqual(sorted(self.installed_lines("updated-status")), [self.old, self.new])
        self.has_our_modules("installed", "removed", replaced=True)

    def test_the_update_leaves_the_other_kernel_alone(self):
        self.assertEqual(self.files("updated-old"), self.files("installed-old"))

    def test_kernels_get_their_own_modules_back(self):
        for step, tree in (("undo", "removed"), ("remove", "removed-old")):
            text, status = self.said(step)
            self.assertEqual(status, 0, text)
            self.is_left_alone(tree)
        self.assertEqual(self.said("verify"), ("", 0))

    def test_back(self):
        self.assertEqual(sorted(self.installed_lines("again-status")), [self.old, self.new])
        self.assertEqual(self.installed_lines("back-status"), [self.old])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "modules", self.new)))
        self.has_our_modules("back", "stock-old")


class Making(unittest.TestCase):
    """The package itself, and its check of a kernel."""

    core = "kernel/drivers/infiniband/core/ib_core.ko.xz"

    def modules(self, lines, release="6.12.1-test"):
        """Run the package's `modules` for a kernel with this modules.dep; return (output,
        status).
        """
        with tempfile.TemporaryDirectory() as root:
            dkms.stage(root)
            tool = os.path.join(root, dkms.fill(dkms.SOURCE, dkms.words()), "dkms/modules")
            kernel = os.path.join(root, "lib/modules", release)
            os.makedirs(os.path.join(kernel, "kernel"))
            with open(os.path.join(kernel, "modules.dep"), "w", encoding="utf-8") as out:
                out.write("\n".join(lines) + "\n")
            with open(tool, encoding="utf-8") as text:
                script = text.read().replace("/lib/modules/", os.path.dirname(kernel) + "/")
            done = subprocess.run(["sh", "-c", script, "modules", release], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.stdout, done.returncode

    def test_finds_users_of_the_core(self):
        lines = [self.core + ":", "kernel/a.ko.xz:", "updates/dkms/theirs.ko.xz: " + self.core,
                 "kernel/net/smc/smc.ko.xz: kernel/a.ko.xz " + self.core]
        self.assertEqual(self.modules(lines), ("ib_core\nsiw\nsmc\n", 0))

    def test_a_module_that_is_not_built_stops_it(self):
        text, status = self.modules([self.core + ":", "kernel/fs/smb/ksmbd.ko: " + self.core])
        self.assertEqual(status, 77)
        self.assertIn("fs/smb/ksmbd would not load with our ib_core", text)

    def test_a_kernel_without_rdma_stops_it(self):
        text, status = self.modules(["kernel/a.ko.xz:"])
        self.assertEqual(status, 77)
        self.assertIn("it has no RDMA", text)

    def test_the_page_builds_a_module_from_elsewhere_as_was_tried(self):
        script = fetch.read(os.path.join(REPO, "tests/lab/dkms_root"))
        tried = re.search(r"^\tmust foreign .*\n((?:.*\n)*?)\t\t' sh", script, re.MULTILINE)
        page = fetch.read(os.path.join(REPO, "Documentation/install.md"))
        told = [line.strip() for line in page.splitlines()]
        lines = [line.strip() for line in tried.group(1).splitlines()]
        self.assertEqual(len(lines), 4)
        self.assertEqual([line for line in lines if line not in told], [])
        self.assertIn(f"version={dkms.version()} release=$(uname -r)", told)

    def test_the_page_updates_to_the_kernel_of_the_backports_as_was_tried(self):
        script = fetch.read(os.path.join(REPO, "tests/lab/dkms_update"))
        page = fetch.read(os.path.join(REPO, "Documentation/install.md"))
        told = re.findall(r"^ +sudo (apt .*7\.3.*)$", page, re.MULTILINE)
        self.assertEqual([line.split()[1] for line in told], ["install", "purge"])
        self.assertEqual([line for line in told if not re.search(
            rf"^must \w+ {re.escape(line)}$", script, re.MULTILINE)], [])

    def test_the_hooks_of_the_kernel_stay_as_they_are(self):
        for name, sum_of_all_versions in (
                ("kernel-postinst",
                 "08c2965e1f7730bcd01a77827e963eb462b8df6a42bc5d3d0fca8850b9b69011"),
                ("kernel-preinst",
                 "cb396b620feba30997fa03cd53018585f7b44a57a7bd916b2b49ee0d508d8ef9")):
            path = os.path.join(REPO, "buildlib/packaging/dkms", name)
            self.assertEqual(fetch.sha256(path), sum_of_all_versions, name)

    def test_holds_our_files_and_hooks_only(self):
        deb, = dkms.make()
        listed = subprocess.run(["dpkg-deb", "-c", deb], text=True, check=True,
                                stdout=subprocess.PIPE).stdout.splitlines()
        self.assertFalse([line for line in listed if line.startswith("l")])
        inside = {line.rpartition("/usr/src/")[2].partition("/")[2] for line in listed
                  if "/usr/src/" in line and not line.endswith("/")}
        for folder, linux in {"6.12/": "linux", "7.3/": "linux-7.3"}.items():
            with self.subTest(linux=linux):
                theirs = {path.removeprefix(folder) for path in inside if path.startswith(folder)}
                inside = {path for path in inside if not path.startswith(folder)}
                ours = set(overlay.our_files(linux, REPO))
                self.assertIn("drivers/infiniband/core/umem_notify.c", ours)
                self.assertEqual({path.removeprefix("ours/") for path in theirs
                                  if path.startswith("ours/")}, ours | {"Kbuild"})
                self.assertEqual({path for path in theirs if not path.startswith("ours/")},
                                 {os.path.relpath(path, os.path.join(REPO, "kernel-patches"))
                                  for path in overlay.patches_of(linux, REPO)})
        self.assertLessEqual(len(inside), 8)


class Mishaps(unittest.TestCase):
    """Steps that fail halfway. The package's scripts, dkms and dpkg are real. The kernels are
    stubs.
    """

    layers = ["/"]
    kernels = ("6.12.1-a", "6.12.1-b")
    next = "57+mrnotify1"
    installed = f", {platform.machine()}: installed"
    unbuild = 'dkms unbuild -m "$NAME" -v "$VERSION" -k "$ONE" >/dev/null\n'

    @classmethod
    def setUpClass(cls):
        os.makedirs(fetch.BUILD, exist_ok=True)
        cls.folder = tempfile.mkdtemp(dir=fetch.BUILD)
        cls.addClassCleanup(namespace.remove, cls.folder)
        cls.stub = os.path.join(cls.folder, "stub")
        os.mkdir(cls.stub)
        for linux in dkms.LINUX:
            cls.pack_source(linux)
        cls.pack("good", "bad")
        with mock.patch.object(dkms, "version", lambda: cls.next):
            cls.pack("next")
        text, status = cls.run_on(os.path.join(cls.folder, "base"), STUBS)
        if status:
            raise AssertionError(text)

    @classmethod
    def pack_source(cls, linux):
        """A linux-source-LINUX.tar.xz with a file for each pattern of keep-source."""
        path = os.path.join(cls.stub, f"linux-source-{linux}.tar.xz")
        with tarfile.open(path, "w:xz") as archive:
            for name in shlex.split(dkms.patterns().replace("\\\n", "")):
                name = name.replace("*", "x").replace("$linux", linux)
                content = b""
                if name.endswith("/Makefile"):
                    content = ("VERSION = {}\nPATCHLEVEL = {}\nSUBLEVEL = 1\n"
                               .format(*linux.split(".")).encode())
                elif not os.path.splitext(os.path.basename(name))[1]:
                    name += "/x.c"
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))

    @classmethod
    def pack(cls, *names):
        """Make packages that lack dependencies, and have one hook and a compiler that only copies.

        Only the first of `names` can be installed.
        """
        root = os.path.join(cls.folder, names[0])
        with mock.patch.object(dkms, "make_line", lambda: STUB_MAKE):
            dkms.stage(root)
            source = os.path.join(root, dkms.fill(dkms.SOURCE, dkms.words()))
        for linux in dkms.LINUX:
            for folder in ("fixes", "notify", "paging"):
                shutil.rmtree(os.path.join(source, linux, folder))
            dkms.write(os.path.join(source, linux, "notify", "0001-stub.patch"),
                       STUB_HOOK.format(*linux.split(".")))
        control = os.path.join(root, "DEBIAN/control")
        with open(control, encoding="utf-8") as text:
            lines = [line for line in text if not line.startswith(("Depends", "Recommends"))]
        dkms.write(control, "".join(lines))
        for name in names:
            subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", root,
                            os.path.join(cls.stub, name + ".deb")], check=True,
                           stdout=subprocess.DEVNULL)
            dkms.write(os.path.join(root, "DEBIAN/preinst"), "#!/bin/sh\nexit 1\n", 0o755)

    @classmethod
    def run_on(cls, place, script):
        """Run a script; return (output, status). The script's changes go to `place`."""
        release = cls.kernels[0]
        environment = {
            "NAME": dkms.NAME, "KERNELS": " ".join(cls.kernels), "ONE": release,
            "TREE": f"/var/lib/dkms/{dkms.NAME}/{dkms.version()}",
            "ARCH": platform.machine(), "OURS": f"/lib/modules/{release}/updates/dkms",
            "HOOK": f"/etc/kernel/postinst.d/dkms-{dkms.NAME}",
            "SOURCE": f"/usr/src/{dkms.NAME}-{dkms.version()}",
            "VERSION": dkms.version()}
        with tempfile.TemporaryFile("w+") as said:
            status = namespace.run(place, cls.layers, script, environment,
                                   [(cls.stub, "/srv/stub", "ro")], stdin=subprocess.DEVNULL,
                                   stdout=said, stderr=subprocess.STDOUT)
            said.seek(0)
            return said.read(), status

    def after(self, script):
        """Run a script with the package installed. It must succeed; return its output."""
        place = tempfile.mkdtemp(dir=self.folder)
        self.addCleanup(namespace.remove, place)
        copy = ["cp", "-a", os.path.join(self.folder, "base/upper"), place]
        subprocess.run(namespace.as_root(copy, {}), check=True)
        text, status = self.run_on(place, script)
        self.assertEqual(status, 0, text)
        return text

    def shim(self, condition):
        """Shell lines that put another `cp` first in PATH. This `cp` fails if the condition is
        true.
        """
        return ("mkdir /shim\n"
                f"printf '%s\\n' '#!/bin/sh' 'for last; do :; done' '{condition} && exit 1' "
                "'exec /bin/cp \"$@\"' >/shim/cp; chmod 755 /shim/cp; PATH=/shim:$PATH\n")

    def test_an_interrupted_build_or_removal_is_in_the_way_of_nothing(self):
        for left in ("log", "module"):
            cut = (self.unbuild +
                   f'mkdir -p "$TREE/$ONE/$ARCH/{left}"\n')
            look = 'ls "$OURS/ib_core.ko" "$OURS/siw.ko"; dkms status -k "$ONE"\n'
            for mend in ('"$HOOK" "$ONE"\n', "dpkg -i /srv/stub/good.deb\n"):
                with self.subTest(left=left, mend=mend):
                    self.assertIn(self.installed, self.after(cut + mend + look))
            with self.subTest(left=left, mend="remove"):
                self.after(cut + 'dpkg -r "$NAME-dkms"; [ ! -e "${TREE%/*}" ]\n'
                           '[ -z "$(find /lib/modules -path "*/updates/*.ko")" ]')

    def test_exports_of_our_modules_are_kept_with_them(self):
        text = self.after('cd "/var/lib/$NAME/symvers"; ls; echo then; "$SOURCE/dkms/undo" "$ONE"\n'
                          'ls; rm -r "$PWD"; "$HOOK" "$ONE"; ls "$PWD"; echo then\n'
                          'touch /broken; dpkg -i /srv/stub/good.deb; ls -A "/var/lib/$NAME"')
        before, undone, broken = text.split("then\n")
        self.assertEqual(before.split(), list(self.kernels))
        self.assertEqual(undone.split("\n")[0], self.kernels[1])
        self.assertNotIn("symvers", broken.split())

    def test_a_hook_builds_nothing_again(self):
        # dkms 3.2 copies Module.symvers to this folder.
        text = self.after('touch "$TREE/$ONE/$ARCH/module/Module.symvers"; "$HOOK" "$ONE"')
        self.assertNotIn("building", text)

    def test_a_lost_module_comes_back(self):
        self.after('rm "$OURS/siw.ko"; "$HOOK" "$ONE"; ls "$OURS/siw.ko"')

    def test_all_is_taken_away_or_it_says_so(self):
        text = self.after('rm "$SOURCE/dkms.conf"; ! dpkg -r "$NAME-dkms"; ls "$OURS/siw.ko"')
        self.assertIn("has not removed the modules", text)

    def test_modules_that_dpkg_takes_back_are_built_again(self):
        text = self.after('! dpkg -i /srv/stub/bad.deb; dkms status')
        self.assertEqual(text.count(self.installed), len(self.kernels), text)
        for action in ("upgrade", "remove", "deconfigure"):
            with self.subTest(action=action):
                text = self.after('cd /var/lib/dpkg/info\n'
                                  f'"./$NAME-dkms.prerm" {action} in-favour\n'
                                  'dkms status; echo then\n'
                                  f'"./$NAME-dkms.postinst" abort-{action} in-favour; dkms status')
                before, _, then = text.partition("then\n")
                self.assertNotIn(self.installed, before)
                self.assertEqual(then.count(self.installed), len(self.kernels), text)

    def test_a_source_that_cannot_be_read_stops_nothing(self):
        upgrade = ("echo x >/usr/src/linux-source-6.12.tar.xz\n"
                   'echo "# new" >>"$SOURCE/dkms/keep-source"\n'
                   "rm -f /initramfs; dpkg -i /srv/stub/good.deb; dkms status; cat /initramfs\n"
                   "dpkg-query -W -f '${db:Status-Status} of dpkg' \"$NAME-dkms\"")
        text = self.after(upgrade)
        self.assertEqual(text.count(self.installed), len(self.kernels), text)
        text += self.after('rm "/var/lib/$NAME/"6.*\n' + upgrade)
        self.assertEqual(text.count("installed of dpkg"), 2, text)
        for release in self.kernels:
            self.assertEqual(text.count(f"-u -k {release}\n"), 2, text)
            self.assertIn(f"not for kernel {release}: the source of Linux 6.12.1 is not here", text)

    def test_a_kernel_of_the_other_version_gets_its_own_files(self):
        text = self.after(
            f"{self.unbuild}"
            'sed -i "/MAJOR/s/6/7/; /PATCHLEVEL/s/12/3/" '
            '"/lib/modules/$ONE/build/include/generated/uapi/linux/version.h"\n'
            '"$HOOK" "$ONE"; echo then; cp /srv/stub/linux-source-7.3.tar.xz /usr/src/\n'
            '"$HOOK" "$ONE"; dkms status; ls "/var/lib/$NAME"\n'
            '"$SOURCE/dkms/tree" "$ONE" "/lib/modules/$ONE/build" /tree; cat /tree/Makefile\n'
            'cmp "$SOURCE/7.3/ours/drivers/infiniband/core/umem_notify_compat.h" '
            "/tree/drivers/infiniband/core/umem_notify_compat.h")
        before, _, then = text.partition("then\n")
        self.assertIn("the source of Linux 7.3.1 is not here", before)
        self.assertIn("linux-source-7.3 is not installed", before)
        self.assertEqual(then.count(self.installed), len(self.kernels), text)
        self.assertLessEqual({"6.12.1.tar.gz", "7.3.1.tar.gz"}, set(then.split()))
        self.assertIn("VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 1\nEXTRAVERSION = -ours\n", then)

    def test_a_hook_that_the_administrator_changed_stops_nothing(self):
        for change, hook in (('echo "# ours" >>"$HOOK"', '"$HOOK"'), ('rm "$HOOK"', ":"),
                             ('chmod -x "$HOOK"', "sh $HOOK")):
            with self.subTest(change=change):
                text = self.after(f'rm /initramfs; {change}\n'
                                  'dpkg --force-confold -i /srv/stub/next.deb\n'
                                  f'dkms status -m "$NAME" -v {self.next}; cat /initramfs\n'
                                  'echo then; rm "$OURS/siw.ko"\n'
                                  f'{hook} "$ONE"; dkms status -k "$ONE"')
                before, _, then = text.partition("then\n")
                self.assertEqual(before.count(self.installed), len(self.kernels), text)
                for release in self.kernels:
                    self.assertIn(f"-u -k {release}\n", before)
                if hook != ":":
                    self.assertIn(f"installed for {self.kernels[0]}", then)

    def test_hooks_that_a_removal_leaves_do_nothing(self):
        text = self.after('dpkg -r "$NAME-dkms"; echo then\n'
                          'for hook in /etc/kernel/*.d/dkms-$NAME; do "$hook" "$ONE"; done\n'
                          'ls /etc/kernel/*.d/dkms-$NAME | wc -l; ls -A /var/lib/dkms')
        self.assertEqual(text.partition("then\n")[2], "3\n")

    def test_an_initramfs_that_cannot_be_made_stops_nothing(self):
        text = self.after('rm /initramfs; touch /full; dpkg -i /srv/stub/good.deb; dkms status\n'
                          'ls /tmp; cat /initramfs; rm /full /initramfs; "$HOOK" "$ONE"\n'
                          'echo once more; cat /initramfs; "$HOOK" "$ONE"; cat /initramfs')
        self.assertEqual(text.count(self.installed), len(self.kernels), text)
        self.assertEqual(text.count(" failed: "), len(self.kernels), text)
        self.assertNotIn("tmp.", text)
        for release in self.kernels:
            self.assertIn(f"-u -k {release}\n", text)
        self.assertEqual(text.partition("once more\n")[2], f"-u -k {self.kernels[0]}\n" * 2)

    def test_an_initramfs_that_cannot_be_made_stops_no_removal(self):
        text = self.after('rm /initramfs; touch /full; dpkg -r "$NAME-dkms"; cat /initramfs')
        for release in self.kernels:
            self.assertIn(f"-u -k {release}\n", text)
            self.assertIn(f"update-initramfs -u -k {release} failed", text)

    def test_an_initramfs_of_dracut(self):
        again = f"-q --force /boot/initrd.img-{self.kernels[0]} {self.kernels[0]}\n"
        text = self.after(f'{self.unbuild}mv /usr/sbin/update-initramfs /usr/sbin/dracut\n'
                          'rm /initramfs; touch /full; "$HOOK" "$ONE"; cat /initramfs; rm /full\n'
                          'echo then; "$HOOK" "$ONE"; cat /initramfs; dpkg -r "$NAME-dkms"\n'
                          'cat /initramfs')
        before, _, then = text.partition("then\n")
        self.assertIn(f"dracut {again.rstrip()} failed", before)
        self.assertTrue(then.startswith(again * 2), text)
        self.assertEqual(then.count(again), 5, text)
        self.after(f'{self.unbuild}rm /usr/sbin/update-initramfs; "$HOOK" "$ONE"\n'
                   '[ -z "$(ls "/var/lib/$NAME/initramfs")" ]')      # no tool: no update

    # Sets mokutil's output, and gives the kernel the program with which dkms signs modules.
    secure_boot = ('mkdir "/lib/modules/$ONE/build/scripts"\n'
                   'echo SecureBoot enabled >/secure-boot--sb-state\n'
                   'printf "#!/bin/sh\\n" >"/lib/modules/$ONE/build/scripts/sign-file"\n'
                   'chmod 755 "/lib/modules/$ONE/build/scripts/sign-file"\n'
                   'key() { echo "mok.pub is $*" >/secure-boot--test-key; }\n'
                   'rm -f /var/lib/dkms/mok.* /initramfs; key not enrolled\n')

    def test_a_key_that_is_not_enrolled_leaves_a_kernel_alone(self):
        look = '[ ! -e "$OURS" ]; ls /var/lib/dkms/mok.pub; dkms status -k "$ONE"\n'
        for before in (":", self.unbuild):
            with self.subTest(before=before):
                text = self.after(f'{self.secure_boot}{before}\n"$HOOK" "$ONE"\n{look}'
                                  'key already in the enrollment request; "$HOOK" "$ONE"\n'
                                  f'{look}echo then; key already enrolled; "$HOOK" "$ONE"\n'
                                  'ls "$OURS/siw.ko"; dkms status -k "$ONE"')
                refused, _, then = text.partition("\nthen\n")
                said = (f"not for kernel {self.kernels[0]}: Secure Boot is on and the key of dkms "
                        "is not enrolled: mokutil --import /var/lib/dkms/mok.pub, restart, then "
                        f"/etc/kernel/postinst.d/dkms-{dkms.NAME} {self.kernels[0]}\n")
                self.assertEqual(refused.count(said), 2, text)
                self.assertNotIn(self.installed, refused)
                self.assertIn(self.installed, then)
        text = self.after(f'{self.secure_boot}"$HOOK" "$ONE"; cat /initramfs')
        self.assertEqual(text.splitlines()[-1], f"-u -k {self.kernels[0]}")

    def test_a_key_of_another_name(self):
        text = self.after(f"{self.secure_boot}echo "
                          "'mok_signing_key=/root/$kernelver.key' >/etc/dkms/framework.conf\n"
                          'echo "mok_certificate=/root/\\$kernelver.der" '
                          '>/etc/dkms/framework.conf.d/ours.conf; "$HOOK" "$ONE"; ls /root/*.der')
        self.assertIn(f"mokutil --import /root/{self.kernels[0]}.der, restart", text)

    def test_secure_boot_that_refuses_nothing(self):
        for change in ("echo SecureBoot disabled >/secure-boot--sb-state",
                       "echo SecureBoot validation is disabled in shim >>/secure-boot--sb-state",
                       "key already in db", "rm /secure-boot--sb-state", "rm /usr/sbin/mokutil"):
            with self.subTest(change=change):
                self.assertIn(self.installed, self.after(
                    f'{self.secure_boot}{self.unbuild}{change}; "$HOOK" "$ONE"\n'
                    'dkms status -k "$ONE"'))

    def test_an_upgrade_that_is_not_built_leaves_nothing_in_the_initramfs(self):
        for mishap, said in (("touch /broken", "NOT BUILT for"),
                             ('sed -i "/PATCHLEVEL/s/12/13/" '
                              "/lib/modules/*/build/include/generated/uapi/linux/version.h",
                              "not for kernel")):
            with self.subTest(mishap=mishap):
                text = self.after(f"rm /initramfs; {mishap}; dpkg -i /srv/stub/good.deb\n"
                                  'cat /initramfs; "$HOOK" "$ONE"; wc -l </initramfs')
                for release in self.kernels:
                    self.assertIn(f"-u -k {release}\n", text)
                    self.assertIn(f"{said} {release}".replace("for for", "for"), text)
                self.assertEqual(text.splitlines()[-1], "2")

    def test_half_of_the_modules_is_none(self):
        for target in ("*/updates/dkms/siw.ko", "*/module/siw.ko", "*/updates/dkms/ib_core.ko"):
            with self.subTest(target=target):
                case = f'case $last in {target}) true ;; *) false ;; esac'
                text = self.after(self.unbuild + "(" + self.shim(case) +
                                  '"$HOOK" "$ONE"; dkms status -k "$ONE")\n'
                                  'ls "/lib/modules/$ONE/kernel/drivers/infiniband/core/"*.ko\n'
                                  '[ ! -e "$OURS/siw.ko" ]; [ ! -e "$OURS/ib_core.ko" ]\n'
                                  '"$HOOK" "$ONE"; ls "$OURS/siw.ko" "$OURS/ib_core.ko"')
                self.assertIn(f"NOT BUILT for {self.kernels[0]}", text)

    def test_nothing_is_built_from_half_a_tree(self):
        text = self.after(self.unbuild + self.shim('[ "$last" = . ]') +
                          '"$HOOK" "$ONE"; [ ! -e "$OURS" ]; "$SOURCE/dkms/tree" "$ONE" '
                          '"/lib/modules/$ONE/build"')
        self.assertRegex(text, f"NOT BUILT for {self.kernels[0]}|keeps its own modules")

    def test_a_refusal_has_a_reason(self):
        for fill, said in (("", "keeps its own modules"),
                           ("head -c 1M /dev/zero >/tmp/fill || :", "")):
            with self.subTest(fill=fill):
                text = self.after(f"{self.unbuild}mount -o remount,size=64k /tmp; {fill}\n"
                                  'echo begin; "$HOOK" "$ONE"').partition("begin\n")[2]
                self.assertIn("No space left on device", text)
                self.assertIn(said, text)
                self.assertNotIn("it has no RDMA", text)

    def test_files_that_are_kept_of_the_source(self):
        again = 'echo again; "$SOURCE/dkms/keep-source" 6.12\n'
        text = self.after('echo "# more" >>"$SOURCE/dkms/keep-source"\n'
                          'mkdir "/var/lib/$NAME/new.x"\n'
                          f'{again}{again}[ ! -e "/var/lib/$NAME/new.x" ]')
        self.assertEqual(text.count("taking the RDMA folders"), 1, text)
        self.after('cd "/var/lib/$NAME"; mkdir /lib/modules/6.12.0; rm seen-*\n'
                   'touch 7.3.1.tar.gz; for last in 0 2 3 4; do touch 6.12.$last.tar.gz; done\n'
                   '"$SOURCE/dkms/keep-source" 6.12\n'
                   'ls 6.12.0.tar.gz 6.12.3.tar.gz 7.3.1.tar.gz; [ ! -e 6.12.2.tar.gz ]')


if __name__ == "__main__":
    unittest.main()
