#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run Debian's own, unmodified RDMA programs on the installed packages, over rxe0.

This script is for a guest that was started with tests/lab/run --packages. The programs also run on
the library in the build folder. If there is an argument, only checks whose names contain it run.
Each check prints one line: "ok NAME" or "not ok NAME". Each pair of programs runs three times:
without a cache, with RDMAV_MR_CACHE=1, and with RDMAV_MR_CACHE=remote. Both programs must succeed,
the client must print its result, and both programs must have loaded only the packages' libibverbs.
The speed of the programs does not matter. One check lets QEMU move a virtual machine, and compares
the memory (migration.py).
"""
import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../mpi"))

import migration  # noqa: E402
import ucx  # noqa: E402

ADDRESS = "10.0.0.1"
LIMIT = 600     # seconds until a program counts as hung; all take less than 6 on an idle machine
PATIENCE = 10   # seconds to wait for a program whose peer has failed
# A program prints this message if a queue pair gets no packet for half a second. A busy host may
# stop an emulated CPU for so long. The message also comes without on-demand paging and without the
# fork.
RETRIES_RAN_OUT = "transport retry counter exceeded"
ATTEMPTS = 3
PACKAGES = ("libibverbs1", "ibverbs-providers", "libibverbs-dev", "ibverbs-utils", "rdma-core",
            "python3-pyverbs")
# soft-RoCE has small queues.
RXM = {"FI_UNIVERSE_SIZE": "4", "FI_OFI_RXM_MSG_TX_SIZE": "128", "FI_OFI_RXM_MSG_RX_SIZE": "128",
       "FI_OFI_RXM_TX_SIZE": "256", "FI_OFI_RXM_RX_SIZE": "256"}
# By default UCX compares the destination address of a UD message with a field that soft-RoCE does
# not set.
UCX = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "rxe0:1",
       "UCX_UD_VERBS_ETH_DGID_CHECK": "n"}
PERFTEST = ["-d", "rxe0", "-x", "1", "-F", "-n", "100", "-s", "65536"]
PERFTEST_LINE = r"^ 65536 +100 .*"
PINGPONG = ["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "100", "-s", "65536", "-c"]
PINGPONG_LINE = r"^100 iters in .*"
FABRIC = r"^64k\s+20\s+=20 .*"
UCX_FINAL = r"^Final: +100 .*"
FIO = ["fio", "--name=rdma", "--ioengine=rdma", "--port=18516", "--bs=64k", "--size=4m",
       "--iodepth=4", "--thread"]
FIO_DONE = r"issued rwts: total=0,64,0,0 short=0,0,0,0 dropped=0,0,0,0"
RSOCKETS = ["-S", "65536", "-C", "20", "-T", "v"]
RSOCKETS_LINE = r"^custom +64k +20 .*"
UCT = ["ucx_perftest", "-d", "rxe0:1", "-x", "rc_verbs", "-n", "100", "-s", "4096"]


@dataclass
class Pair:
    """A server, and a client that gets the server's address as its last argument."""
    name: str
    command: list
    port: int           # where the server listens for its client
    result: str         # the pattern that the client prints after all iterations
    environment: dict = field(default_factory=dict)
    server: tuple = ()  # options of the server only
    client: tuple = ()


# Two programs are left out. udpong of rdmacm-utils fails over soft-RoCE ("rconnect: No such file or
# directory"), also with Debian's own libraries. fi_pingpong over ofi_rxm sometimes crashes. If the
# peer closes first, ofi_rxm posts a receive to an endpoint that it has just closed (libfabric's
# issue 11828). Open MPI also uses ofi_rxm, but waits for its peers at the end, so it is tested.
PAIRS = (
    Pair("perftest ib_write_bw", ["ib_write_bw", *PERFTEST], 18515, PERFTEST_LINE),
    Pair("perftest ib_read_lat", ["ib_read_lat", *PERFTEST], 18515, PERFTEST_LINE),
    Pair("perftest ib_send_bw", ["ib_send_bw", *PERFTEST], 18515, PERFTEST_LINE),
    Pair("on demand: ib_write_bw", ["ib_write_bw", "--odp", *PERFTEST], 18515, PERFTEST_LINE),
    Pair("on demand: ib_read_lat", ["ib_read_lat", "--odp", *PERFTEST], 18515, PERFTEST_LINE),
    Pair("on demand: ib_send_bw", ["ib_send_bw", "--odp", *PERFTEST], 18515, PERFTEST_LINE),
    Pair("on demand: ibv_rc_pingpong, a range", [*PINGPONG, "-o"], 18515, PINGPONG_LINE),
    Pair("on demand: ibv_rc_pingpong, all memory", [*PINGPONG, "-O"], 18515, PINGPONG_LINE),
    Pair("on demand: ibv_rc_pingpong, prefetched", [*PINGPONG, "-o", "-P"], 18515, PINGPONG_LINE),
    Pair("libfabric fi_pingpong verbs msg",
         ["fi_pingpong", "-p", "verbs", "-e", "msg", "-I", "20", "-S", "65536", "-c"], 47592,
         FABRIC),
    Pair("UCX ucx_perftest put_bw zcopy", [*UCT, "-t", "put_bw", "-D", "zcopy"], 13337, UCX_FINAL),
    Pair("UCX ucx_perftest am_bw bcopy", [*UCT, "-t", "am_bw", "-D", "bcopy"], 13337, UCX_FINAL),
    Pair("UCX ucx_perftest tag_lat", ["ucx_perftest", "-t", "tag_lat", "-n", "100", "-s", "65536"],
         13337, UCX_FINAL, UCX),
    *(Pair(f"fio rdma {verb}", FIO, 18516, FIO_DONE, server=("--rw=read",),
           client=("--rw=write", f"--verb={verb}", "--hostname"))
      for verb in ("write", "read")),
    *(Pair(f"rdmacm-utils {name}", [name, *RSOCKETS], 7471, RSOCKETS_LINE, client=("-s",))
      for name in ("rstream", "riostream")),
)
MPI = {
    "Open MPI": ("mpicc.openmpi", [
        "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--mca", "btl",
        "self", "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include",
        "verbs;ofi_rxm"], RXM),
    "MPICH": ("mpicc.mpich", ["mpiexec.mpich", "-np", "2"], {**UCX, "MPIR_CVAR_NOLOCAL": "1"}),
}


