# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make a kernel configuration only from small fragments.

This module replaces merge_config.sh. Kconfig may drop an option, for example because a new point
release adds a dependency. merge_config.sh only warns of this, and the test that needs the option
fails much later.
"""
import os
import re

from machine import HERE, LabError


def settings(text):
    """{option: value} of a configuration or fragment; "n" for an option explicitly not set."""
    found = dict(re.findall(r"^(CONFIG_\w+)=(.*)$", text, re.MULTILINE))
    found.update((name, "n") for name in
                 re.findall(r"^# (CONFIG_\w+) is not set$", text, re.MULTILINE))
    return found


def dropped(wanted, result):
    """The options whose values in the configuration differ from the fragments."""
    return [f"{name}={value}" for name, value in settings(wanted).items()
            if settings(result).get(name, "n") != value]


def configure(fragments, out, make):
    """Write `out`/.config from the fragments; the function `make` runs make in `out`."""
    wanted = ""
    for name in fragments:
        with open(os.path.join(HERE, "configs", name + ".config"), encoding="utf-8") as text:
            wanted += text.read() + "\n"
    os.makedirs(out, exist_ok=True)
    kept = os.path.join(out, "lab.config")
    with open(kept, "w", encoding="utf-8") as text:
        text.write(wanted)
    make("-s", f"KCONFIG_ALLCONFIG={kept}", "allnoconfig")
    with open(os.path.join(out, ".config"), encoding="utf-8") as text:
        missing = dropped(wanted, text.read())
    if missing:
        raise LabError("Kconfig dropped " + ", ".join(missing)
                       + ", because tests/lab/configs lacks a dependency")
