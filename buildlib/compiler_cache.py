#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Print the folder for the files of ccache.

Why: ccache ends every compilation when it can't write, and a service's user has no home folder.
"""
import os
import subprocess
import tempfile

import fetch


def folder(env=None):
    """The folder that ccache has in that environment, or one of the build, if it can't be used."""
    theirs = subprocess.run(["ccache", "-k", "cache_dir"], env=env, capture_output=True, text=True,
                            check=False).stdout.strip()
    for path in (theirs, os.path.join(fetch.BUILD, "ccache")):
        try:
            os.makedirs(path, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return path
        except OSError:
            pass
    raise fetch.FetchError(f"no file can be made in {fetch.BUILD}")


if __name__ == "__main__":
    print(folder())