def library():
    """The file of libibverbs on this system, or the lab's file that replaces it."""
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), "/usr/lib/*"]
    links = [name for folder in folders for name in glob.glob(f"{folder}/libibverbs.so.1")]
    return os.path.realpath(links[0]) if links else ""


def environment(cached, folder, more):
    """A program's environment, with or without RDMAV_MR_CACHE. The loader writes its log to
    `folder`.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("RDMAV_")}
    return {**env, "LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": os.path.join(folder, "ld"), **more,
            **({"RDMAV_MR_CACHE": cached} if cached else {})}


def loaded_wrongly(folder, processes):
    """Return complaints if too few processes loaded the packages' libibverbs, or if a process
    loaded another file.
    """
    found = []
    for path in glob.glob(os.path.join(folder, "ld.*")):
        with open(path, encoding="utf-8", errors="replace") as text:
            found += {os.path.realpath(name) for name
                      in re.findall(r"calling init: (\S+/libibverbs\.so\S*)", text.read())}
    if len(found) >= processes and set(found) == {library()}:
        return ""
    return f"not {library()}, but {found or 'nothing'} was loaded"


def wait_until(condition, process):
    """Wait for a condition. Return False if the process ends, or after the time limit."""
    for _ in range(LIMIT * 20):
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return False


def listening(port):
    """Does a program listen on a port of TCP or of the RDMA connection manager?"""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            with open(table, encoding="ascii") as text:
                if re.search(rf":{port:04X} \S+ 0A ", text.read()):
                    return True
    ids = subprocess.run(["rdma", "resource", "show", "cm_id"], capture_output=True, text=True,
                         check=True).stdout
    return bool(re.search(rf"state LISTEN .*:{port}\b", ids))


def both_end(server, client):
    """Wait until both programs end, or until a time limit, because the peer of a failed process may
    wait forever. Return False at the time limit.
    """
    end = time.monotonic() + LIMIT
    while server.poll() is None or client.poll() is None:
        if server.poll() or client.poll():
            end = min(end, time.monotonic() + PATIENCE)
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def run_once(pair, cached):
    """Run both programs; return (exit statuses, client's output, both outputs, the complaints)."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as kept:
        env = environment(cached, folder, pair.environment)
        said = [kept.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]

        def start(out, *options):
            process = subprocess.Popen([*pair.command, *options], env=env, stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT)
            kept.callback(process.wait)
            kept.callback(process.kill)
            return process

        server = start(said[0], *pair.server)
        wait_until(lambda: listening(pair.port), server)
        client = start(said[1], *pair.client, ADDRESS)
        wrong = "" if both_end(server, client) else f"not done after {LIMIT} s, or hangs\n"
        statuses = [client.poll(), server.poll()]
        wrong = wrong or loaded_wrongly(folder, 2)
        for out in said:
            out.seek(0)
        server_said, client_said = (out.read() for out in said)
    return statuses, client_said, f"client:\n{client_said}\nserver:\n{server_said}", wrong


def run_pair(pair, cached):
    """The complaints, or "" if there are none."""
    for _ in range(ATTEMPTS):
        statuses, said, outputs, wrong = run_once(pair, cached)
        if RETRIES_RAN_OUT not in outputs:
            break
    found = re.search(pair.result, said, re.MULTILINE)
    if any(statuses) or None in statuses:
        return f"{wrong}exit status {statuses[0]} and {statuses[1]}\n{outputs}"
    if not found:
        return f"no result\n{outputs}"
    if not wrong:
        print(f"# {pair.name}: {' '.join(found.group(0).split())}")
    return wrong


def run_mpi(name, cached):
    """Build and run the exchange under one MPI; return the complaints."""
    compiler, launcher, more = MPI[name]
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "mpi_exchange")
        subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program,
                        os.path.join(HERE, "mpi_exchange.c")], check=True)
        done = subprocess.run([*launcher, program], env=environment(cached, folder, more),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=2 * LIMIT, check=False)
        wrong = loaded_wrongly(folder, 2)
    if done.returncode or "exchanged " not in done.stdout:
        return f"exit status {done.returncode}\n{done.stdout}"
    return wrong


