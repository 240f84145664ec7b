#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Try libfabric and UCX of buildlib/consumers in a guest, in cases where notification is limited.

The cases:
* two devices in one process; the second device can't notify
* a monitor supplied by the program
* arming that fails
* fork
* a registration in use, half of which is unmapped
* memory that can't be registered
* fi_info's description

--old is for a libibverbs or a kernel without notification. Then libfabric and UCX must behave like
the original libraries. By default both libraries use hooks. If a setting allows only notification,
they have no cache.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

import limited

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BUILT = os.path.join(REPO, "build/consumers")
PROGRAM = os.path.join(REPO, "build/tests/consumers_registrations")
MAPPING = os.path.join(REPO, "build/tests/consumers_mapping")
UNRELEASED = os.path.join(REPO, "build/tests/consumers_unreleased")
NOT_CAPABLE = {"LD_PRELOAD": os.path.join(REPO, "build/tests/libconsumers_not_capable.so")}
OTHER_CANT = {**NOT_CAPABLE, "NOT_CAPABLE": "rxe1"}
CANT_ARM = {**NOT_CAPABLE, "ARMING_FAILS": "1"}
# NOT_REVOCABLE hides that the device can revoke. So the device loses registrations that should
# stay.
CANT_REVOKE = {**NOT_CAPABLE, "NOT_REVOCABLE": "1"}
LIMIT = 600     # seconds until a program counts as hung
MOST_KEPT = 100     # of 200 stale registrations, if later requests end them
MOST_IDLE = 1       # of 200 stale registrations, if the kernel suspends them

# True means that after this change the cache still has the buffer's registration. A cache with
# hooks also keeps a stale registration. UCX empties its cache at each fork.
WORD = {"nothing": True, "system calls": False, "libc": False, "fork": True}
HOOKS = {**WORD, "system calls": True}
NO_CACHE = dict.fromkeys(WORD, False)
UCX_FORK = {"fork": False}
# UCX has threads that wait for events of the devices, also with hooks.
THREADS = {"libfabric": 1, "imported": 1, "ucx": 2}
VERBS_NOTIFY = {"FI_MR_CACHE_MONITOR": "verbs_notify"}
# Without a cache UCX would use on-demand paging, which soft-RoCE has.
ONLY_NOTIFY = {"UCX_RCACHE_NOTIFY": "y", "UCX_IB_REG_METHODS": "rcache,direct"}
# UCT_MD_MEM_FLAG_NONBLOCK, and the setting that allows it.
ON_DEMAND = {"ON_DEMAND": "1", "UCX_IB_ODP_MAX_SIZE": "inf"}
MEMHOOKS = {"FI_MR_CACHE_MONITOR": "memhooks"}
CONFIGURED = tempfile.mkdtemp(prefix="ucx.conf-")


@dataclass
class Case:
    """One process, and its expected answers on each device."""
    name: str
    library: str
    expected: dict
    environment: dict = field(default_factory=dict)
    patched: bool = False       # libc's functions
    early: bool = False         # libc was patched before a device was opened
    keeps: bool = True          # keeps the used part of a stale registration
    threads: int = 0            # more threads, for on-demand paging


