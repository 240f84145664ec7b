# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Commands that repeat one test case. Each kind of program has its own function.

A function takes the program's command. It returns a function that takes the name of a case and
returns the command for this case.
"""
import re
import shlex


def catch(program):
    """The command for a case of a Catch2 program, whose filters have special characters."""
    def again(case):
        escaped = re.sub(r"([][,*~])", r"\\\1", case)
        return f"{program} {shlex.quote(escaped)}"
    return again


def unittest(program):
    """The command for a case of Python's unittest. The name of the case is "test_a
    (module.Class.test_a)" or "test_a (module.Class)".
    """
    def again(case):
        found = re.match(r"(\w+) \(([\w.]+)\)", case)
        if not found:
            return program
        path = found.group(2).split(".")
        if path[-1] != found.group(1):
            path.append(found.group(1))
        return f"{program} -k {'.'.join(path[-2:])}"
    return again


def matrix(program):
    """The command for a failure of ibv_mr_notify. The name of the failure is ROW or "ROW: MISTAKE".
    """
    def again(case):
        return f"{program} --only {shlex.quote(case.split(': ')[0])}"
    return again


def seeded(command, said):
    """The command with the seed that the case printed."""
    seeds = re.findall(r"(?:RUN_SEED=|\bseed )(\d+)", said)
    return f"env RUN_SEED={seeds[-1]} {command}" if seeds else command
