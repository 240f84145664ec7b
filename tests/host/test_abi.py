#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The fork's libraries export all symbols that upstream's and Debian's export, and more.

Why: programs that were built with upstream's or Debian's libraries must run on ours without a
rebuild. One test compares the symbols of our packages and of the distribution's packages. Another
test compares the types (sizes, members, parameters) of our build and of a plain build of the same
upstream version, both with debug information.

Programs that were built with an earlier version of the fork must run, too. RELEASED has the symbols
and structs of each released node of the version script. A new node gets a new row, and old rows
never change. libibverbs/tests/mr_cache_test.c has a canary after each struct of an earlier version.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import fetch  # noqa: E402

LIBRARIES = {"libibverbs1": ["libibverbs.so.1"], "librdmacm1": ["librdmacm.so.1"],
             "libibumad3": ["libibumad.so.3"],
             "ibverbs-providers": ["libmlx5.so.1", "libmlx4.so.1", "libefa.so.1", "libmana.so.1"]}
WITH_TYPES = {"ibverbs": "libibverbs.so.1", "rdmacm": "librdmacm.so.1"}
OPTIONS = ["-GNinja", "-DIN_PLACE=1", "-DNO_PYVERBS=1", "-DNO_MAN_PAGES=1",
           "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DPYTHON_EXECUTABLE=/usr/bin/python3",
           "-DCMAKE_C_COMPILER_LAUNCHER=ccache"]

# A program allocates the struct of ibv_reg_mr_ex() (rdma-core 65), and sets a bit for each member
# that it knows. So the struct may grow.
GROWS = """\
[suppress_type]
type_kind = struct
name = ibv_mr_init_attr
has_data_member_inserted_at = end
"""

# The functions of each node, and the structs of its release. A new member needs a row here and a
# new node. The node shows the library that a program knows the member. A member has 8 bytes by
# default.
MR, NOTIFY = "struct ibv_mr *", "int (*)(struct ibv_mr *, uint64_t *)"
RELEASED = {
    "MRNOTIFY_1.0": (
        {"ibv_reg_mr_notify": NOTIFY,
         "ibv_settle_mr_notify": f"int (*)({MR})",
         "ibv_unreg_mr_notify": f"int (*)({MR})",
         "ibv_is_reg": "int (*)(struct ibv_pd *, const void *, size_t, unsigned int)",
         "ibv_query_mr_cache": "int (*)(struct ibv_context *, struct ibv_mr_cache_stats *)",
         "ibv_reg_mr_clean": "int (*)(struct ibv_context *, size_t)",
         "ibv_reg_mr_limits": "int (*)(struct ibv_context *, struct ibv_mr_cache_limits *, "
                              "struct ibv_mr_cache_limits *)"},
        {"ibv_mr_cache_limits": "max_bytes max_entries",
         "ibv_mr_cache_stats": "hits misses suspects invalidations evictions bytes entries"}),
    "MRNOTIFY_1.1": ({"ibv_forget_mr": f"int (*)({MR})"}, {}),
    "MRNOTIFY_1.2": (
        {"ibv_reg_mr_notify_reclaim": "int (*)(struct ibv_mr *, uint64_t *, uint64_t)"}, {}),
    "MRNOTIFY_1.3": ({"ibv_register_mr_all": f"{MR}(*)(struct ibv_pd *, int)"}, {}),
    "MRNOTIFY_1.4": (
        {"_ibv_query_mr_cache":
            "int (*)(struct ibv_context *, struct ibv_mr_cache_stats *, size_t)",
         "_ibv_reg_mr_limits":
            "int (*)(struct ibv_context *, const struct ibv_mr_cache_limits *, "
            "struct ibv_mr_cache_limits *, size_t)"},
        {"ibv_mr_cache_limits": "max_bytes max_entries",
         "ibv_mr_cache_stats": "hits misses suspects invalidations evictions bytes entries "
                               "suspensions restorations"}),
    # This row has only names, because the structs are the same as in version 1.4.
    "MRNOTIFY_1.5": (
        {"ibv_query_mr_cache": "int (*)(struct ibv_context *, struct ibv_mr_cache_stats *)",
         "ibv_reg_mr_limits": "int (*)(struct ibv_context *, struct ibv_mr_cache_limits *, "
                              "struct ibv_mr_cache_limits *)"}, {}),
    "MRNOTIFY_1.6": (
        {"ibv_alloc_notify_word": "uint64_t *(*)(struct ibv_context *)",
         "ibv_free_notify_word": "void (*)(uint64_t *)",
         "ibv_reg_mr_notify_ex": "int (*)(struct ibv_mr *, const struct ibv_mr_notify_attr *)",
         "ibv_reg_notified_mr": f"{MR}(*)(struct ibv_pd *, void *, size_t, uint64_t, "
                                "unsigned int, const struct ibv_mr_notify_attr *)",
         "ibv_suspend_mr_notify": f"int (*)({MR})"},
        {"ibv_mr_notify_attr": "comp_mask word in_use changes event_fd:4 idle_ms:4"}),
}
BITS = {"IBV_MR_NOTIFY_INVALID": "1", "IBV_MR_NOTIFY_SUSPECT": "2", "IBV_MR_NOTIFY_SUSPENDED": "4",
        "IBV_MR_NOTIFY_KERNEL_MASK": "0xff", "IBV_ACCESS_CACHED": "1 << 29",
        "IBV_DEVICE_MR_NOTIFY": "1 << 28", "IBV_DEVICE_MR_REVOKE": "1ULL << 60",
        "IBV_DEVICE_MR_RECLAIM": "1ULL << 61", "IBV_DEVICE_MR_ALL": "1ULL << 62"}


