#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The scripts of tests/bench refuse the results of a program that failed, and name missing results.

Why: if values were missing, or if the guest's kernel had reported a problem, the table would look
like any other table. Programs, guests and gnuplot are fakes here, so that each can be made to fail.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
THREADS = "/real_time/threads:"
ROWS = {
    "bench_cache": [
        *(name + THREADS + "1" for name in (
            "atomics", "search/1000", "search/100000", "hit/apart/1", "hit/apart/1000",
            "hit/apart/100000", "hit/guarded/1000")),
        *(name + THREADS + "2" for name in ("atomics_same/1000", "hit/same/1000",
                                            "hit/apart/1000"))],
    "bench_verbs": [*(f"hit/apart/{10 ** n}" for n in range(5)),
                    "hit/apart/100000/iterations:1048576",
                    "hit/guarded/1000", "miss/65536", "miss/1048576", "miss/16777216"],
    "bench_libfabric": [
        name + threads for threads in ("", "/threads:2")
        for name in (*(f"libfabric/{10 ** n}" for n in range(5)), "libfabric_small/1000",
                     *(f"libfabric_parts/{parts}" for parts in (1, 16, 16384)))],
    "bench_ucx": ["ucx/1/real_time", "ucx/1000/real_time", "ucx/1000" + THREADS + "2"],
    "bench_ucx_md": [*(f"ucx_md/{10 ** n}" for n in range(5)), "ucp/1", "renewed/mapped"],
    "bench_grdma": ["grdma/registered", "grdma/armed", "renewed/armed"],
    "bench_cost": [],
}
ROWS["bench_cache_before"] = ROWS["bench_cache"]
ROWS["bench_verbs"] += [f"renewed/{way}" for way in ("nothing", "plain", "cached", "notified")]
for LIBRARY in ("bench_libfabric", "bench_ucx_md", "bench_grdma"):
    ROWS[LIBRARY] += ["renewed/registered", "renewed/nothing"]
BASE = {"bench_verbs": 2000, "bench_ucx": 4000}     # nanoseconds; 1000 for all others

# With FAIL=PROGRAM this program prints all output, and then fails. With LEFT_OUT=ROW the last
# repetition of this row fails.
PROGRAM = """#!/usr/bin/python3 -IS
import json, os, re, sys
options = dict(one.partition("=")[::2] for one in sys.argv[1:])
rows = [row for row in ROWS if re.search(options.get("--benchmark_filter", "."), row)]
if "--benchmark_list_tests" in options:
    sys.exit(print(*rows, sep="\\n"))
last = int(options.get("--benchmark_repetitions", 1)) - 1
print("of the guest")
print(json.dumps({"benchmarks": [
    {"run_type": "iteration", "run_name": row, "cpu_time": BASE + n, "time_unit": "ns",
     "ratio": 1.25, "error_occurred": row == os.environ.get("LEFT_OUT") and n == last}
    for row in rows for n in range(last + 1)]}))
shift = os.environ.get("FAIL_SHIFT")
sys.exit(3 if os.environ.get("FAIL") in sys.argv[0].split("/")
         or shift and shift == os.environ.get("BENCH_SHIFT") else 0)
"""

# LAB_STATUS is the status of all guests, or of the guests with the kernel LAB_KERNEL.
LAB = """#!/bin/sh
kernel=$2
while [ "$1" != -- ]; do shift; done
shift
"$@"
status=$?
echo "the lab: status $status" >&2
[ "${LAB_KERNEL:-$kernel}" != "$kernel" ] || exit "${LAB_STATUS:-$status}"
"""

DRIVER = """
import os, sys
folder, bench, name = sys.argv[1:4]
del sys.argv[1:4]
sys.path.insert(0, bench)
import programs
programs.LAB = os.path.join(folder, "lab")
programs.OUT = os.path.join(folder, "out")
programs.path = lambda name: os.path.join(folder, "bench_" + name)
programs.gnuplot = print
script = __import__(name)
script.build = lambda checkout: None
script.TURNS = 3
sys.exit(script.main())
"""


