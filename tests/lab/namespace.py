# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run commands as root on an overlay of a root, in their own mount and process namespaces.

Changes by these commands go to a folder, the overlay's upper layer. No file of the host changes.
"""
import os
import subprocess

# $1 is the folder of the upper layer, $2 the layers below, $3 the script that runs on the overlay.
# Three more arguments follow for each folder to bind into the overlay: path on the host, path
# there, ro or rw. redirect_dir and metacopy are off, so that the upper layer has whole files, which
# also work on other lower layers. /run is empty, so that scripts find no running services to
# restart.
NAMESPACE = """\
set -eu
mkdir -p "$1/upper" "$1/work" "$1/root"
mount --make-rprivate /
options=redirect_dir=off,metacopy=off,index=off,xino=off
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work,$options" overlay "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs run run
mount -t tmpfs tmp tmp
script=$3
shift 3
while [ $# -gt 0 ]; do
    if [ -d "$1" ]; then mkdir -p ".$2"; else mkdir -p ".${2%/*}" && : >>".$2"; fi
    mount --bind "$1" ".$2"
    [ "$3" = rw ] || mount -o remount,bind,ro ".$2"
    shift 3
done
exec chroot . /bin/sh -eu -c "$script"
"""


def as_root(command, env):
    """The command, with sudo if needed, and with this environment."""
    if os.geteuid():
        return ["sudo", "env", *(f"{name}={value}" for name, value in env.items()), *command]
    return command


def run(place, lower, script, environment, binds=(), **streams):
    """Run a shell script on layers (paths, the uppermost first); return its status.

    The script's changes go to `place`. Its environment is `environment` with PATH, LC_ALL and HOME.
    """
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root",
           **environment}
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", NAMESPACE,
               "sh", place, ":".join(lower), script, *(word for bind in binds for word in bind)]
    return subprocess.run(as_root(command, env), env=env, check=False, **streams).returncode


def remove(*places):
    """Remove files or folders, which may belong to root if they were made in a namespace."""
    there = [place for place in places if os.path.lexists(place)]
    if there:
        subprocess.run(as_root(["rm", "-rf", "--one-file-system", *there], {}), check=True)
