# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Print the results of others' tests with the kernel's word, beside those of the same with hooks.

What fails with hooks too is not the word's doing: it is listed with both results, as skipped.
"""


def compare(hooks, word, said):
    """Both are {test: "pass", "fail", "not run" or "crash", which is a known one that comes now and
    then}; said is what the word's run said of a test. 0 if nothing passes with hooks only."""
    good = True
    for name in dict.fromkeys([*hooks, *word]):
        one, other = hooks.get(name, "missing"), word.get(name, "missing")
        if other == "pass":
            print(f"ok {name}" + ("" if one == "pass" else f" (with hooks: {one})"))
        elif one == "pass" and other != "crash":
            print(said.get(name, ""))
            print(f"not ok {name}: {other}, with hooks: {one}")
            good = False
        else:
            print(f"skip {name}: {other}, with hooks: {one}")
    for way, results in (("hooks", hooks), ("the word", word)):
        kinds = list(results.values())
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        print(f"# {way}: {counts}")
    return 0 if good and word else 1