CASES = [
    Case("libfabric, default", "libfabric", {"rxe0": WORD, "rxe1": WORD}),
    Case("libfabric, memhooks", "libfabric", {"rxe0": HOOKS}, MEMHOOKS, True),
    Case("libfabric, default, rxe1 can't", "libfabric", {"rxe0": WORD, "rxe1": HOOKS}, OTHER_CANT,
         True),
    Case("libfabric, the other one first", "libfabric", {"rxe1": HOOKS, "rxe0": WORD}, OTHER_CANT,
         True),
    Case("libfabric, verbs_notify, rxe1 can't", "libfabric", {"rxe0": WORD, "rxe1": NO_CACHE},
         {**OTHER_CANT, **VERBS_NOTIFY}),
    Case("libfabric, verbs_notify, a monitor imported", "imported",
         {"rxe0": WORD, "rxe1": NO_CACHE}, {**OTHER_CANT, **VERBS_NOTIFY}),
    Case("libfabric, no cache", "libfabric", {"rxe0": NO_CACHE}, {"FI_MR_CACHE_MAX_COUNT": "0"}),
    Case("libfabric, arming fails", "libfabric", {"rxe0": NO_CACHE}, CANT_ARM),
    Case("libfabric, not revocable", "libfabric", {"rxe0": WORD}, CANT_REVOKE, keeps=False),
    Case("UCX, try", "ucx", {"rxe0": WORD, "rxe1": WORD}, {}, True, True),
    Case("UCX, y", "ucx", {"rxe0": WORD, "rxe1": WORD}, ONLY_NOTIFY),
    Case("UCX, y in ucx.conf", "ucx", {"rxe0": WORD}, {"UCX_CONFIG_DIR": CONFIGURED}),
    Case("UCX, n", "ucx", {"rxe0": HOOKS}, {"UCX_RCACHE_NOTIFY": "n"}, True, True),
    Case("UCX, try, rxe1 can't", "ucx", {"rxe0": WORD, "rxe1": HOOKS}, OTHER_CANT, True, True),
    Case("UCX, the other one first", "ucx", {"rxe1": HOOKS, "rxe0": WORD}, OTHER_CANT, True, True),
    Case("UCX, y, rxe1 can't", "ucx", {"rxe0": WORD, "rxe1": NO_CACHE},
         {**OTHER_CANT, **ONLY_NOTIFY}),
    Case("UCX, try, on demand", "ucx", {"rxe0": HOOKS}, ON_DEMAND, True, True,
         threads=1),
    Case("UCX, y, pinned though it may be on demand", "ucx", {"rxe0": WORD},
         {**ON_DEMAND, **ONLY_NOTIFY}),
    Case("UCX, arming fails", "ucx", {"rxe0": NO_CACHE}, CANT_ARM, True, True),
    Case("UCX, not revocable", "ucx", {"rxe0": WORD}, CANT_REVOKE, True, True, keeps=False),
]
OLD = [
    Case("libfabric, default", "libfabric", {"rxe0": HOOKS}, {}, True),
    Case("libfabric, verbs_notify", "libfabric", {"rxe0": NO_CACHE}, VERBS_NOTIFY),
    Case("UCX, try", "ucx", {"rxe0": HOOKS}, {}, True, True),
    Case("UCX, y", "ucx", {"rxe0": NO_CACHE}, ONLY_NOTIFY),
]


def environment(more):
    """The environment, with the built libraries first."""
    libraries = [os.path.join(BUILT, name, "lib") for name in ("libfabric", "ucx")]
    return {**os.environ, "UCX_WARN_UNUSED_ENV_VARS": "n", **more, "LD_LIBRARY_PATH": ":".join(
        filter(None, (*libraries, os.environ.get("LD_LIBRARY_PATH"))))}


def check(what, good, said=""):
    """One line of the result."""
    if not good:
        print(said)
    print(("ok " if good else "not ok ") + what, flush=True)
    return good


def run(case):
    """The checks of one case."""
    before = {device: limited.arms(device) for device in case.expected}
    # In a case of libfabric, UCX's hooks are off, because the program is linked with both
    # libraries.
    more = {} if case.library == "ucx" else {"UCX_MEM_EVENTS": "n"}
    done = limited.run(LIMIT, [PROGRAM, case.library, *case.expected],
                       env=environment({**more, **case.environment}))
    said = done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != 1:
        return check(f"{case.name}: runs", False, said)
    seen = json.loads(lines[0])
    good = True
    for device, expected in case.expected.items():
        found = {**expected, **(UCX_FORK if case.library == "ucx" else {})}
        good &= check(f"{case.name}: {device}", seen["found"][device] == found, said)
        half = seen["half"][device]
        good &= check(f"{case.name}: {device} {'keeps' if case.keeps else 'loses'} a half in use",
                      half["found"] == expected["nothing"] and (not half["lost"]) == case.keeps,
                      said)
        good &= check(f"{case.name}: {device} gives back unmapped memory",
                      seen["kept"][device] < MOST_KEPT, said)
        # UCX with hooks keeps stale entries until a miss or until the limit
        # UCX_IB_RCACHE_MAX_UNRELEASED.
        if expected == WORD:
            good &= check(f"{case.name}: {device} gives it back with hits only",
                          seen["kept by many hits"][device] < MOST_KEPT, said)
        if expected == WORD and case.keeps and case.library != "ucx":
            good &= check(f"{case.name}: {device} gives all of it back with few hits",
                          seen["kept by hits"][device] <= MOST_IDLE, said)
        if before[device] is not None:
            good &= check(f"{case.name}: {device} armed or not",
                          (limited.arms(device) > before[device]) == (expected == WORD),
                          said)
    good &= check(f"{case.name}: libc is {'patched' if case.patched else 'as it was'}",
                  (seen["patched_bytes"] > 0) == case.patched, said)
    if case.library == "ucx":
        good &= check(f"{case.name}: libc was {'' if case.early else 'not '}patched when UCX was "
                      "loaded", (seen["patched_first"] > 0) == case.early, said)
    good &= check(f"{case.name}: no userfaultfd, no thread", not seen["userfaultfds"] and
                  seen["threads"] == THREADS[case.library] + case.threads, said)
    return good


