#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Print the folder that ccache must be given: none, or one of the build's if its own can't be used.

Why: ccache ends every compilation when it can't write, and a service's user has no home folder.
A folder that is given would hide the user's settings, so it is not given without need.
"""
import os
import subprocess
import tempfile

import fetch


def is_usable(path):
    """Whether files can be made there."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def own(env=None):
    """The folder that ccache has by itself in that environment; "" if there is no ccache."""
    try:
        return subprocess.run(["ccache", "-k", "cache_dir"], env=env, capture_output=True,
                              text=True, check=False).stdout.strip()
    except OSError:
        return ""


def settings(env=None):
    """What that environment lacks for ccache: a dictionary, empty as a rule."""
    theirs = own(env)
    if not theirs or is_usable(theirs):
        return {}
    return {"CCACHE_DIR": os.path.join(fetch.BUILD, "ccache")}


def folder():
    """The folder that ccache uses in a build."""
    return settings().get("CCACHE_DIR") or own()


if __name__ == "__main__":
    print(*settings().values())