class Bench(unittest.TestCase):
    """Each script with fakes."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("lab", LAB)
        for name, rows in ROWS.items():
            self.write(name, PROGRAM.replace("ROWS", repr(rows)).replace(
                "BASE", str(BASE.get(name, 1000))))

    def write(self, name, text):
        """Write a fake program."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, 0o755)

    def run_script(self, name, *args, **environment):
        """Run a script of tests/bench."""
        return subprocess.run(
            [sys.executable, "-B", "-c", DRIVER, self.folder, os.path.join(REPO, "tests/bench"),
             name, *args], env={**os.environ, **environment}, capture_output=True, text=True,
            check=False)

    def no_result(self, done, *said):
        """Check that the script failed with these messages."""
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for text in said:
            self.assertIn(text, done.stderr)

    def written(self, name):
        """A file of results."""
        with open(os.path.join(self.folder, "out", name), encoding="utf-8") as text:
            return text.read()

    def test_hits(self):
        done = self.run_script("compare")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        cells = [line[40:].split() for line in done.stdout.splitlines() if " entr" in line[:14]]
        core, verbs, ucx, none = "1002.0", "2002.0", "4002.0", "-"
        libfabric = core
        every = [core, core, verbs, libfabric, libfabric, ucx]
        self.assertEqual(cells, [every, every, [core, core, verbs] + [none] * 3,
                                 [core, core] + [none] * 3 + [ucx], [none, core] + [none] * 4,
                                 [core, core, verbs] + [none] * 3])
        titles, *plotted = self.written("hits.dat").splitlines()
        self.assertEqual(titles, '"" "bare atomics" "ours, the core" "ours, the verbs (um)" '
                         '"libfabric memhooks (um)" "libfabric userfaultfd (um)" "UCX rcache"')
        self.assertEqual([line.rpartition('"')[2].replace("NaN", none).split()
                          for line in plotted], cells)
        self.assertIn("plot for [i=2:7]", done.stdout)
        self.assertIn("the lab: status 0", done.stderr)
        # The times of munmap are in cost.py instead.
        self.assertEqual(json.loads(self.written("results.json"))["ratios"], {
            f"cached miss / plain ibv_reg_mr, {size} KiB": 1.25 for size in (64, 1024, 16384)})
        self.assertNotIn("munmap", done.stdout + done.stderr)

    def test_hits_of_guests_that_failed(self):
        done = self.run_script("compare", LAB_STATUS="99")
        self.no_result(done, "the lab: status 0", "status 99, so no result", "no result: 1 entry",
                       "no result: cached miss")
        got = json.loads(self.written("results.json"))["measured"]
        self.assertEqual(sorted(name for name, found in got.items() if found), ["core", "ucx"])

    def test_hits_of_one_guest_that_failed(self):
        done = self.run_script("compare", LAB_KERNEL="debian", LAB_STATUS="99")
        self.no_result(done, "no result: cached miss / plain ibv_reg_mr, 64 KiB")
        self.assertNotIn("no result: 1 entry", done.stderr)

    def test_hits_of_a_program_that_failed(self):
        self.no_result(self.run_script("compare", FAIL="bench_ucx"), "status 3, so no result of",
                       "no result: 1 entry")

    def test_hits_without_a_row(self):
        for row, said in (("libfabric/1000", "1,000 entries, 1 thread"),
                          ("hit/guarded/1000" + THREADS + "1", "1,000 entries, a guard page"),
                          ("miss/1048576", "cached miss / plain ibv_reg_mr, 1024 KiB")):
            with self.subTest(row):
                self.no_result(self.run_script("compare", LEFT_OUT=row), "no result: " + said)

    def test_consumers(self):
        done = self.run_script("consumers")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(" 1000.0     1.00    1.00    1.00\n"), 12 * 3 + 2 * 2)

    def test_consumers_of_a_guest_that_failed(self):
        done = self.run_script("consumers", "ucx", LAB_STATUS="124")
        self.no_result(done, "the lab: status 0", "status 124, so no result")
        self.assertNotIn("1000.0", done.stdout)

    def test_consumers_without_a_turn(self):
        done = self.run_script("consumers", "ucx", FAIL_SHIFT="37")
        self.no_result(done, "no result: ucx, hooks: status 3", "no result: ucx, the word")
        self.assertNotIn("1000.0", done.stdout)

    def test_cost_of_a_guest_that_failed(self):
        self.no_result(self.run_script("cost", LAB_STATUS="99"), "the lab: status 0",
                       "status 99, so no result")

    def test_misses(self):
        done = self.run_script("misses")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("| no cache | - | 0 |\n| libibverbs | 2000 | 0 |\n", done.stdout)
        self.assertEqual(done.stdout.count(" | 1000 | 0 |\n"), 13)

    def test_misses_of_one_library(self):
        done = self.run_script("misses", "grdma")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(" | 1000 | 0 |\n"), 3)

    def test_misses_without_a_row(self):
        for row in ("hit/apart/1", "renewed/registered", "renewed/armed", "renewed/nothing"):
            with self.subTest(row):
                self.no_result(self.run_script("misses", LEFT_OUT=row), "a row has no result")

    def test_growth(self):
        done = self.run_script("growth")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for count in ("1", "10", "100", "1,000", "10,000"):
            self.assertIn(f"| {count} | 2000 | 1000 | 1000 | 1000 | 1000 | 1000 |\n", done.stdout)
        self.assertEqual(self.written("growth.dat").count("\n1000 1000"), 5)
        self.assertRegex(done.stdout, r"tests/bench/run growth; \d{4}-\d\d-\d\d; \S")

    def test_growth_of_a_guest_that_failed(self):
        self.no_result(self.run_script("growth", LAB_STATUS="99"), "a row has no result")

    def test_growth_without_a_row(self):
        self.no_result(self.run_script("growth", LEFT_OUT="ucx_md/100"), "a row has no result")

    def test_stale(self):
        rows = [{"over": "MPI", "kept_by": way, "stale": stale, "messages": 20}
                for way, stale in (("hooks", 19), ("libibverbs (x)", 0))]
        self.write("lab", "#!/bin/sh\nfor last; do :; done\n"
                   f"echo '{json.dumps(rows)}' >\"$last\"\n")
        done = self.run_script("stale")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.written("stale.dat"),
                         '0 0 "MPI: ours (x)" "0 of 20"\n1 95 "MPI: hooks" "19 of 20"\n')
        self.assertIn("tests/bench/run stale; ", done.stdout)

    def test_stale_of_a_guest_that_failed(self):
        self.write("lab", "#!/bin/sh\nexit 99\n")
        self.assertEqual(self.run_script("stale").returncode, 1)

    def test_before(self):
        done = self.run_script("before", "/", "hit/apart", "--rounds", "2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(" 1.00\n"), 4)

    def test_before_without_rows(self):
        self.no_result(self.run_script("before", "/", "typo"), "typo: no such row")

    def test_before_of_a_program_that_failed(self):
        for program in ("bench_cache", "bench_cache_before"):
            with self.subTest(program):
                done = self.run_script("before", "/", "hit/apart/1/", "--rounds", "1", FAIL=program)
                self.no_result(done, "status 3, so no result")


class Figures(unittest.TestCase):
    """The figures in Documentation/figures."""

    def test_each_has_its_origin_and_its_page(self):
        sys.path.insert(0, os.path.join(REPO, "tests/bench"))
        self.addCleanup(sys.path.pop, 0)
        import figures  # pylint: disable=import-outside-toplevel
        pages = ""
        for path in (os.path.join(REPO, "README.md"),
                     *glob.glob(os.path.join(REPO, "Documentation/*.md"))):
            with open(path, encoding="utf-8") as text:
                pages += text.read()
        drawn = {name.removesuffix(".svg") for name in os.listdir(figures.FOLDER)}
        self.assertLessEqual({"stale", "growth"}, drawn)
        self.assertLessEqual(drawn, set(figures.FIGURES))
        for name in drawn:
            with self.subTest(name):
                command = figures.FIGURES[name]
                self.assertIn(f"figures/{name}.svg)", pages)
                with open(os.path.join(figures.FOLDER, name + ".svg"), encoding="utf-8") as text:
                    content = text.read()
                self.assertLess(len(content), 100000)
                words = " ".join({"compare": ["tests/bench/run"]}.get(
                    command[0], ["tests/bench/run", *command]))
                self.assertRegex(content, words + r"; \d{4}-\d\d-\d\d; \w")


if __name__ == "__main__":
    unittest.main()
