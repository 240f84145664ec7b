# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Build a machine's kernel, modules and initramfs, if they are not up to date.

Every run of the lab checks whether its kernel is up to date. make needs seconds for this check, so
the lab compares a fingerprint first. The fingerprint is a digest of all our input files. It is
taken before the build, so an edit during the build leads to another build.
"""
import contextlib
import fcntl
import glob
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time

import child
import debian
import initramfs
import kconfig
import kernel_archive
from machine import BUILD, HERE, REPO, LabError, load

sys.path.insert(0, os.path.join(REPO, "buildlib"))
import compiler_cache  # noqa: E402  pylint: disable=wrong-import-position
import fetch  # noqa: E402  pylint: disable=wrong-import-position
import kernel_modules  # noqa: E402  pylint: disable=wrong-import-position
import kernel_package  # noqa: E402  pylint: disable=wrong-import-position

OUR_KERNEL = ("kernel-patches/**", "buildlib/overlay.py", "buildlib/fetch.py",
              "buildlib/kernel_*.py", "tests/lab/patches/*.patch")
NOT_BUILT_FROM = ("child.py", "console.py", "emulator.py", "guest.py", "namespace.py",
                  "nodes.py", "releases.py", "scratch_root.py", "um.py", "wire.py")


def say(text):
    """Print progress, on standard error."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text):
    """Print the text, and then the seconds that the step took."""
    say(text + " ...")
    start = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - start:.0f} s")


def fingerprint(machine):
    """A digest of all our files from which the machine is made."""
    patterns = [os.path.join(HERE, "*.py"), os.path.join(HERE, "enter"),
                os.path.join(HERE, "machines/*.toml")]
    if machine.dkms:
        patterns += [os.path.join(HERE, "dkms_*"), os.path.join(REPO, "buildlib/package"),
                     os.path.join(REPO, "buildlib/packaging/dkms.py"),
                     os.path.join(REPO, "buildlib/packaging/dkms/*")]
    patterns += [os.path.join(HERE, "configs", name + ".config") for name in machine.configs]
    if machine.our_modules or machine.dkms or machine.image == "tree":
        patterns += [os.path.join(REPO, pattern) for pattern in OUR_KERNEL]
        patterns.append(os.path.join(REPO, "buildlib/upstream", machine.linux + ".pin"))
    source = os.environ.get(fetch.SOURCE_VARIABLE[machine.linux], "")
    digest = hashlib.sha256(source.encode())
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            if os.path.isfile(path) and os.path.basename(path) not in NOT_BUILT_FROM:
                with open(path, "rb") as content:
                    digest.update(f"{os.path.relpath(path, REPO)}\0".encode())
                    digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def read(path):
    """The content of a file, or ""."""
    with contextlib.suppress(FileNotFoundError):
        with open(path, encoding="utf-8") as text:
            return text.read()
    return ""


def stamp(machine, ours):
    """The digest of our files, and upstream's version. A machine is made from both."""
    return f"{ours} {read(fetch.version_file(machine.linux, BUILD))}"


