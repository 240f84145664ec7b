#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Rules for the patches to upstream's files, user space and kernel.

Why: a hook is read again only when upstream changes. At that time its header must explain its
purpose, and the hook must be small enough to carry.
"""
import collections
import glob
import os
import re
import shutil
import sys
import tempfile
import unittest

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import fetch  # noqa: E402
import hook  # noqa: E402
import kernel_modules  # noqa: E402
import overlay  # noqa: E402
import rdma_core_series  # noqa: E402
import series  # noqa: E402

# The number of lines that hooks may add, by the folder of the hooks and upstream's path. The first
# row that matches counts. A fix has no limit. pyverbs needs many lines, because Cython needs each
# method in the body of its class, and because rdma-core 65 lacks pyverbs.enums. UCX has caches in
# two layers, and documents interfaces in its headers. The hooks of libfabric and Open MPI include
# fixes, a manual page and the documentation of a setting.
MOST = (("buildlib/hooks/", "libibverbs/(?!examples|man)|providers", 31),
        ("buildlib/hooks/", "libibverbs/(?:examples|man)/|debian/", 23),
        ("buildlib/hooks/", "pyverbs/", 32),
        ("kernel-patches/notify/", "", 189),
        ("kernel-patches/paging/", "", 60),
        ("buildlib/consumers.d/libfabric/", "", 207),
        ("buildlib/consumers.d/ucx/", "", 340),
        ("buildlib/consumers.d/openmpi/", "", 240))
# The hooks that are only for rdma-core 65 may together add this many lines.
MOST_OF_LATER = "Only-For: rdma-core-65", 14
# These limits are for a driver other than mlx5, soft-RoCE and soft-iWARP. The first limit is for a
# driver that can't revoke.
MOST_OF_DRIVER = 10, 16
DRIVER = re.compile(r"drivers/infiniband/(?:hw|sw)/(?!mlx5/|rxe/|siw/)(\w+)/")
FIXES = "kernel-patches/fixes/"
# Patches that upstream may take as they are.
FOR_UPSTREAM = FIXES, overlay.MAILED["linux"] + "/"


class HookRules(unittest.TestCase):
    """Each rule on each patch."""

    def setUp(self):
        self.texts = {}
        for name in (*overlay.PATCHES, *fetch.VERSION_OF):
            for path in overlay.patches_of(name, REPO, local=True, mailed=True):
                with open(path, encoding="utf-8") as text:
                    self.texts[os.path.relpath(path, REPO)] = text.read()
        self.user = {path: text for path, text in self.texts.items()
                     if path.startswith(overlay.PATCHES["rdma-core"])}
        # These rules do not apply to fixes, which upstream has already or can take unchanged.
        self.own = {path: text for path, text in self.user.items()
                    if not re.search(r"\nUpstream-Status: (Backport \[https://|Pending\n)", text)}

    def test_names(self):
        for path in self.texts:
            self.assertRegex(os.path.basename(path), r"^\d{4}-[\w-]+\.patch$")

    def test_headers(self):
        for path, text in self.texts.items():
            header = text.partition("\n--- ")[0]
            status = r"(Inappropriate \[.+\]|.*https?://)"
            if path.startswith(FOR_UPSTREAM):
                status = "Pending$"
            if path in self.user:
                status = f"(Pending$|{status})"
            self.assertRegex(header, "(?m)^Upstream-Status: " + status, path)
            self.assertRegex(header, r"(?m)^Signed-off-by: .+ <.+@.+>", path)
            if path.startswith("kernel-patches/"):  # checkpatch also checks this, but takes minutes
                text = re.split(r"(?m)^(?:[A-Z][a-z]+(?:-[A-Za-z]+)+|Fixes|Link): ", header)[0]
                self.assertNotRegex(text.partition("\n\n")[2], r"(?m)^.{76}", path)
        for path, text in self.user.items():
            for field in ("Why: ", "Without it: ", "Calls: "):
                self.assertIn("\n" + field, text.partition("\n--- ")[0], path)

    def test_only_additions_in_user_space(self):
        """A hook adds lines. It may also indent a line of upstream, if an added line needs this."""
        for path, text in self.own.items():
            forms = [overlay.form_of(os.path.join(REPO, path), name) for name in fetch.VERSION_OF]
            for part in (part for form in (text, *map(fetch.read, forms))
                         for part in overlay.parts(form)[1].values()):
                added = {line[1:].strip() for line in re.findall(r"(?m)^\+(?!\+\+ ).*", part)}
                removed = [line[1:].strip() for line in re.findall(r"(?m)^-(?!-- ).*", part)]
                self.assertLessEqual(set(removed), added, path)

    def test_size(self):
        added, most = collections.Counter(), {}
        for path, text in self.texts.items():
            if path.startswith(FIXES) or path in self.user and path not in self.own:
                continue
            for file, change in overlay.parts(text)[1].items():
                driver = DRIVER.match(file)
                if driver and path.startswith("kernel-patches/"):
                    row = driver.group(1)
                    revokes = "\n+\t.revoke_user_mr = " in change
                    most[row] = max(most.get(row, 0), MOST_OF_DRIVER[revokes])
                elif MOST_OF_LATER[0] in text:
                    row = MOST_OF_LATER[0]
                    most[row] = MOST_OF_LATER[1]
                elif path.startswith(tuple(folder for folder, _, _ in MOST)):
                    row = next(one for one in MOST
                               if path.startswith(one[0]) and re.match(one[1], file))
                    most[row] = row[2]
                else:   # a patch only for the trees that are built here, or only for the mails
                    continue
                added[row] += len(re.findall(r"(?m)^\+(?!\+\+ )", change))
        self.assertLessEqual({*MOST, MOST_OF_LATER[0], "bnxt_re"}, set(added))
        for row, lines in added.items():
            self.assertLessEqual(lines, most[row], f"lines that these hooks add together: {row}. "
                                 "Move code to a file of its own")

    def test_one_hook_for_each_file_in_user_space(self):
        """No two hooks change the same file. There are two exceptions: the kernel's hooks, which
        are a series by topic, and hooks for only one version.
        """
        seen = {}
        for path, text in self.own.items():
            version = "".join(overlay.ONLY_FOR.findall(overlay.parts(text)[0]))
            for file in overlay.hooked_files(os.path.join(REPO, path)):
                self.assertNotIn((file, version), seen, path)
                seen[file, version] = path

    def test_table(self):
        for folder in (*overlay.PATCHES["rdma-core"], *overlay.LOCAL.values()):
            with open(os.path.join(REPO, folder, "README.md"), encoding="utf-8") as text:
                table = text.read()
            for path in self.texts:
                if path.startswith(folder):
                    self.assertIn(os.path.basename(path), table)

    def test_new_files_are_of_a_patch(self):
        """A patch names each new file, because the series would otherwise lack the file."""
        brought = [name for text in self.texts.values()
                   for name in re.findall(r"(?m)^Overlay-Files: (.+)$", text)]
        for name in overlay.PATCHES:
            if name != "rdma-core":
                for path in overlay.our_files(name, REPO):
                    self.assertIn(path, brought)

    def test_all_of_rdma_core_is_in_a_mail(self):
        for name in fetch.versions("rdma-core"):
            mails = rdma_core_series.mails(upstream=name)
            self.assertEqual(rdma_core_series.missing(mails, name), [])
        mails = rdma_core_series.mails()
        lost = next(one for one in mails if one.new_files and one.hunks)
        path, hunk = lost.new_files.pop(), lost.hunks.pop()
        mails[0].new_files.append(lost.new_files[0])
        self.assertEqual(rdma_core_series.missing(mails),
                         [path, f"{hunk.hook} {hunk.path} {hunk.text.splitlines()[0]}",
                          f"{lost.new_files[0]} twice"])

    def test_later_lines_are_in_our_files(self):
        """Lines for a later mail must exist, so that earlier mails can leave them out."""
        for mail in rdma_core_series.mails():
            text = "".join(mail.later_lines().values())
            if text:
                rdma_core_series.run_patch(REPO, text, "--reverse", "--dry-run")

    def test_fixes_come_first(self):
        folders = [os.path.dirname(os.path.relpath(path, REPO)) + "/"
                   for path in overlay.patches_of("linux", REPO)]
        self.assertIn(FIXES, folders)
        self.assertEqual(folders, sorted(folders, key=lambda folder: folder != FIXES))

    def test_subject_of_a_fix_has_a_word_of_the_field(self):
        with open(os.path.join(REPO, "kernel-patches/README.md"), encoding="utf-8") as text:
            words = text.read().partition("| of | words |")[2].partition("\n\n")[0]
        known = {word.strip() for row in words.splitlines()[2:]
                 for word in row.split("|")[2].split(",")}
        self.assertIn("PSN", known)
        for path, text in self.texts.items():
            if path.startswith(FIXES):
                subject = re.search(r"(?m)^Subject: \[PATCH\] (RDMA/\w+: .{1,66})$", text)
                self.assertTrue(subject and len(subject.group(1)) <= 72, path)
                said = {word + ending for word in known for ending in ("", "s")}
                self.assertTrue(said & set(re.findall(r"\w+", subject.group(1))), path)

    def test_other_versions(self):
        """The parts for another version belong to a patch, differ from it, and give a reason."""
        forms = {overlay.form_of(path, name): path for name in fetch.VERSION_OF
                 for path in overlay.patches_of(name, REPO, local=True)}
        found = {os.path.normpath(path) for folders in overlay.PATCHES.values()
                 for folder in folders
                 for path in glob.glob(os.path.join(REPO, folder, "*.diff"))}
        mailed = {os.path.normpath(series.changes_of(path)) for path in overlay.patches_of("linux")}
        found -= mailed
        self.assertTrue(found)
        self.assertLessEqual(found, set(map(os.path.normpath, forms)))
        for form, patch in forms.items():
            why, changed = overlay.parts(fetch.read(form))
            for path, part in changed.items():
                self.assertTrue(why.strip(), form)
                theirs = overlay.parts(fetch.read(patch))[1].get(path, "")
                self.assertNotEqual(hook.different(part, theirs), "", f"{form}: {path}")

    def test_applies_to_each_version(self):
        """The hooks apply in order to the files of each pinned version of upstream."""
        for name in ("linux", "rdma-core", *fetch.VERSION_OF):
            part = kernel_modules.PART if fetch.family(name) == "linux" else ()
            overlay.hooked_tree(name, part=part)

    def test_mailed_patches_apply_alone(self):
        """The patches that only the mails have apply to the files of each version of Linux."""
        for name in fetch.versions("linux"):
            own = overlay.patches_of(name)
            patches = [path for path in overlay.patches_of(name, mailed=True) if path not in own]
            self.assertTrue(patches)
            with tempfile.TemporaryDirectory() as work:
                files = {f for one in patches for f in overlay.hooked_files(one, name)}
                with fetch.locked(fetch.BUILD, name):
                    tree = fetch.fetch(name, part=hook.part_of(name, files))
                    hook.upstreams(files, tree, work)
                for one in patches:
                    overlay.apply_hook(one, REPO, work, name)

    def test_fix_applies_alone(self):
        for name in fetch.versions("linux"):
            self.check_fixes_apply_alone(name)

    def check_fixes_apply_alone(self, name):
        """Each fix applies to upstream's files with the fixes that it needs."""
        with fetch.locked(fetch.BUILD, name):
            tree = fetch.fetch(name, part=kernel_modules.PART)
            pristine = os.path.join(fetch.state_folder(tree), "pristine")
            for path in (os.path.relpath(p, REPO) for p in overlay.patches_of(name, REPO)):
                text = self.texts[path]
                if path.startswith(FIXES):
                    needs = re.search(r"(?m)^Stands-On: (.*)$", text.partition("\n---\n")[0])
                    below = tuple(FIXES + n for n in needs.group(1).split(", ")) if needs else ()
                    stack = [p for p in self.texts if below and p.startswith(below)] + [path]
                    self.assertEqual(len(stack), len(below) + 1, path)
                    with tempfile.TemporaryDirectory() as work:
                        for file in {f for p in stack
                                     for f in overlay.hooked_files(os.path.join(REPO, p), name)}:
                            kept = os.path.join(pristine, file)
                            place = os.path.join(work, file)
                            os.makedirs(os.path.dirname(place), exist_ok=True)
                            shutil.copy(kept if os.path.exists(kept) else
                                        os.path.join(tree, file), place)
                        for patch in stack:
                            overlay.apply_hook(os.path.join(REPO, patch), REPO, work, name)

    def test_row_of_each_fix(self):
        with open(os.path.join(REPO, FIXES, "README.md"), encoding="utf-8") as text:
            rows = re.findall(r"(?m)^\| (\d{4}) \| .* \| (.*) \| [^|]+ \|$", text.read())
        fixes = sorted(path for path in self.texts if path.startswith(FIXES))
        self.assertEqual([number for number, _ in rows],
                         [os.path.basename(path)[:4] for path in fixes])
        for (number, commit), text in zip(rows, map(self.texts.get, fixes)):
            named = re.findall(r'(?m)^Fixes: ([0-9a-f]{12}) \(".+"\)$', text)
            mended = re.findall(r"(?m)^Stands-On: (.+)$", text)
            self.assertEqual(commit, ", ".join(named) or "none: " + "".join(mended), number)


if __name__ == "__main__":
    unittest.main()
