# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run tasks in parallel. A task can begin when its needs are done. The longest chain goes first."""
import threading
from dataclasses import dataclass


@dataclass
class Task:
    """`work` returns whether it succeeded. If the need `name` failed, `give_up(name)` runs instead.
    """
    name: str
    work: object
    give_up: object = None
    needs: tuple = ()
    seconds: float = 1      # the time of the task, roughly


def chains(tasks):
    """{name: seconds of the longest chain of tasks that begins with it}."""
    waits = {name: [other for other in tasks.values() if name in other.needs] for name in tasks}
    found = {}

    def chain(name):
        if name not in found:
            found[name] = tasks[name].seconds + max(
                (chain(other.name) for other in waits[name]), default=0)
        return found[name]
    for name in tasks:
        chain(name)
    return found


def run(tasks, jobs):
    """Run all tasks, at most `jobs` in parallel. An exception of a task is a bug, and is raised
    here.
    """
    tasks = {task.name: task for task in tasks}
    length = chains(tasks)
    todo = sorted(tasks, key=lambda name: -length[name])
    done, errors, changed = {}, [], threading.Condition()

    def next_task():
        """A task that can begin, or None. Waits while another task may become ready."""
        while todo and not errors:
            for name in todo:
                needs = tasks[name].needs
                if all(need in done for need in needs):
                    todo.remove(name)
                    return tasks[name]
            changed.wait()
        return None

    def worker():
        while True:
            with changed:
                task = next_task()
            if not task:
                return
            failed = [need for need in task.needs if not done[need]]
            good = False
            try:
                if not failed:
                    good = task.work()
                elif task.give_up:
                    task.give_up(failed[0])
            except BaseException as error:  # pylint: disable=broad-except
                errors.append(error)
            with changed:
                done[task.name] = good
                changed.notify_all()

    threads = [threading.Thread(target=worker, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
