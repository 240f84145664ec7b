# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Build everything and run all the tests, on the host and in each guest; the last line counts them.

Called by tests/run. With names of lanes (host, um, packages, debian, stock, dkms, debug) only those
run. A lane that could not run is a failure. The outputs are kept in build/results.
"""
import argparse
import os
import subprocess
import sys
import time

import lanes
import results

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

START = time.monotonic()


def say(text):
    """A line of progress."""
    print(f"[{time.monotonic() - START:5.0f} s] {text}", flush=True)


def build():
    """The fork and the test programs."""
    for command in (["cmake", "-S", ".", "-B", "build", "-GNinja"],
                    ["cmake", "--build", "build"]):
        say(" ".join(command))
        subprocess.run(command, cwd=REPO, check=True)


def read(path):
    """What is in a file, which need not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as text:
            return text.read()
    except FileNotFoundError:
        return ""


def judged(lane, step, folder):
    """The count of a step that has left its output and status in `folder`."""
    name = f"{lane}: {step.name}"
    base = os.path.join(folder, step.name.replace(" ", "-"))
    status = read(base + ".status").strip()
    if not status:
        return results.failure(f"{name}: did not come to its end")
    count = results.judge(name, step.parse, read(base + ".out"), int(status), step.expected)
    if count.passed + count.failed < step.least:
        count += results.failure(f"{name}: executed {count.passed + count.failed} tests, "
                                 f"not the {step.least} that it must")
    return count


def script(steps, folder):
    """A shell script that runs the steps and leaves output and status of each in `folder`."""
    text = "set -u\n"
    for step in steps:
        base = os.path.join(folder, step.name.replace(" ", "-"))
        # What is not shown is read to the end all the same: the program must not stop for it.
        text += (f"echo '--- {step.name}'\n"
                 f"{{ {step.command}; echo $? >{base}.status; }} 2>{base}.err | tee {base}.out "
                 "| grep -v '^ok ' | { head -c 20000; cat >/dev/null; }\n"
                 f"cat {base}.err | tail -n 400 | tee -a {base}.out | tail -n 40\n")
    return text


def fresh(lane):
    """An empty folder for what a lane leaves."""
    folder = os.path.join(REPO, "build", "results", lane)
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    return folder


def run_host():
    """The steps that need no kernel."""
    folder = fresh("host")
    for step in lanes.HOST:
        say(f"host: {step.name}")
        base = os.path.join(folder, step.name)
        with open(base + ".out", "w", encoding="utf-8") as out:
            done = subprocess.run(step.command, shell=True, cwd=REPO, stdout=out,
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        with open(base + ".status", "w", encoding="utf-8") as status:
            print(done.returncode, file=status)
    return sum((judged("host", step, folder) for step in lanes.HOST), results.Count())


def run_guest(lane):
    """The steps of one guest, in one boot; a kernel that complains is a failed test of its own."""
    steps = lanes.GUESTS[lane]
    folder = fresh(lane)
    say(f"{lane}: {', '.join(step.name for step in steps)}")
    with open(os.path.join(folder, "steps.sh"), "w", encoding="utf-8") as text:
        text.write(script(steps, folder))
    options = lanes.OPTIONS.get(lane, ("--kernel", lane))
    done = subprocess.run(["tests/lab/run", *options, "--results", folder, "--timeout", "1800",
                           "--", "sh", os.path.join(folder, "steps.sh")],
                          cwd=REPO, stdin=subprocess.DEVNULL, check=False)
    count = sum((judged(lane, step, folder) for step in steps), results.Count())
    if done.returncode:
        return count + results.failure(f"{lane}: the guest ended with {done.returncode}")
    return count + results.Count(passed=1)      # its kernel had nothing to complain of


def main():
    """Build, run, count."""
    names = list(lanes.GUESTS)
    names.insert(1, "host")     # some of the host's tests are of the guest runner, and need a guest
    parser = argparse.ArgumentParser(prog="tests/run", description=__doc__.splitlines()[0])
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=", ".join(names))
    chosen = parser.parse_args().lanes or names
    for name in chosen:
        if name not in names:
            parser.error(f"no lane {name}: {', '.join(names)}")

    total = results.Count()
    try:
        build()
    except (OSError, subprocess.CalledProcessError) as error:
        total += results.failure(f"build: {error}")
        chosen = []
    for name in chosen:
        count = run_host() if name == "host" else run_guest(name)
        say(f"{name}: {count}")
        total += count

    for reason in sorted(set(total.skips)):
        print(f"skipped: {reason}")
    for name in total.failures:
        print(f"FAILED: {name}")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