def maps_after_failure(notify):
    """UCP's cache keeps no entry after a registration that failed."""
    done = limited.run(LIMIT, [MAPPING], env=environment({
        "UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "rxe0:1",
        "UCX_RCACHE_NOTIFY": notify}))
    return check(f"UCP, {notify}: maps memory in the place of memory that could not be mapped",
                 not done.returncode, done.stdout)


OVER_RXE0 = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "rxe0:1",
             "UCX_IB_REG_METHODS": "rcache,direct"}


def unreleased(kind, notify, more):
    """Return the result of the program, which is {} if it failed, and its output."""
    done = limited.run(LIMIT, [UNRELEASED, kind], env=environment({
        **OVER_RXE0, "UCX_RCACHE_NOTIFY": notify, **more}))
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[0]) if not done.returncode and lines else {}, done.stdout


def unmapped_is_given_back():
    """Compared with hooks that have a limit, the word keeps at most twice the memory and twice the
    registrations.
    """
    good = []
    for kind in ("uct", "ucp"):
        for order in ("off", "on"):
            setting = {"UCX_IB_RCACHE_MAX_UNRELEASED": "1m", "UCX_IB_PCI_RELAXED_ORDERING": order}
            name = f"UCX, {kind}, relaxed ordering {order}"
            hooks, hooks_said = unreleased(kind, "n", setting)
            for notify in ("try", "y"):
                word, said = unreleased(kind, notify, setting)
                said = f"hooks: {hooks_said}word: {said}"
                good += [
                    check(f"{name}, {notify}: gives unmapped memory back as hooks do",
                          hooks and word and word["hits"] <= 2 * hooks["hits"] < hooks["all"],
                          said),
                    check(f"{name}, {notify}: as many registrations as with hooks",
                          hooks and word and word["mrs"] <= hooks["mrs"], said)]
    cached, said = unreleased("ucp", "try", {"UCX_MEM_EVENTS": "n", "UCX_RCACHE_ENABLE": "y"})
    good.append(check("UCX, ucp, without events: it has its cache", cached, said))
    hooks, hooks_said = unreleased("uct", "n", ON_DEMAND)
    word, said = unreleased("uct", "try", ON_DEMAND)
    good.append(check("UCX, uct, on demand: as many registrations as with hooks",
                      hooks and word and word["mrs"] <= hooks["mrs"],
                      f"hooks: {hooks_said}word: {said}"))
    return good


def described():
    """fi_info and the manual page know the monitor."""
    said = subprocess.run([f"{BUILT}/libfabric/bin/fi_info", "-g", "FI_MR_CACHE_MONITOR"],
                          env=environment({}), text=True, check=False, capture_output=True).stdout
    with open(f"{BUILT}/libfabric/share/man/man3/fi_mr.3", encoding="utf-8") as page:
        in_page = re.search(r"\bVerbs_notify is\b", page.read())
    return [check("fi_info -g: verbs_notify", re.search(r"\bverbs_notify\b", said), said),
            check("fi_mr(3): verbs_notify", in_page)]


def main():
    """All the cases."""
    old = sys.argv[1:] == ["--old"]
    with open(os.path.join(CONFIGURED, "ucx.conf"), "w", encoding="ascii") as settings:
        settings.writelines(f"{name}={value}\n" for name, value in ONLY_NOTIFY.items())
    if not old:
        subprocess.run("rdma link add rxe1 type rxe netdev dummy1".split(), check=True)
    good = [run(case) for case in (OLD if old else CASES)] + described()
    good += [maps_after_failure(notify) for notify in ("try", "n")]
    good += [] if old else unmapped_is_given_back()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