def symbols(library):
    """The symbols that a library defines, with their versions."""
    said = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True,
                          check=True).stdout
    return {*re.findall(r" (\w+@\S+)", said)}


def released():
    """A program that compiles if today's header has all released names and types."""
    text = "#include <stddef.h>\n#include <infiniband/verbs.h>\n"
    for functions, _ in RELEASED.values():
        text += "".join(f'_Static_assert(__builtin_types_compatible_p(__typeof__(&{name}), {what}),'
                        f' "{name}");\n' for name, what in functions.items())
    sizes = {}
    for _, structs in RELEASED.values():
        for name, members in structs.items():
            at = 0
            for member, _, size in (member.partition(":") for member in members.split()):
                text += (f'_Static_assert(offsetof(struct {name}, {member}) == {at} && '
                         f'sizeof(((struct {name} *)0)->{member}) == {size or 8}, '
                         f'"{name}.{member}");\n')
                at += int(size or 8)
            sizes[name] = at
    for name, size in sizes.items():
        text += f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");\n'
    return text + "".join(f'_Static_assert({name} == ({value}), "{name}");\n'
                          for name, value in BITS.items())


def abidiff(before, after, *options):
    """The changed and removed symbols of a library, or "". New symbols are allowed."""
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as grows:
        grows.write(GROWS)
        grows.flush()
        done = subprocess.run(["abidiff", "--no-added-syms", "--suppressions", grows.name, *options,
                               before, after], capture_output=True, text=True, check=False)
    # In abidiff's status bit 4 means a change, bit 8 an incompatible change, and bits 1 and 2 a
    # failure of abidiff.
    return done.stdout + done.stderr if done.returncode else ""


def one(folder, name):
    """The only file with that name in a library folder of an unpacked package."""
    found = glob.glob(os.path.join(folder, "usr/lib/*", name))
    if len(found) != 1:
        raise FileNotFoundError(f"{name} in {folder}: {found}")
    return found[0]


def unpacked(debs, folder):
    """Unpack packages into a folder."""
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    return folder


