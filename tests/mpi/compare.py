#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Compare registration caches under Debian's own, unmodified MPI: print a table, then checks.

The script runs in a guest. Each row is a job of stale_messages.cpp with other settings. Only the
rows of our cache set RDMAV_MR_CACHE=remote, because MPI registers with remote rights. A cache that
intercepts libc must let stale bytes through. This check shows that the script can see stale bytes.
Our cache must let no stale bytes through, and must save registrations. --consumers adds libfabric
and UCX of buildlib/consumers, whose caches check the kernel's word and intercept no calls. With
--nodes (tests/lab/run --nodes 2) each of the two processes has its own node. tests/mpi/run and
tests/run call this script.
"""
import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field

import ucx

BUILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/tests/mpi")
LIMIT = 600     # seconds until a job counts as hung; none takes 12 on an idle machine

CONSUMERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/consumers")
OPENMPI_5 = os.path.join(CONSUMERS, "openmpi/bin/mpirun")
OPENMPI = ["mpirun.openmpi", "--allow-run-as-root", "--mca", "btl", "self"]
OVER = {
    "Open MPI, libfabric": [*OPENMPI, "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca",
                            "mtl_ofi_provider_include", "verbs;ofi_rxm"],
    "Open MPI, UCX": [*OPENMPI, "--mca", "pml", "ucx"],
    "MPICH, UCX": ["mpiexec.mpich"],
    "Open MPI 5, btl/ofi": [OPENMPI_5, "--allow-run-as-root", "--mca", "pml", "ob1", "--mca", "btl",
                            "self,ofi", "--mca", "btl_ofi_mode", "2", "--mca",
                            "opal_common_ofi_provider_include", "verbs;ofi_rxm"],
}
PROGRAM = {"mpirun.openmpi": f"{BUILD}/stale_openmpi", "mpiexec.mpich": f"{BUILD}/stale_mpich",
           OPENMPI_5: f"{BUILD}/stale_openmpi"}
ON_ONE_NODE = {"mpirun.openmpi": ["--oversubscribe"], "mpiexec.mpich": [],
               OPENMPI_5: ["--oversubscribe"]}
# While the processes start and exchange their addresses, they use the wire that loses no packets.
ON_TWO_NODES = {
    "mpirun.openmpi": ["-H", "node1,node2", "--mca", "plm_rsh_agent", "lab-rsh",
                       "--mca", "oob_tcp_if_include", "eth2"],
    "mpiexec.mpich": ["-hosts", "node1,node2", "-launcher", "rsh", "-launcher-exec", "lab-rsh",
                      "-iface", "eth2"],
}
# soft-RoCE has small queues. Processes on one machine must not use shared memory for messages. By
# default UCX compares the destination address of a UD message with a field that soft-RoCE does not
# set, drops the message, and reports "UD endpoint ... unhandled timeout error". UCX 1.18 detects
# soft-RoCE, and then copies messages instead of registering, except if it must read from the peer's
# memory.
ALWAYS = {
    "FI_UNIVERSE_SIZE": "4", "FI_OFI_RXM_MSG_TX_SIZE": "128", "FI_OFI_RXM_MSG_RX_SIZE": "128",
    "FI_OFI_RXM_TX_SIZE": "256", "FI_OFI_RXM_RX_SIZE": "256",
    "UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "rxe0:1",
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n", "UCX_RNDV_THRESH": "32k", "MPIR_CVAR_NOLOCAL": "1",
    "UCX_WARN_UNUSED_ENV_VARS": "n", "RDMAV_MR_CACHE_STATS": "1",
    **({"UCX_RNDV_SCHEME": "get_zcopy"} if ucx.new() else {}),
}
ONLY_LIBFABRIC = {"OMPI_MCA_memory": "^patcher"}    # otherwise Open MPI's hooks replace libfabric's
FABRIC_OFF = {"FI_MR_CACHE_MAX_COUNT": "0", **ONLY_LIBFABRIC}
UCX_OFF = {"UCX_MEM_EVENTS": "n", "UCX_IB_REG_METHODS": "direct", "UCX_RCACHE_ENABLE": "n",
           **ONLY_LIBFABRIC}       # the second is for UCX 1.13, the third for 1.18
OURS = {"RDMAV_MR_CACHE": "remote"}
BY_US = "libibverbs (RDMAV_MR_CACHE=remote)"

FABRIC_BUILT = os.path.join(CONSUMERS, "libfabric/lib")
UCX_BUILT = os.path.join(CONSUMERS, "ucx/lib")
OPENMPI_BUILT = f"{os.path.join(CONSUMERS, 'openmpi/lib')}:{FABRIC_BUILT}"
WORD_OFF = {"UCX_RCACHE_NOTIFY": "n"}
ONLY_WORD = {"UCX_RCACHE_NOTIFY": "y"}


def restores():
    """The kernel's count of restores; 0 if the kernel does not notify."""
    path = "/sys/class/infiniband/rxe0/ports/1/hw_counters/mr_notify_restores"
    if not os.path.exists(path):
        return 0
    with open(path, encoding="ascii") as count:
        return int(count.read())


