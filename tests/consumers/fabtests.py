#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run libfabric's own tests over rxe0, in a guest: with verbs_notify, and with memhooks.

Runs libfabric's script with all tests that libfabric's list of excluded tests allows for a
provider. The set "standard" is left out, because it is "short" with more messages. Also runs the
test of the registration cache, which the script lacks. `buildlib/consumers tests` builds all of
them. The arguments are providers; the default is all.
"""
import os
import re
import subprocess
import sys
import tempfile

import beside
import limited

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BUILT = os.path.join(REPO, "build/consumers/fabtests")
LIBRARY = os.path.join(REPO, "build/consumers/libfabric/lib")
ADDRESS = "10.0.0.1"
# All tests use one message size, because their default sizes need buffers of 512 MB and more. The
# tests in UNSIZED lack the option -S.
UNSIZED = ("^fi_msg$", "^fi_msg_epoll", "^fi_msg_sockets", "^fi_rdm$", "^fi_rdm -U", "av_xfer",
           "cm_data", "cq_data", "recv_cancel", "shared_ctx")
SIZED = ("_bw", "flood", "inject", "multi", "peek", "pingpong", "unexpected",
         # This test registers 1 GB at a time, and rxe allocates the page table for it by kcalloc().
         "recv_cancel")
# (sets, tests left out of them, options)
RUNS = (("unit,regression,functional", SIZED, ()),
        ("functional,short", UNSIZED, ("-C", "-S 65536", "-L", "-S 65536")))
EXCLUDED = {"verbs": "verbs/verbs.exclude", "verbs;ofi_rxm": "ofi_rxm/ofi_rxm.exclude"}
CACHE = "fi_mr_cache_evict"
# This test detects a hit by its time, and also fails if the first registration is slow by chance.
# If the cache returns stale registrations, the test fails each time.
TRIES = 5
# soft-RoCE has small queues.
SMALL = {"FI_UNIVERSE_SIZE": "4", "FI_OFI_RXM_MSG_TX_SIZE": "128", "FI_OFI_RXM_MSG_RX_SIZE": "128",
         "FI_OFI_RXM_TX_SIZE": "256", "FI_OFI_RXM_RX_SIZE": "256"}
KINDS = {"Pass": "pass", "Fail": "fail"}
# If the peer closes first, ofi_rxm posts a receive to an endpoint that it has just closed. Then it
# may crash after the client has printed its result (libfabric's issue 11828).
CRASH = re.compile(r"server_stdout: \|\n.*Segmentation fault[\s\S]*client_stdout: \|\n +bytes ")
# These tests also fail with hooks. fi_cq_test opens 32,768 completion queues, until memory is
# short. sighandler_test enables an endpoint that is not connected, and passes only if a signal
# comes earlier.
KNOWN = ("fi_cq_test", "fi_msg_sockets", "fi_shared_ctx", "sighandler_test")
WORD = "verbs_notify"
LIMIT = 300     # seconds until a test counts as hung
# The script finds the processes to kill with ps. In User Mode Linux, which does not show its boot
# time, ps fails.
PS = """\
#!/bin/sh
[ "$1" != -p ] || exec test -d "/proc/$2"
for process in /proc/[0-9]*; do echo "$(cat "$process/comm") ${process#/proc/}"; done
"""


def run(provider, monitor):
    """({test: result}, {test: its output})."""
    env = {**os.environ, **SMALL, "FI_MR_CACHE_MONITOR": monitor,
           "LD_LIBRARY_PATH": f"{LIBRARY}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    excluded = os.path.join(BUILT, "share/fabtests/test_configs", EXCLUDED[provider])
    found, said = {}, {}
    before = limited.arms("rxe0")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "ps"), "w", encoding="ascii") as script:
            script.write(PS)
        os.chmod(script.name, 0o755)
        for tests, left_out, options in RUNS:
            done = subprocess.run(
                [f"{BUILT}/bin/runfabtests.sh", "-v", "-T", str(LIMIT), "-t", tests, *options, "-p",
                 f"{BUILT}/bin", "-s", ADDRESS, "-c", ADDRESS, "-g", ADDRESS, "-f", excluded,
                 "-e", ",".join(left_out), provider], cwd=folder, text=True, check=False,
                env={**env, "PATH": f"{folder}:{env['PATH']}"}, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for block in re.split(r"^- name: +", done.stdout, flags=re.MULTILINE)[1:]:
                name = block.partition("\n")[0]
                result = re.search(r"^  result: (\w+)", block, re.MULTILINE).group(1)
                if result != "Excluded":
                    crashed = provider.endswith("ofi_rxm") and CRASH.search(block)
                    found[name] = "crash" if crashed else KINDS.get(result, "not run")
                    said[name] = block
    for _ in range(TRIES):
        done = limited.run(LIMIT, [f"{BUILT}/bin/{CACHE}", "-p", provider], env=env)
        for test, result in re.findall(r"^Running (mr_cache_\w+).*?\.\.\.(\w+)", done.stdout,
                                       re.MULTILINE):
            name = f"{CACHE} {test} -p \"{provider}\""
            if found.get(name) != "pass":
                found[name] = {"PASS": "pass", "FAIL": "fail"}.get(result, "not run")
                said[name] = done.stdout
    # The regions of a hooking provider differ from the regions of the domain below.
    hooked = limited.run(LIMIT, [f"{BUILT}/bin/fi_mr_notify_test", "-p", provider],
                         env={**env, "FI_HOOK": "noop"})
    name = f"fi_mr_notify_test hooked -p \"{provider}\""
    found[name] = "pass" if hooked.returncode >= 0 else "crash"
    said[name] = hooked.stdout
    armed = limited.arms("rxe0") > before
    found[f"armed or not -p \"{provider}\""] = "pass" if armed == (monitor == WORD) else "fail"
    return found, said


if __name__ == "__main__":
    sys.exit(beside.run_all(run, sys.argv[1:] or EXCLUDED, KNOWN, WORD, "memhooks"))
