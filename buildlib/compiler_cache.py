#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Print the folder that ccache must use. If ccache's own folder is usable, print nothing.

Why: if ccache can't write to its folder, every compilation fails. The user of a service may have no
home folder. CCACHE_DIR hides the user's settings, so this script names a folder only if necessary.
"""
import os
import subprocess
import tempfile

import fetch


def is_usable(path):
    """Can files be created in this folder?"""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def own(env=None):
    """The folder that ccache uses by default in this environment, or "" without ccache."""
    try:
        return subprocess.run(["ccache", "-k", "cache_dir"], env=env, capture_output=True,
                              text=True, check=False).stdout.strip()
    except OSError:
        return ""


def settings(env=None):
    """The variables that ccache needs and this environment lacks, usually an empty dictionary."""
    theirs = own(env)
    if not theirs or is_usable(theirs):
        return {}
    return {"CCACHE_DIR": os.path.join(fetch.BUILD, "ccache")}


def folder():
    """The folder that ccache uses in a build."""
    return settings().get("CCACHE_DIR") or own()


if __name__ == "__main__":
    print(*settings().values())