def plain_build():
    """Build upstream's libraries in the same way, without our changes; return their folder."""
    place = os.path.join(fetch.BUILD, "abi")
    name = fetch.base()
    with fetch.locked(place, name):
        source = os.environ.get(fetch.SOURCE_VARIABLE[name])
        if not source:
            source, _ = fetch.tarball_of(name, fetch.BUILD)
        tree = fetch.fetch(name, place, source)
        build = os.path.join(place, name)
        for command in (["cmake", "-S", tree, "-B", build, *OPTIONS],
                        ["ninja", "-C", build, *WITH_TYPES]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return os.path.join(build, "lib")


class Symbols(unittest.TestCase):
    """Our packages are compared with the distribution's."""

    @classmethod
    def setUpClass(cls):
        made = subprocess.run([os.path.join(REPO, "buildlib/package"), "debs"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.splitlines()
        named = {os.path.basename(path).split("_")[0]: path for path in made}
        ours = {name: path for name, path in named.items()
                if name.removesuffix("t64") in LIBRARIES}
        assert len(ours) == len(LIBRARIES)
        apt = fetch.machine_apt(fetch.BUILD)
        theirs = fetch.download_packages({name: apt.versions(name)[0] for name in ours})
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.ours = unpacked(ours.values(), os.path.join(folder.name, "ours"))
        cls.theirs = unpacked(theirs.values(), os.path.join(folder.name, "theirs"))

    def test_nothing_is_missing(self):
        for name in sum(LIBRARIES.values(), []):
            with self.subTest(name):
                self.assertEqual(abidiff(one(self.theirs, name), one(self.ours, name)), "")


class Builds(unittest.TestCase):
    """Our build is compared with a plain build. A changed copy of ours tests the check itself."""

    @classmethod
    def setUpClass(cls):
        cls.plain = plain_build()
        cls.ours = os.path.join(fetch.BUILD, "rdma-core/lib")
        # Compare only the types in headers, which include driver.h for providers. libibverbs'
        # internal types may change.
        cls.visible = ["--headers-dir1", os.path.join(cls.plain, "../include"),
                       "--headers-dir2", os.path.join(cls.ours, "../include")]

    def test_only_our_nodes_are_new(self):
        """All symbols that upstream's build lacks are in our nodes."""
        ours, upstream = (symbols(os.path.join(folder, "libibverbs.so.1"))
                          for folder in (self.ours, self.plain))
        self.assertFalse(upstream - ours)
        newest = {name: node for node, (functions, _) in RELEASED.items() for name in functions}
        self.assertEqual({name for name in ours - upstream if not name.startswith("MRNOTIFY")},
                         {f"{name}{'@@' if newest[name] == node else '@'}{node}"
                          for node, (functions, _) in RELEASED.items() for name in functions})

    def test_nothing_changed(self):
        for name in WITH_TYPES.values():
            with self.subTest(name):
                self.assertEqual(abidiff(os.path.join(self.plain, name),
                                         os.path.join(self.ours, name), *self.visible), "")

    def spoilt(self, pattern, replacement):
        """Change libibverbs' type description; return abidiff's report on it."""
        library = os.path.join(self.ours, "libibverbs.so.1")
        text = subprocess.run(["abidw", library], capture_output=True, text=True, check=True).stdout
        worse, count = re.subn(pattern, replacement, text)
        self.assertEqual(count, 1, pattern)
        with tempfile.NamedTemporaryFile("w", suffix=".abi") as description:
            description.write(worse)
            description.flush()
            return abidiff(os.path.join(self.plain, "libibverbs.so.1"), description.name,
                           *self.visible)

    def test_a_missing_symbol_is_seen(self):
        said = self.spoilt(r"\n *<elf-symbol name='ibv_dereg_mr' version='IBVERBS_1.1'.*/>", "")
        self.assertIn("ibv_dereg_mr", said)

    def test_another_size_is_seen(self):
        said = self.spoilt(r"(<class-decl name='ibv_mr' [^>]*size-in-bits=)'384'", r"\1'448'")
        self.assertIn("ibv_mr", said)


class ReleasedBuilds(unittest.TestCase):
    """Today's header is compared with the released header. A changed copy of the header tests the
    check itself.
    """

    def compiled(self, *changes):
        """The compiler's complaints about our headers with these changes."""
        headers = os.path.join(fetch.BUILD, "rdma-core/include")
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "infiniband"))
            for path in glob.glob(os.path.join(headers, "infiniband/mr_*.h")):
                with open(path, encoding="utf-8") as text:
                    header = text.read()
                for name, before, after in changes:
                    if name == os.path.basename(path):
                        self.assertEqual(header.count(before), 1, before)
                        header = header.replace(before, after)
                with open(os.path.join(folder, "infiniband", os.path.basename(path)), "w",
                          encoding="utf-8") as text:
                    text.write(header)
            return subprocess.run(["gcc", "-fsyntax-only", "-xc", "-I", folder, "-isystem", headers,
                                   "-"], input=released(), capture_output=True, text=True,
                                  check=False).stderr

    def test_nothing_changed(self):
        self.assertEqual(self.compiled(), "")

    def test_a_change_is_seen(self):
        for name, before, after, said in (
                ("mr_cache.h", "\tuint64_t entries;", "\tuint64_t entries, more;", "suspensions"),
                ("mr_cache.h", "\tuint64_t restorations;", "\tuint64_t restorations, more;",
                 "ibv_mr_cache_stats"),
                ("mr_cache.h", "\tuint64_t max_entries;", "\tuint32_t max_entries;",
                 "max_entries"),
                ("mr_cache.h", "int ibv_is_reg(struct ibv_pd *pd, const void *addr, size_t length",
                 "int ibv_is_reg(struct ibv_pd *pd, const void *addr, int length", "ibv_is_reg"),
                ("mr_notify.h", "SUSPECT\t\t= 1 << 1", "SUSPECT\t\t= 1 << 3",
                 "IBV_MR_NOTIFY_SUSPECT")):
            with self.subTest(before):
                self.assertIn(said, self.compiled((name, before, after)))


if __name__ == "__main__":
    unittest.main()