@dataclass
class Row:
    """One job and its expected results."""
    over: str
    kept_by: str
    kind: str           # "hooks" must miss changes; "other" may have any result
    environment: dict = field(default_factory=dict)
    libraries: str = ""     # the folder of libraries that replace the distribution's
    more: int = 0           # registrations of a buffer that libraries below keep
    seen: dict = None
    hits: int = 0
    restored: int = 0       # restored registrations of this node's processes

    @property
    def name(self):
        """The name of the row in the checks."""
        return f"{self.over}: {self.kept_by}"

    def run(self, where, programs=PROGRAM):
        """Fill in the results. If the job fails, print its output and return False."""
        launcher, *options = OVER[self.over]
        command = [launcher, *where[launcher], "-np", "2", *options, programs[launcher]]
        env = {name: value for name, value in os.environ.items() if not name.startswith("RDMAV_")}
        env.update(ALWAYS, **self.environment)
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, (self.libraries,
                                                        os.environ.get("LD_LIBRARY_PATH"))))
        before = restores()
        try:
            done = subprocess.run(
                command, env=env, text=True, check=False,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
        except subprocess.TimeoutExpired as late:
            print(f"{self.name}: not done after {LIMIT} s\n{late.stdout}\n{late.stderr}")
            return False
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or len(lines) != 1:
            print(f"{self.name}: status {done.returncode}\n{done.stdout}{done.stderr}")
            return False
        self.seen = json.loads(lines[0])
        self.restored = restores() - before
        self.hits = sum(map(int, re.findall(r"^libibverbs: process .*?: (\d+) hits",
                                            done.stderr, re.MULTILINE)))
        return True

    def show(self):
        """The row of the table."""
        again, kept = self.seen["mapped_again"], self.seen["kept"]
        print(f"{self.over:<20} {self.kept_by:<34} {again['stale']:>2} of {again['messages']} "
              f"{again['registrations']:>13} {again['microseconds'] / 1000:>9.1f} "
              f"{kept['registrations']:>13} {kept['microseconds'] / 1000:>9.1f} "
              f"{self.hits if self.kind == 'ours' else '-':>6} "
              f"{self.seen['patched_bytes']:>7} {self.seen['userfaultfds']:>4} "
              f"{self.seen['threads']:>7}", flush=True)


ROWS = [
    Row("Open MPI, libfabric", "Open MPI's hooks (the default)", "hooks"),
    Row("Open MPI, libfabric", "libfabric's memhooks", "hooks",
        {"FI_MR_CACHE_MONITOR": "memhooks", **ONLY_LIBFABRIC}),
    Row("Open MPI, libfabric", "libfabric's userfaultfd", "other",
        {"FI_MR_CACHE_MONITOR": "userfaultfd", **ONLY_LIBFABRIC}),
    Row("Open MPI, libfabric", "no cache", "plain", FABRIC_OFF),
    Row("Open MPI, libfabric", BY_US, "ours", {**FABRIC_OFF, **OURS}),
    Row("Open MPI, UCX", "UCX's hooks (the default)", "hooks"),
    Row("Open MPI, UCX", "no cache", "plain", UCX_OFF),
    Row("Open MPI, UCX", BY_US, "ours", {**UCX_OFF, **OURS}),
    Row("MPICH, UCX", "UCX's hooks (the default)", "hooks"),
    Row("MPICH, UCX", "no cache", "plain", UCX_OFF),
    Row("MPICH, UCX", BY_US, "ours", {**UCX_OFF, **OURS}),
]
# Libraries of buildlib/consumers: the same build, with hooks and with the word.
OF_CONSUMERS = [
    Row("Open MPI, libfabric", "libfabric 2.1: memhooks", "hooks",
        {"FI_MR_CACHE_MONITOR": "memhooks", **ONLY_LIBFABRIC}, FABRIC_BUILT),
    Row("Open MPI, libfabric", "libfabric 2.1: no cache", "plain", FABRIC_OFF, FABRIC_BUILT),
    Row("Open MPI, libfabric", "libfabric 2.1: verbs_notify", "word", ONLY_LIBFABRIC, FABRIC_BUILT),
    Row("Open MPI, libfabric", "the same beside Open MPI's hooks", "beside", {}, FABRIC_BUILT),
    Row("Open MPI, UCX", "UCX_RCACHE_NOTIFY=n", "hooks", WORD_OFF, UCX_BUILT),
    Row("Open MPI, UCX", "UCX_RCACHE_NOTIFY=n: no cache", "plain", UCX_OFF, UCX_BUILT),
    Row("Open MPI, UCX", "UCX_RCACHE_NOTIFY=try", "beside", ONLY_LIBFABRIC, UCX_BUILT),
    Row("Open MPI, UCX", "UCX_RCACHE_NOTIFY=y", "word", {**ONLY_WORD, **ONLY_LIBFABRIC}, UCX_BUILT),
    Row("Open MPI, UCX", "UCX_RCACHE_NOTIFY=y, UCP's cache", "word",
        {"UCX_PROTO_ENABLE": "y", **ONLY_WORD, **ONLY_LIBFABRIC}, UCX_BUILT),
    Row("MPICH, UCX", "UCX_RCACHE_NOTIFY=n", "hooks", WORD_OFF, UCX_BUILT),
    Row("MPICH, UCX", "UCX_RCACHE_NOTIFY=n: no cache", "plain", UCX_OFF, UCX_BUILT),
    Row("MPICH, UCX", "UCX_RCACHE_NOTIFY=try", "beside", {}, UCX_BUILT),
    Row("MPICH, UCX", "UCX_RCACHE_NOTIFY=y", "word", ONLY_WORD, UCX_BUILT),
]
# These rows use Open MPI's own cache grdma, above fi_mr_reg(). ofi_rxm also registers the
# receiver's buffer, and libfabric's cache keeps this registration. If libfabric's cache uses
# memhooks, grdma gets the same registration. If grdma uses FI_MR_NOTIFY_OPS, libfabric's cache
# keeps no registration of grdma, so the buffer is registered twice.
OF_OPENMPI = [
    Row("Open MPI 5, btl/ofi", "grdma, Open MPI's hooks", "hooks",
        {"FI_MR_CACHE_MONITOR": "memhooks", "OMPI_MCA_btl_ofi_mr_notify": "0"}, OPENMPI_BUILT),
    Row("Open MPI 5, btl/ofi", "no cache", "plain",
        {"OMPI_MCA_mpi_leave_pinned": "0", **FABRIC_OFF}, OPENMPI_BUILT),
    Row("Open MPI 5, btl/ofi", "grdma, FI_MR_NOTIFY_OPS", "word", ONLY_LIBFABRIC, OPENMPI_BUILT,
        more=1),
    Row("Open MPI 5, btl/ofi", "the same beside Open MPI's hooks", "beside", {}, OPENMPI_BUILT),
]


def check(what, good):
    """One line of the result."""
    print(("ok " if good else "not ok ") + what, flush=True)
    return good


def checks(row, plain, hooks):
    """Check the results of a row. `plain` is the row of the same MPI without a cache, or None.
    `hooks` is the row of the same MPI with a cache that intercepts calls, or None.
    """
    again, kept, doubted = (row.seen[part] for part in ("mapped_again", "kept", "doubted"))
    good = True
    if row.kind == "hooks":
        good &= check(f"{row.name}: fooled", again["stale"] > 0)
        good &= check(f"{row.name}: its patches are seen", row.seen["patched_bytes"] > 0)
    if row.kind in ("plain", "ours", "word", "beside"):
        good &= check(f"{row.name}: no stale message", again["stale"] + kept["stale"] == 0)
    if row.kind == "word":
        good &= check(f"{row.name}: no patched function, no userfaultfd",
                      row.seen["patched_bytes"] + row.seen["userfaultfds"] == 0)
        good &= check(f"{row.name}: no thread", plain is not None and
                      row.seen["threads"] <= plain.seen["threads"])
        good &= check(f"{row.name}: registers no more than with hooks", hooks is not None and
                      kept["registrations"] <= hooks.seen["kept"]["registrations"] + row.more)
    if row.kind == "ours":
        good &= check(f"{row.name}: hits in the statistics", row.hits > 0)
    if row.kind in ("ours", "word"):
        # Every second time the memory is dropped instead of unmapped. Then a suspended registration
        # is restored with new pages.
        good &= check(f"{row.name}: registers memory that was mapped again, or restores it",
                      again["registrations"] + row.restored >= again["messages"] - 1)
        good &= check(f"{row.name}: keeps suspect registrations that are intact",
                      doubted["registrations"] <= kept["registrations"] and
                      not doubted["stale"])
        good &= check(f"{row.name}: saves registrations", plain is not None and
                      kept["registrations"] < plain.seen["kept"]["registrations"])
    return good


def main():
    """Run all rows, or only rows whose name contains one of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--consumers", action="store_true",
                        help="use the libraries of buildlib/consumers, which must exist")
    parser.add_argument("--openmpi", action="store_true",
                        help="use the Open MPI 5 of buildlib/consumers")
    parser.add_argument("--nodes", action="store_true", help="a process on each of two nodes")
    parser.add_argument("--json", metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("name", nargs="*", help="run only rows whose name contains NAME")
    args = parser.parse_args()
    rows = OF_CONSUMERS if args.consumers else OF_OPENMPI if args.openmpi else ROWS
    chosen = [row for row in rows
              if not args.name or any(text in row.name for text in args.name)]
    if ucx.new():
        for row in [row for row in chosen if row.over.startswith("MPICH")]:
            print(f"skip {row.name}: {ucx.NO_MPICH}")
            chosen.remove(row)
    print(f"{'':<55}  mapped again each time ------------   kept ----------------\n"
          f"{'':<20} {'registrations kept by':<34} stale    registrations   ms/msg "
          f"registrations    ms/msg   hits patched uffd threads", flush=True)
    good = True
    like = defaultdict(dict)    # the last row of each MPI and kind
    for row in chosen:
        if row.run(ON_TWO_NODES if args.nodes else ON_ONE_NODE):
            row.show()
            like[row.over][row.kind] = row
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump([{"over": row.over, "kept_by": row.kept_by, **row.seen["mapped_again"]}
                       for row in chosen if row.seen], out, indent=1)
    for row in chosen:
        good &= (checks(row, like[row.over].get("plain"), like[row.over].get("hooks"))
                 if row.seen else check(f"{row.name}: runs", False))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