def end_build(process):
    """End a build's process group. make gets time to remove its incomplete files."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(command, log, env=None):
    """Run one step of a build, with its output in a log. If the step fails, print its errors.

    The step inherits the lock of ready(). So if this process is killed, other processes wait until
    the step ends.
    """
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, env=env,
                                   stderr=subprocess.STDOUT, start_new_session=True,
                                   close_fds=False, preexec_fn=child.dies_with_us(signal.SIGTERM))
    try:
        process.wait()
    except BaseException:  # a signal ends make and its children
        end_build(process)
        raise
    if process.returncode:
        with open(log, encoding="utf-8", errors="replace") as text:
            lines = text.read().splitlines()
        wrong = [line for line in lines if "error" in line.lower() or "***" in line]
        raise LabError(f"{' '.join(command[:3])} ... failed, see {log}\n  "
                       + "\n  ".join(wrong[:20] or lines[-20:]))


def hooked_tree(*options, linux="linux"):
    """The path of upstream's kernel source with our files and hooks. Takes options of overlay.py.
    """
    done = subprocess.run([os.path.join(REPO, "buildlib/overlay.py"), linux, *options], text=True,
                          stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise LabError("the kernel's source could not be prepared (see above)")
    return done.stdout.splitlines()[-1]


def copy_objects(machine, out):
    """Begin with the objects of a machine that has nearly the same configuration. Then make
    compiles only files whose options differ.
    """
    if machine.objects_of and not os.path.exists(out):
        other = load(machine.objects_of)
        with ready(other):
            copy = out + ".copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(os.path.join(other.folder, "build"), copy, symlinks=True)
            os.rename(copy, out)


def make_from_tree(machine):
    """Configure and build the hooked source."""
    with step("kernel source"):
        tree = hooked_tree(linux=machine.linux)
    out = os.path.join(machine.folder, "build")
    copy_objects(machine, out)
    command = ["make", "-C", tree, f"ARCH={machine.arch}", f"O={out}", *machine.make_options]
    env = kernel_modules.compiler_environment()
    env["KCFLAGS"] += " -w -pipe"   # test_series checks warnings
    log = os.path.join(machine.folder, "make.log")
    kconfig.configure(machine.configs, out, lambda *args: run([*command, *args], log, env))
    with step(f"building the {machine.name} kernel (log: {log})"):
        run([*command, "-s", f"-j{os.cpu_count()}", machine.target], log, env)
    initramfs.replace_link(os.path.join(out, machine.target), machine.kernel)


def our_modules(machine, package):
    """Build our modules for a machine; return their paths. The caller must hold the folder's lock.
    """
    with step("kernel source"):
        tree = hooked_tree("--part", *kernel_modules.PART, linux=machine.linux)
    drivers = machine.drivers.values()
    # Machines with the same compiler flags share a folder, so common files are built once.
    place = machine.linux.replace("linux", "source", 1)
    if kernel_modules.neighbours(drivers):
        place += "-hw"
    log = os.path.join(machine.folder, "make.log")
    with step(f"building our modules for {package.release} (log: {log})"):
        return debian.build_modules(
            package, tree, os.path.join(BUILD, "lab", place),
            lambda command: run(command, log, kernel_modules.compiler_environment()),
            drivers, machine.driver_options)


def make_from_package(machine):
    """Unpack Debian's kernel, build our modules for it, and lay out the modules for the machine.
    """
    with fetch.locked(BUILD, machine.linux):
        package = kernel_package.unpack(BUILD, machine.linux)
        kernel = os.path.join(BUILD, "lab", "vmlinux-" + package.release)
        debian.uncompress(package.image, kernel)
    names = [*machine.boot_modules, *machine.modules, *machine.drivers]
    if machine.our_modules:
        with fetch.locked(BUILD, f"modules-{machine.linux}"):
            debian.lay_modules(package, names, our_modules(machine, package), machine.module_tree)
    else:
        debian.lay_modules(package, names, [], machine.module_tree)
    initramfs.replace_link(kernel, machine.kernel)
    if machine.dkms:
        live_with_dkms(machine)


def live_with_dkms(machine):
    """Make the DKMS package, and let tests/lab/dkms_life (on another release:
    tests/lab/dkms_update) install it, update the kernel, and remove it.
    """
    done = subprocess.run([os.path.join(REPO, "buildlib/package"), "dkms"], text=True,
                          stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise LabError("the DKMS package could not be built (see above)")
    deb = done.stdout.splitlines()[-1]
    ccache = compiler_cache.folder()
    os.makedirs(ccache, exist_ok=True)
    log = os.path.join(machine.folder, "life.log")
    with contextlib.ExitStack() as kept:
        if machine.release:
            import releases     # imports this module.  pylint: disable=import-outside-toplevel
            layer, = kept.enter_context(releases.Release(machine.release).ready(fresh=True))
            program, more = "dkms_update", [layer, fetch.linux_version(BUILD, name=machine.linux)]
            change = f"to {more[-1]} on {machine.release}"
        else:
            archive = os.path.join(machine.folder, "archive")
            old, new = (release for release, _ in kernel_archive.make(archive))
            program, more = "dkms_life", [archive, old, new]
            change = f"from {old} to {new}"
        command = [os.path.join(HERE, program), machine.dkms_life, deb, ccache, *more]
        with step(f"dkms: {os.path.basename(deb)}, {change} (log: {log})"):
            run(command if os.getuid() == 0 else ["sudo", *command], log)


def up_to_date(machine):
    """Does the machine exist, and was it made from the present files?"""
    return os.path.exists(machine.kernel) and \
        read(os.path.join(machine.folder, "fingerprint")) == stamp(machine, fingerprint(machine))


def announce(machine):
    """Print the name of the next build, and how long its last run took on this machine."""
    what = ("Debian's kernel and our modules" if machine.our_modules or machine.dkms else
            "Debian's kernel") if machine.image == "package" else "a kernel from Linux's source"
    state = "not up to date" if os.path.exists(machine.kernel) else "not built yet"
    before = read(os.path.join(machine.folder, "seconds"))
    say(f"{machine.name} is {state}: making {what}; "
        + (f"last time that took {before} s" if before else "the first time takes minutes"))


def build(machine):
    """Make a machine. The caller holds the machine's lock exclusively."""
    kept = os.path.join(machine.folder, "fingerprint")
    ours = fingerprint(machine)
    announce(machine)
    start = time.monotonic()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(kept)
    try:
        if machine.image == "package":
            make_from_package(machine)
        else:
            make_from_tree(machine)
    except (fetch.FetchError, fetch.private_apt.AptError) as problem:
        raise LabError(str(problem)) from problem
    initramfs.write(machine)
    with open(os.path.join(machine.folder, "seconds"), "w", encoding="utf-8") as text:
        text.write(f"{time.monotonic() - start:.0f}")
    with open(kept, "w", encoding="utf-8") as text:
        text.write(stamp(machine, ours))  # the first build may have determined the version


def lock_alone(lock, machine):
    """Wait until no guest of the machine runs and no process makes it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"{machine.name} has to be built again, after its guests have ended; waiting ...")
        fcntl.flock(lock, fcntl.LOCK_EX)


@contextlib.contextmanager
def ready(machine):
    """A context that brings a machine up to date and keeps it unchanged, because guests load
    modules.

    Guests share the lock of the machine's folder. The process that makes the machine holds the lock
    exclusively. A process that changes from one mode to the other releases the lock for a moment,
    and meanwhile another process may make the machine. So this function checks again after each
    change.
    """
    os.makedirs(machine.folder, exist_ok=True)
    with open(os.path.join(machine.folder, ".lock"), "w", encoding="utf-8") as lock:
        os.set_inheritable(lock.fileno(), True)     # inherited by the commands of run()
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not up_to_date(machine):
            lock_alone(lock, machine)
            if not up_to_date(machine):
                build(machine)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
