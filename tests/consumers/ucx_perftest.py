#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run UCX's ucx_perftest over rxe0, in a guest: with the kernel's word, and with hooks.

Both ways use the UCX of buildlib/consumers; the kernel's count of armings shows which way was used.
"""
import os
import re
import subprocess
import sys
import time

import beside
import limited
import probing

PROGRAM = os.path.join(probing.BUILT, "ucx/bin/ucx_perftest")
WAYS = {"hooks": "n", "word": "try"}
# By default UCX compares the destination address of a UD message with a field that soft-RoCE does
# not set, and drops the message.
OVER_RXE = {"UCX_NET_DEVICES": "rxe0:1", "UCX_TLS": "rc_verbs,ud_verbs,self",
            "UCX_UD_VERBS_ETH_DGID_CHECK": "n"}
TESTS = [["-t", test, *size] for test in ("tag_bw", "tag_lat", "ucp_put_bw", "ucp_get", "ucp_am_bw")
         for size in (["-s", "65536", "-n", "200"], ["-s", "1048576", "-n", "20"])]
LIMIT = 600     # seconds until a program counts as hung


def run_client(command, env):
    """Start the client when the server listens; return its output, or "" if it failed."""
    for _ in range(LIMIT * 10):
        try:
            client = subprocess.run([*command, "10.0.0.1"], env=env, text=True, check=False,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return ""
        if "refused" not in client.stdout:
            return client.stdout if client.returncode == 0 else ""
        time.sleep(0.1)
    return ""


def run(way):
    """{test: result}."""
    env = probing.environment({**OVER_RXE, "UCX_RCACHE_NOTIFY": WAYS[way]})
    found, before = {}, limited.arms("rxe0")
    for number, options in enumerate(TESTS):
        command = [PROGRAM, *options, "-p", str(13400 + number)]
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            said = run_client(command, env)
            server.kill()
        done = re.search(rf"^Final: +{options[-1]} ", said, re.MULTILINE)
        found["ucx_perftest " + " ".join(options)] = "pass" if done else "fail"
    armed = limited.arms("rxe0") > before
    found["ucx_perftest: armed or not"] = "pass" if armed == (way == "word") else "fail"
    return found


if __name__ == "__main__":
    sys.exit(beside.compare(run("hooks"), run("word"), {}))
