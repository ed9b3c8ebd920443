"""Ranks that are threads of this process, and a plan of a few things."""

import dataclasses
import threading

from alpha_mpi.qualification.check import Plan
from alpha_mpi.qualification.team import Team

PLAN = Plan(minutes=0.5, names=60, rounds=4, kills=4, size=1 << 16, repeats=2, visibility=2.0)


class Threads(Team):
    """One of several ranks that meet at a barrier. `nodes` may say that they are on several nodes."""

    def __init__(self, rank, size, barrier, table, nodes=None):
        super().__init__(rank, size)
        self._barrier, self._table = barrier, table
        if nodes is not None:
            self.nodes = list(nodes)
            self.hosts = [f"host-{node}" for node in nodes]

    def exchange(self, data):
        self._table[self.rank] = data
        self._barrier.wait(20)
        every = list(self._table)
        self._barrier.wait(20)
        return every


def run(size, work, nodes=None):
    """Call ``work(team)`` on every rank; return what each returned. What one raises is raised here."""
    barrier, table = threading.Barrier(size), [b""] * size
    results, errors = [None] * size, []

    def rank(number):
        try:
            results[number] = work(Threads(number, size, barrier, table, nodes))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=rank, args=(number,), name=str(number)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def plan(**changes):
    """Return the plan with other numbers."""
    return dataclasses.replace(PLAN, **changes)
