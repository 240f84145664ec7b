# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The gate is the part of lanes.py to run before each push. tests/run without arguments runs it.

The gate has the cheapest programs that together find all mistakes of tests/mutations.toml, except
mistakes whose test needs KASAN or minutes. It runs only the named steps of a lane. A guest of `um`
takes a fifth of the time of a QEMU guest. So `debian` has only programs that need two CPUs, or
kinds of memory that `um` lacks.
"""
from dataclasses import replace

import lanes

FORK = "fork, only its tests"
HOST = ("test_arguments", "test_built_programs", "test_compiler_cache", "test_cycles",
        "test_driver", "test_drivers", "test_events", "test_fetch", "test_guide", "test_hook_tool",
        "test_hooks", "test_lab_archive", "test_lab_console", "test_lab_nodes", "test_lint",
        "test_mutations", "test_namespace", "test_overlay", "test_runner", "test_setup",
        "test_step", "test_verbs", "test_word_protocol",
        *(f"unit-{name}" for name in lanes.UNIT_PROGRAMS))
UM = ("matrix", "matrix, all memory", "matrix, suspended", "contract", "word", "changes", "in_use",
      "reclaim", "revoke", "worker", "lifetime", "race", "cache", "peer", "rights", "invalidate",
      "nested", "owner", "differential", "adversary", "observe", "retransmit_answers", "errors",
      "qp_state", "wqe_ring", "lossy", "no_cross_process_wait", "odp", "odp_packets", "odp_wait",
      "odp_oracle", "idle",
      "in_use siw0", "revoke siw0", "rights siw0", "siw siw0", "tools")
# The matrix finds events that Linux 7.3 sends differently. The other steps find new requirements
# for drivers and for memory management.
NEXT_UM = ("matrix", "word", "reclaim", "revoke", "rights", "invalidate", "lifetime", "odp")
DEBIAN = ("fine clock", "matrix", "changes", "in_use", "revoke", "worker", "lifetime", "race",
          "rights", "invalidate", "owner", "differential", "adversary", "observe",
          "no_cross_process_wait",
          "interleaving", "transfer", "retransmit", "idle", "siw siw0", "transfer siw0")


def step(lane, name, more="", **changed):
    """A step of a lane, with `more` added to its command."""
    found, = (one for one in lanes.LANES[lane].steps if one.name == name)
    return replace(found, command=found.command + more, **changed)


def part(name, steps, *more, **changed):
    """A lane with the named steps and `more` steps."""
    return replace(lanes.LANES[name], steps=[*(step(name, one) for one in steps), *more], **changed)


LANES = {
    "um": part("um", UM, needs=(FORK, "kernel um")),
    "next-um": part("next-um", NEXT_UM, needs=(FORK, "kernel next-um"), seconds=60),
    "host": part("host", HOST,
                 # test_abi runs without packages, and lint skips folders that have passed before.
                 step("host", "test_abi", " -k Builds", needs=(), seconds=60),
                 step("host", "lint", " --changed", seconds=200),
                 needs=(FORK,)),
    "debian": part("debian", DEBIAN, needs=(FORK, "kernel debian"), seconds=200),
    # This lane runs on the libraries in the build folder, not on packages.
    "stock": part("stock", ["no capability"], guest="--kernel stock",
                  needs=(FORK, "kernel stock"), seconds=30),
}