def run_migration(pinned, cached):
    """Let QEMU move a virtual machine; return the complaints."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(cached, folder, {"RDMAV_MR_CACHE_STATS": "1"})
        said, wrong = migration.run(folder, env, f"rdma:{ADDRESS}:4444", pinned, LIMIT)
        wrong = wrong or loaded_wrongly(folder, 2)
    misses = sum(map(int, re.findall(r"^libibverbs: .* hits, (\d+) misses", said, re.MULTILINE)))
    if wrong:
        return wrong + said
    print(f"# QEMU migration: {misses} registrations by the cache")
    # If all memory is pinned first, both sides register it with remote rights.
    expected = cached == "remote" or cached and not pinned
    return "" if bool(misses) == bool(expected) else f"not as cached {cached}\n{said}"


def check_packages():
    """Check that the fork's packages are installed and unmodified; return the complaints."""
    # librdmacm1 has another name since Debian 13
    owner = subprocess.run(["dpkg", "-S", *glob.glob("/usr/lib/*/librdmacm.so.1")],
                           capture_output=True, text=True, check=True).stdout.partition(":")[0]
    names = [*PACKAGES, owner]
    listed = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}\n", *names],
                            capture_output=True, text=True, check=False).stdout
    lines = listed.splitlines()
    if len(lines) != len(names) or not all(re.match(r"installed .*\+mrnotify", line)
                                           for line in lines):
        return listed or "not installed"
    changed = subprocess.run(["dpkg", "--verify", *names], capture_output=True, text=True,
                             check=False).stdout
    return changed


def check_devices():
    """Check that UCX lists its transports over rxe0. Return the complaints."""
    listed = subprocess.run(["ucx_info", "-d"], capture_output=True, text=True, check=False).stdout
    found = re.findall(r"Transport: (\w+)\n#\s+Device: rxe0:1$", listed, re.MULTILINE)
    return "" if {"rc_verbs", "ud_verbs"} <= set(found) else listed


def show_clock():
    """Add the processor's frequency, which perftest reads and User Mode Linux does not show."""
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        before = text.read()
    if "cpu MHz" in before:
        return
    with open("/tmp/cpuinfo", "w", encoding="utf-8") as out:
        out.write(before.rstrip("\n") + "\ncpu MHz\t\t: 1000.000\n\n")
    subprocess.run(["mount", "--bind", "/tmp/cpuinfo", "/proc/cpuinfo"], check=True)


def check(name, function, *arguments):
    """One check and its line."""
    try:
        wrong = function(*arguments)
    except (OSError, subprocess.SubprocessError) as error:
        wrong = repr(error)
    if wrong:
        print("  " + wrong.rstrip().replace("\n", "\n  "))
    print(("not ok " if wrong else "ok ") + name, flush=True)
    return not wrong


def skipped(name):
    """The reason why a check can't run on this system, or ""."""
    known = {"MPICH": ucx.NO_MPICH, "UCX ucx_perftest": ucx.NO_PERFTEST} if ucx.new() else {}
    return next((why for start, why in known.items() if name.startswith(start)), "")


def main():
    """Run all checks, or only checks whose name contains the first argument."""
    show_clock()
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    checks = [("packages", check_packages), ("UCX ucx_info", check_devices)]
    for cached in ("", "1", "remote"):
        end = cached and f" cached {cached}"
        checks += [(pair.name + end, run_pair, pair, cached) for pair in PAIRS]
        checks += [(name + end, run_mpi, name, cached) for name in MPI]
        checks += [(f"QEMU migration {how}{end}", run_migration, how == "pinned", cached)
                   for how in ("by chunks", "pinned")]
    checks = [one for one in checks if only in one[0]]
    for one in [one for one in checks if skipped(one[0])]:
        print(f"skip {one[0]}: {skipped(one[0])}")
        checks.remove(one)
    passed = [check(*one) for one in checks]
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    assert shutil.which("rdma"), "for a guest of tests/lab/run"
    sys.exit(main())
