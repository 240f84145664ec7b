#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run UCX's gtest in a guest, with the kernel's word and with hooks: caches, hooks, soft-RoCE.

`buildlib/consumers gtest` builds gtest. All output of gtest goes to standard error. The arguments
are groups; the default is all.
"""
import os
import re
import subprocess
import sys
import threading

import beside
import limited

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
GTEST = os.path.join(REPO, "build/consumers/gtest/build/test/gtest/gtest")
WAYS = {"hooks": "n", "word": "try"}
# By default UCX compares the destination address of a UD message with a field that soft-RoCE does
# not set, and drops the message.
ENVIRONMENT = {"UCX_NET_DEVICES": "rxe0:1", "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
               "UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_HANDLE_ERRORS": "bt", "UCX_LOG_LEVEL": "warn"}
# {group: (tests, excluded tests)}. Benchmarks, slow tests, and most tests that test only the
# transport are excluded.
GROUPS = {
    "caches": ("*rcache*:*test_md*:*test_ib_md*:*test_mem*:*pgtable*",
               "posix/*:sysv/*:cma/*:shm_ib/*:*perf*"),
    "hooks": ("malloc_hook*:mem_types/memtype_hooks*", "*perf*"),
    "rc, ud": ("rc_verbs/uct_p2p*:rc_verbs/*madvise*:rc_verbs/uct_f*:rc_verbs/uct_amo*:"
               "rc_verbs/test_rc*:ud_verbs/uct_p2p*zcopy*:ud_verbs/uct_p2p_mix*",
               "*perf*:*keep_data*:*mix_10000*:*last_wqe*"),
    "ucp": ("rc/test_ucp_mmap*:rc/test_ucp_rma*zcopy*:rc/test_ucp_tag_nbx*:"
            "rc/test_ucp_am_nbx_rndv*:rc/test_ucp_tag_xfer*rndv*", "*perf*"),
}
# The groups that must arm registrations on rxe0: regions of UCT, and of UCP.
ARMS = {"caches": ("word",), "rc, ud": ("word",), "ucp": ("word",)}
KNOWN = ("ib/test_md.sys_device",)      # soft-RoCE is no PCI device
# This assertion at the last event of a queue pair fails rarely, in any test (openucx/ucx issue
# 10432).
CRASH = "Assertion `wait_ctx->cb_id == (-1)' failed"
LIMIT = 1800    # seconds until a test counts as hung; test_rcache_pfn.enum_pfn touches 800 MB


def gtest(tests, way):
    """Run these tests until a crash or a timeout; return the output and the status."""
    env = {**os.environ, **ENVIRONMENT, "UCX_RCACHE_NOTIFY": WAYS[way]}
    said = []
    with subprocess.Popen([GTEST, "--gtest_color=no", f"--gtest_filter={tests}"], env=env,
                          text=True, errors="replace", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        limit = threading.Timer(LIMIT, process.kill)
        limit.start()
        for line in process.stdout:
            if line.startswith("[ RUN "):
                limit.cancel()
                limit = threading.Timer(LIMIT, process.kill)
                limit.start()
            said.append(line)
            print(way, line, end="", file=sys.stderr, flush=True)
        limit.cancel()
    return "".join(said), process.returncode


def run(group, way):
    """({test: result}, {test: output}). After a crash gtest continues with the next test."""
    tests, left_out = GROUPS[group]
    found, said, ended = {}, {}, False
    before = limited.arms("rxe0")
    while not ended:
        output, status = gtest(f"{tests}:-{':'.join([left_out, *found])}", way)
        blocks = re.split(r"^\[ RUN      \] ", output, flags=re.MULTILINE)[1:]
        for block in blocks:
            name = block.split(maxsplit=1)[0]
            end = re.search(r"^\[ +(OK|FAILED|SKIP)\b", block, re.MULTILINE)
            kind = end.group(1) if end else "known crash" if CRASH in block else "none"
            found[name] = {"OK": "pass", "SKIP": "not run",
                           "known crash": "known crash"}.get(kind, "fail")
            said[name] = block[-4000:]
        ended = not blocks or "[==========]" in blocks[-1]
    # Arming is a separate result, because all tests may pass although hooks are in use. The end of
    # gtest is a separate result, because gtest may crash there.
    armed = limited.arms("rxe0") > before
    found[f"{group}: armed or not"] = "pass" if armed == (way in ARMS.get(group, ())) else "fail"
    how = "pass" if status in (0, 1) else "known crash" if CRASH in output else "fail"
    found[f"{group}: ends well"] = how
    said[f"{group}: ends well"] = output[-4000:]
    return found, said


if __name__ == "__main__":
    sys.exit(beside.run_all(run, sys.argv[1:] or GROUPS, KNOWN, "word", "hooks"))
