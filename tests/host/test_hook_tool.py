#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Try buildlib/hook.py, which makes and changes patches, on a small tree."""
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../buildlib"))

import fetch  # noqa: E402
import hook  # noqa: E402
import overlay  # noqa: E402

FILE = "drivers/nic.c"
UPSTREAM = "".join(f"\tline {number}\n" for number in range(1, 10))
FIX = "kernel-patches/fixes/0001-fix.patch"
OTHER_FIX = "kernel-patches/fixes/0002-fix.patch"
HOOK = "kernel-patches/notify/0001-hook.patch"
LATER = "kernel-patches/notify/0002-later.patch"
MAILED = "kernel-patches/mm/0001-mailed.patch"


def patch(header, before, added, shift=0):
    """A patch that adds a line after `before`. Earlier patches have added `shift` lines above."""
    return (f"{header}\n---\ndiff --git a/{FILE} b/{FILE}\n--- a/{FILE}\n+++ b/{FILE}\n"
            f"@@ -{before + shift},2 +{before + shift},3 @@\n"
            f" \tline {before}\n+={added}\n \tline {before + 1}\n")


class HookTool(unittest.TestCase):
    """Two fixes and two hooks of one file."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repo = folder.name
        self.tree = os.path.join(self.repo, "build/src/linux-6")
        self.write(os.path.join("build/src/linux-6", FILE), UPSTREAM)
        self.write(FIX, patch("Fix", 1, "fix"))
        self.write(OTHER_FIX, patch("Other", 4, "other"))
        self.write(HOOK, patch("Hook", 6, "hook", 2))
        self.write(LATER, patch("Later", 8, "later", 3))
        build = mock.patch.object(fetch, "BUILD", os.path.join(self.repo, "build"))
        tree = mock.patch.object(overlay, "hooked_tree", self.hooked_tree)
        for one in (build, tree):
            one.start()
            self.addCleanup(one.stop)

    def hooked_tree(self, _name, part=()):
        """Stand in for overlay.hooked_tree()."""
        overlay.overlay("linux", self.tree, repo=self.repo)
        return self.tree

    def write(self, path, text):
        """Write a file of the repository."""
        place = os.path.join(self.repo, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8") as out:
            out.write(text)

    def read(self, path):
        """The lines of a file that upstream's file lacks."""
        with open(os.path.join(self.repo, path), encoding="utf-8") as text:
            return [line.strip("=") for line in text.read().splitlines()
                    if not line.startswith("\tline ")]

    def edit(self, name, *files):
        """Lay out a hook's folders a/ and b/, and add a line to the file in b/. Return the lines
        that a/ and b/ had before.
        """
        after = os.path.join(hook.lay_out(name, files, self.repo), FILE)
        seen = self.read(after.replace("/b/", "/a/")), self.read(after)
        with open(after, "a", encoding="utf-8") as out:
            out.write("mine\n")
        hook.write(name, self.repo)
        return seen

    def test_a_hook_is_extended(self):
        """The base has the fixes, and no later patches."""
        self.assertEqual(self.edit(HOOK), (["fix", "other"], ["fix", "other", "hook"]))
        text = fetch.read(os.path.join(self.repo, HOOK))
        self.assertTrue(text.startswith("Hook\n---\ndiff --git "))
        self.assertEqual([line for line in text.splitlines() if line.startswith("+") and
                          not line.startswith("+++")], ["+=hook", "+mine"])
        self.hooked_tree("linux")
        self.assertEqual(self.read(os.path.join(self.tree, FILE)),
                         ["fix", "other", "hook", "later", "mine"])

    def test_what_is_not_edited_is_the_same(self):
        self.hooked_tree("linux")
        for name in (FIX, OTHER_FIX, HOOK, LATER):
            before = fetch.read(os.path.join(self.repo, name))
            hook.lay_out(name, [], self.repo)
            hook.write(name, self.repo)
            self.assertEqual(fetch.read(os.path.join(self.repo, name)), before)

    def test_a_fix_applies_alone(self):
        self.assertEqual(self.edit(OTHER_FIX), ([], ["other"]))

    def test_a_fix_stands_on_another(self):
        self.write(OTHER_FIX, patch("Other\n\nStands-On: 0001", 4, "other", 1))
        self.assertEqual(self.edit(OTHER_FIX), (["fix"], ["fix", "other"]))

    def test_a_new_one(self):
        new = "kernel-patches/notify/0003-new.patch"
        everything = ["fix", "other", "hook", "later"]
        self.assertEqual(self.edit(new, FILE), (everything, everything))
        text = fetch.read(os.path.join(self.repo, new))
        self.assertIn("\nUpstream-Status: Inappropriate [overlay hook]\nSigned-off-by: ", text)
        self.assertIn("\n+mine\n", text)

    def test_an_edit_is_not_lost(self):
        after = os.path.join(hook.lay_out(HOOK, [], self.repo), FILE)
        hook.lay_out(HOOK, [], self.repo)
        with open(after, "a", encoding="utf-8") as out:
            out.write("mine\n")
        with self.assertRaisesRegex(overlay.OverlayError, "edits that are not in the patch"):
            hook.lay_out(HOOK, [], self.repo)
        hook.write(HOOK, self.repo)
        hook.lay_out(HOOK, [], self.repo)

    def test_patch_that_only_mails_have(self):
        """Such a patch is made over the fixes and earlier such patches. The tree has none."""
        self.write(MAILED, patch("Mailed", 6, "mailed", 2))
        later = MAILED.replace("0001", "0002")
        place = hook.lay_out(later, (FILE,), self.repo)
        with open(os.path.join(place, FILE), encoding="utf-8") as text:
            lines = text.read().splitlines()
        self.assertEqual([line for line in lines if line.startswith("=")],
                         ["=fix", "=other", "=mailed"])
        self.assertEqual(hook.path_of(os.path.basename(MAILED), self.repo), MAILED)
        self.hooked_tree("linux")
        with open(os.path.join(self.tree, FILE), encoding="utf-8") as text:
            self.assertNotIn("=mailed", text.read())

    def test_mistakes(self):
        for name, files, word in ((HOOK.replace("notify", "notes"), (), "not in a folder"),
                                  ("kernel-patches/notify/0003-new.patch", (), "name the files"),
                                  (HOOK, ("drivers/none.c",), "upstream has no drivers/none.c")):
            with self.assertRaisesRegex(overlay.OverlayError, word):
                hook.lay_out(name, files, self.repo)
        with self.assertRaisesRegex(overlay.OverlayError, "not laid out"):
            hook.write("kernel-patches/notify/0003-new.patch", self.repo)
        hook.lay_out("kernel-patches/notify/0003-new.patch", (FILE,), self.repo)
        with self.assertRaisesRegex(overlay.OverlayError, "nothing was edited"):
            hook.write("kernel-patches/notify/0003-new.patch", self.repo)

    def test_another_version(self):
        """The file next to the patch has only the parts that differ for this version."""
        form = HOOK.replace(".patch", ".7.diff")
        tree = os.path.join(self.repo, "build/src/linux-7")
        self.write(os.path.join("build/src/linux-7", FILE),
                   UPSTREAM.replace("\tline 6\n", "\tline six\n"))
        with mock.patch.dict(fetch.VERSION_OF, {"linux-7": "linux"}), \
                mock.patch.object(fetch, "fetch", lambda _, part=(): tree):
            place = hook.lay_out(HOOK, [], self.repo, "linux-7")
            self.assertEqual(self.read(os.path.join(place, FILE)), ["fix", "other"])
            self.assertIn("+=hook\n", fetch.read(os.path.join(place, "../nic.c.rej")))
            text = fetch.read(os.path.join(place, FILE))
            self.write(os.path.join(place, FILE), text.replace("six\n", "six\n=hook\n"))
            hook.write(HOOK, self.repo, "linux-7")
            overlay.overlay("linux-7", tree, repo=self.repo)
            self.assertEqual(self.read(os.path.join(tree, FILE)),
                             ["fix", "other", "hook", "later"])
            self.assertIn("\tline six\n", fetch.read(os.path.join(self.repo, form)))
            hook.lay_out(LATER, [], self.repo, "linux-7")
            hook.write(LATER, self.repo, "linux-7")
        self.assertEqual([name for name in os.listdir(os.path.join(self.repo,
                                                                   os.path.dirname(HOOK)))
                          if name.endswith(".diff")], [os.path.basename(form)])
        self.hooked_tree("linux")
        self.assertEqual(self.read(os.path.join(self.tree, FILE)),
                         ["fix", "other", "hook", "later"])

    def test_name_alone(self):
        """The name is enough for an existing patch; a new patch needs its folder."""
        self.assertEqual(hook.path_of("0002-later.patch", self.repo), LATER)
        self.assertEqual(hook.path_of(os.path.join(self.repo, HOOK), self.repo), HOOK)
        new = "kernel-patches/notify/0003-new.patch"
        self.assertEqual(hook.path_of(os.path.join(self.repo, new), self.repo), new)


if __name__ == "__main__":
    unittest.main()
