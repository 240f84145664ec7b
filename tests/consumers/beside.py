# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Print the results of a library's tests with the kernel's word and with hooks.

If a test fails with the word and with hooks, this module prints both results, and reports the test
as skipped. A crash with the word is a failure, except if the same test also crashes with hooks in
this run.
"""
# Crashes are rare. So after a crash with the word, the test runs this many more times with hooks.
CRASH_TRIES = 5


def compare(hooks, word, said, known=()):
    """`hooks` and `word` are {test: result}. A result is "pass", "fail", "not run", "crash", or, if
    the message names a defect of the library, "known crash". `said` is {test: output} of the run
    with the word. Tests whose names begin with one of `known` also fail with hooks. Returns 0 if no
    other test fails.
    """
    good = True
    for name in dict.fromkeys([*hooks, *word]):
        one, other = hooks.get(name, "missing"), word.get(name, "missing")
        if "armed or not" in name and one != "pass":
            print(f"not ok {name}, with hooks: {one}")
            good = False
        elif other == "pass":
            print(f"ok {name}" + ("" if one == "pass" else f" (with hooks: {one})"))
        elif (other == "known crash" or name.startswith(tuple(known)) or
              other != "fail" and one != "pass" and (other != "crash" or one == "crash")):
            print(f"skip {name}: {other}, with hooks: {one}")
        else:
            print(said.get(name, ""))
            print(f"not ok {name}: {other}, with hooks: {one}")
            good = False
    for way, results in (("hooks", hooks), ("the word", word)):
        kinds = list(results.values())
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        print(f"# {way}: {counts}")
    return 0 if good and word else 1


def run_all(run, groups, known, word, hooks):
    """Compare both ways of run(GROUP, WAY), which returns results and outputs."""
    status = 0
    for group in groups:
        results, said = run(group, word)
        crashed = [name for name, result in results.items() if result == "crash"]
        others = run(group, hooks)[0]
        for _ in range(CRASH_TRIES):
            if all(others.get(name) == "crash" for name in crashed):
                break
            again = run(group, hooks)[0]
            others.update({name: "crash" for name in crashed if again.get(name) == "crash"})
        status |= compare(others, results, said, known)
    return status
