# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Build our RDMA modules for Debian's own kernel, and lay out the modules that its guest finds."""
import lzma
import os
import shutil
import subprocess
import sys
import zlib

from machine import REPO, LabError

sys.path.insert(0, os.path.join(REPO, "buildlib"))
import kernel_modules  # noqa: E402  pylint: disable=wrong-import-position
from kernel_package import SBIN, module_name  # noqa: E402  pylint: disable=wrong-import-position


def uncompress(compressed, path):
    """Unpack the kernel of a bzImage once, because QEMU boots an unpacked kernel 2 s faster."""
    if os.path.exists(path):
        return
    with open(compressed, "rb") as content:
        image = content.read()

    def word(offset, size=4):
        return int.from_bytes(image[offset:offset + size], "little")
    # The boot protocol's header (Documentation/arch/x86/boot.rst).
    start = (word(0x1f1, 1) + 1) * 512 + word(0x248)
    payload = image[start:start + word(0x24c)]
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        # Ignore zstd's status, because the payload ends with its length, which is not in zstd's
        # format.
        content = subprocess.run(["zstd", "-dcq"], input=payload, check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    elif payload.startswith(b"\xfd7zXZ"):
        content = lzma.LZMADecompressor().decompress(payload)
    else:
        content = zlib.decompressobj(31).decompress(payload)
    if not content.startswith(b"\x7fELF"):
        raise LabError("can't unpack the kernel in Debian's image")
    with open(path + ".new", "wb") as out:
        out.write(content)
    os.rename(path + ".new", path)


SAME_CHECKSUM = ("cmd_gen_symversions_c=$(NM) $@ | sed -n "
                 r"'s/.* __export_symbol_\(.*\)/\#SYMVER \1 0x1/p' >> $(dot-target).cmd")


def build_modules(package, tree, place, run, more_drivers=(), options=()):
    """Build the modules from `tree` in `place`; return their paths.

    All symbols of these modules have the same checksum. Real checksums would take two fifths of the
    time. They are not needed, because all users of these symbols are built together.
    """
    folders = (*kernel_modules.STACK, *more_drivers)
    kernel_modules.link(tree, place, folders)
    command = kernel_modules.make(package.headers, place, folders)
    options = [*kernel_modules.compiler_options(package.headers), *options]
    run([*command, *options, SAME_CHECKSUM, "-s", f"-j{os.cpu_count()}"])
    with open(os.path.join(place, "modules.order"), encoding="utf-8") as order:
        return [os.path.join(place, os.path.splitext(line.strip())[0] + ".ko") for line in order]


def dependencies(path):
    """The modules on which a module file depends."""
    done = subprocess.run(["modinfo", "-F", "depends", path], stdout=subprocess.PIPE, text=True,
                          check=True, env={**os.environ, "PATH": SBIN})
    return [name.replace("-", "_") for name in done.stdout.strip().split(",") if name]


def lay_modules(package, names, ours, place):
    """Fill `place` with the named modules and their dependencies. Our modules replace the modules
    of the package.

    In this small tree of plain files depmod takes 0.3 s instead of 7 s, and loading needs no xz.
    Missing modules are left out, for example siw if we have not built it. If a symbol is missing,
    depmod -e reports it.
    """
    files = {**package.module_files(), **{module_name(path): path for path in ours}}
    wanted, todo = set(), [name for name in names if name in files]
    while todo:
        name = todo.pop()
        if name in wanted:
            continue
        wanted.add(name)
        todo += dependencies(files[name])
    # depmod needs lib/modules/<release> below its base.
    root = place + ".root"
    tree = os.path.join(root, "lib/modules", package.release)
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("kernel", "updates"):
        os.makedirs(os.path.join(tree, folder))
    for name in wanted:
        path = files[name]
        target = os.path.join(tree, "updates" if path in ours else "kernel", name + ".ko")
        if path.endswith(".xz"):
            with lzma.open(path) as content, open(target, "wb") as out:
                shutil.copyfileobj(content, out)
        else:
            shutil.copyfile(path, target)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(os.path.join(package.modules, name), tree)
    done = subprocess.run(["depmod", "-b", root, "-e", "-E",
                           os.path.join(package.headers, "Module.symvers"), package.release],
                          stderr=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "PATH": SBIN})
    unresolved = [line for line in done.stderr.splitlines() if "unknown symbol" in line]
    if unresolved:
        raise LabError("modules use symbols that no module has:\n  " + "\n  ".join(unresolved[:10]))
    shutil.rmtree(place, ignore_errors=True)
    os.rename(tree, place)
    shutil.rmtree(root)
