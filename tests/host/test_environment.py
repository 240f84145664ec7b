#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""ibv_mr_cache --env with fake libraries of many versions and fake devices.

Why: the variables that disable a library's own cache change from version to version, and a shell
evaluates the output. The libraries of this machine are not loaded.
"""
import os
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                       "../../build/rdma-core/bin/ibv_mr_cache")
HEADERS = os.path.join(os.path.dirname(PROGRAM), "../include")
COMMON = {"UCX_MEM_EVENTS": "n", "RDMAV_MR_CACHE": "remote"}
NAMES = ("libucp.so.0", "libfabric.so.1", "libmpi.so.40", "libmpich.so.12", "libmpi.so.12")

# The devices named in $DEVICES. A device whose name begins with "old" can't notify.
VERBS = r"""
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
static struct ibv_device devices[8], *list[9];
static struct ibv_context contexts[8];
static struct ibv_pd pd;
struct ibv_device **ibv_get_device_list(int *count)
{
    char *names = strdup(getenv("DEVICES")), *name;
    int n = 0;
    for (name = strtok(names, " "); name; name = strtok(NULL, " "), n++) {
        strcpy(devices[n].name, name);
        list[n] = &devices[n];
    }
    list[n] = NULL;
    if (count)
        *count = n;
    return list;
}
void ibv_free_device_list(struct ibv_device **l) { (void)l; }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
struct ibv_context *ibv_open_device(struct ibv_device *d)
{
    contexts[d - devices].device = d;
    return &contexts[d - devices];
}
int ibv_close_device(struct ibv_context *c) { (void)c; return 0; }
struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) { (void)c; return &pd; }
int ibv_dealloc_pd(struct ibv_pd *p) { (void)p; return 0; }
#undef ibv_query_device
int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
    memset(a, 0, sizeof(*a));
    a->device_cap_flags = strncmp(c->device->name, "old", 3) ? 1 << 28 : 0;
    return 0;
}
"""


def ucx(major, minor):
    """Source of a fake UCX."""
    return f"void ucp_get_version(unsigned *a, unsigned *b, unsigned *c)" \
           f"{{ *a = {major}; *b = {minor}; *c = 1; }}"


def libfabric(major, minor):
    """Source of a fake libfabric."""
    return f"unsigned fi_version(void) {{ return {major} << 16 | {minor}; }}"


# The versions of buildlib/consumers, under the file names that ibv_mr_cache searches.
UCX_OF_OURS = ucx(1, 13) + "void ucs_rcache_changes(void) {}"
LIBFABRIC_OF_OURS = libfabric(2, 1) + 'const char *const monitor = "verbs_notify";'


def mpi(text):
    """Source of a fake MPI with this version text."""
    return "#include <string.h>\n" \
           f"int MPI_Get_library_version(char *s, int *n) {{ strcpy(s, \"{text}\");" \
           " *n = strlen(s); return 0; }"


OPEN_MPI = mpi("Open MPI v4.1.4, package: Debian, ident: 4.1.4")
MPICH = mpi("MPICH Version:      4.0.2\\nMPICH Device: ch4:ucx")
HARMFUL = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n#include <signal.h>\n" \
          "__attribute__((constructor)) static void start(void) {{ {} }}\n"


@unittest.skipUnless(os.path.exists(PROGRAM), "not built")
class EnvironmentTest(unittest.TestCase):
    """The output of ibv_mr_cache --env, also evaluated by a shell."""

    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.top)
        cls.verbs = os.path.join(cls.top, "verbs.so")
        cls.compile(cls.verbs, VERBS)

    @staticmethod
    def compile(path, source):
        """Make a shared library."""
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-I", HEADERS, "-o", path, "-x", "c", "-"],
                       input=source, text=True, check=True)

    def run_it(self, devices="rxe0", options=(), environment=None, **sources):
        """Run ibv_mr_cache with only these libraries: ucp, fabric, openmpi, mpich, or other (MPICH
        under its own name).
        """
        folder = tempfile.mkdtemp(dir=self.top)
        short = dict(zip(("ucp", "fabric", "openmpi", "mpich", "other"), NAMES))
        for key, name in short.items():
            path = os.path.join(folder, name)
            if key in sources:
                self.compile(path, sources[key])
            else:   # the loader finds this file, not the system's library, and can't load the file
                os.symlink("/dev/null", path)
        return subprocess.run(
            [PROGRAM, "--env", *options], capture_output=True, text=True, check=False, timeout=120,
            env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": folder, "DEVICES": devices,
                 "LD_PRELOAD": self.verbs, **(environment or {})})

    def exported(self, *arguments, **more):
        """The variables that a shell gets from the output."""
        done = self.run_it(*arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            self.assertRegex(line, r"^(export \w+=\S+ # \S.{10,}|# \S.*)$")
        shell = subprocess.run(["env", "-i", "sh", "-euc", 'eval "$1"; /usr/bin/env', "sh",
                                done.stdout], capture_output=True, text=True, check=True)
        self.assertEqual(shell.stderr, "")
        seen = dict(line.split("=", 1) for line in shell.stdout.splitlines())
        return {name: value for name, value in seen.items() if name not in ("PWD", "_", "SHLVL")}

    def refused(self, text, *arguments, **more):
        """ibv_mr_cache prints this text to standard error, and nothing for the shell."""
        done = self.run_it(*arguments, **more)
        self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
        self.assertIn(text, done.stderr)

    def test_ucx_by_version(self):
        domains, contexts = {"UCX_IB_REG_METHODS": "direct"}, {"UCX_RCACHE_ENABLE": "n"}
        for version, wanted in (((1, 9), domains), ((1, 12), domains),
                                ((1, 13), domains | contexts), ((1, 15), domains | contexts),
                                ((1, 16), contexts), ((1, 18), contexts), ((1, 22), contexts),
                                ((2, 0), contexts)):
            with self.subTest(version):
                self.assertEqual(self.exported(ucp=ucx(*version)), COMMON | wanted)

    def test_libfabric(self):
        self.assertEqual(self.exported(fabric=libfabric(1, 17)),
                         {"FI_MR_CACHE_MAX_COUNT": "0", "RDMAV_MR_CACHE": "remote"})
        self.assertIn("libfabric 2.1 ", self.run_it(fabric=libfabric(2, 1)).stdout)

    def test_all_of_debian_12(self):
        sources = {"ucp": ucx(1, 13), "fabric": libfabric(1, 17), "openmpi": OPEN_MPI,
                   "mpich": MPICH}
        self.assertEqual(self.exported(**sources), {
            **COMMON, "UCX_IB_REG_METHODS": "direct", "UCX_RCACHE_ENABLE": "n",
            "FI_MR_CACHE_MAX_COUNT": "0", "OMPI_MCA_memory": "^patcher"})
        done = self.run_it(**sources)
        for said in (done.stdout, done.stderr):     # both, because eval hides standard output
            self.assertIn("mpirun -x UCX_IB_REG_METHODS -x UCX_RCACHE_ENABLE -x UCX_MEM_EVENTS"
                          " -x FI_MR_CACHE_MAX_COUNT -x RDMAV_MR_CACHE\n", said)
        self.assertIn("MPICH 4.0:", done.stdout)

    def test_crash_of_ucx(self):
        """For the affected versions a warning goes to standard error only."""
        for version, risky in (((1, 13), False), ((1, 15), False), ((1, 16), True),
                               ((1, 18), True), ((1, 21), True), ((1, 22), False),
                               ((2, 0), False)):
            with self.subTest(version):
                done = self.run_it(ucp=ucx(*version))
                self.assertEqual("issue 11467" in done.stderr, risky)
                self.assertNotIn("11467", done.stdout)

    def test_patched_libraries(self):
        """Patched libraries keep their caches, and only Open MPI's hooks are disabled."""
        both = {"ucp": UCX_OF_OURS, "fabric": LIBFABRIC_OF_OURS}
        for sources in (both, {"ucp": UCX_OF_OURS}, {"fabric": LIBFABRIC_OF_OURS}):
            with self.subTest(sorted(sources)):
                self.assertEqual(self.exported(openmpi=OPEN_MPI, **sources),
                                 {"OMPI_MCA_memory": "^patcher"})
                self.assertEqual(self.exported(mpich=MPICH, **sources), {})
                self.assertEqual(self.exported(openmpi=OPEN_MPI, **sources,
                                               environment={"RDMAV_MR_CACHE": "0"}),
                                 {"OMPI_MCA_memory": "^patcher"})
        done = self.run_it(openmpi=OPEN_MPI, devices="old0 rxe0", **both)
        for library in ("UCX 1.13", "libfabric 2.1"):
            self.assertIn(f"# {library} keeps its own cache", done.stdout)
        self.assertIn("# not for old0, which can't notify: the libraries use hooks\n", done.stdout)
        self.assertIn("mpirun -x LD_LIBRARY_PATH\n", done.stderr)

    def test_patched_beside_unpatched(self):
        """If one of the two libraries is not patched, both libraries use our cache."""
        for sources in ({"ucp": UCX_OF_OURS, "fabric": libfabric(1, 17)},
                        {"ucp": ucx(1, 13), "fabric": LIBFABRIC_OF_OURS}):
            self.assertEqual(self.exported(**sources), {
                **COMMON, "UCX_IB_REG_METHODS": "direct", "UCX_RCACHE_ENABLE": "n",
                "FI_MR_CACHE_MAX_COUNT": "0"})
            self.assertEqual("may be stale" in self.run_it(**sources).stdout,
                             sources["fabric"] != LIBFABRIC_OF_OURS)

    def test_mpich_by_its_own_name(self):
        self.assertIn("MPICH 4.0:", self.run_it(ucp=ucx(1, 18), other=MPICH).stdout)

    def test_mpi_alone(self):
        self.assertEqual(self.exported(openmpi=OPEN_MPI),
                         {"OMPI_MCA_memory": "^patcher", "RDMAV_MR_CACHE": "remote"})
        self.refused("nothing to gain", openmpi=mpi("Open MPI v5.0.7, package: Debian"))
        self.refused("nothing to gain", mpich=MPICH)

    def test_nothing_there(self):
        self.refused("nothing to gain")

    def test_devices(self):
        self.refused("no RDMA device on this machine", devices="", ucp=ucx(1, 18))
        self.refused("no RDMA device here notifies", devices="old0 old1", ucp=ucx(1, 18))
        self.refused("no RDMA device", devices="old0 rxe0", ucp=ucx(1, 18), options=("-d", "old0"))
        self.assertIn("# not for old0,", self.run_it(devices="old0 rxe0", ucp=ucx(1, 18)).stdout)
        self.assertNotIn("old0", self.run_it(devices="old0 rxe0", ucp=ucx(1, 18),
                                             environment={"MR_NOTIFY_DEVICE": "rxe0"}).stdout)

    def test_switched_off(self):
        self.refused("RDMAV_MR_CACHE=0", ucp=ucx(1, 18), environment={"RDMAV_MR_CACHE": "0"})

    def test_harmful_libraries(self):
        """Each failure is reported, and the other library still has its line."""
        for what in ("abort();", "signal(SIGALRM, SIG_IGN); for (;;) pause();", "exit(0);",
                     "if (!fork()) for (;;) pause(); abort();"):
            with self.subTest(what):
                source = HARMFUL.format(what) + ucx(1, 18)
                more = {"ucp": source, "fabric": libfabric(2, 1)}
                self.assertIn("libucp.so.0 crashes or hangs", self.run_it(**more).stderr)
                self.assertNotIn("UCX_MEM_EVENTS", self.exported(**more))

    def test_talkative_library(self):
        source = HARMFUL.format('puts("reboot"); fflush(stdout);') + ucx(1, 18)
        self.assertNotIn("reboot", self.run_it(ucp=source).stdout)

    def test_other_libraries(self):
        """Libraries with a known name that lack the function, or have an unknown version text."""
        more = {"fabric": libfabric(2, 1)}
        for key, source in (("ucp", "int other;"), ("openmpi", mpi("Some MPI v4.1")),
                            ("other", mpi("Some MPI 4.1; reboot"))):
            with self.subTest(key):
                more[key] = source
                self.assertIn("does not tell a version", self.run_it(**more).stderr)
                self.assertEqual(len(self.exported(**more)), 2)
                del more[key]


if __name__ == "__main__":
    unittest.main()
