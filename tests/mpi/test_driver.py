"""Driver and ports: real machines under MPI, with the work kept in memory."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from alpha_mpi.errors import PeerFailed, Refused
from alpha_mpi.mpi.driver import ports_of
from alpha_mpi.mpi.families import Families
from alpha_mpi.mpi.world import Solo, World
from alpha_mpi.protocol.events import End
from alpha_mpi.protocol.hierarchy import Hierarchy, Star, Tree
from tests.mpi.mpi_jobs import ROOT, Job, Work, words

pytestmark = pytest.mark.mpi

SHAPES: list[Hierarchy] = [Star(), Tree(1), Tree(2)]
Everyone = Callable[[Any], list[Any]]


@pytest.fixture(params=SHAPES, ids=str)
def job(world: World, request: pytest.FixtureRequest) -> Iterator[Job]:
    """The saves of one owner, on each shape of hierarchy."""
    families = Families(world, request.param, 20)
    yield Job(families, ports_of(families))
    families.free()


@pytest.fixture
def star(world: World) -> Job:
    families = Families(world, Star(), 20)
    return Job(families, ports_of(families))


def published(end: End, entry: int) -> None:
    assert end.cause is None
    assert (end.outcome, end.root, end.entry) == ("published", ROOT, entry)


def refused(end: End, code: str, role: int) -> None:
    assert end.outcome == "not-published"
    assert end.cause is not None
    assert (end.cause.code, end.cause.role) == (code, role)


# ---------------------------------------------------------------- the way forward


def test_saves_in_a_row_are_published(job: Job) -> None:
    for entry in (1, 2, 3):
        published(job.save(), entry)
    assert "stop" not in job.work.calls


def test_a_parent_receives_one_commitment_of_each_child(job: Job) -> None:
    published(job.save(), 1)
    got = {role: n for (role, kind), n in job.ports.received.items() if kind == "Commitment"}
    children = [] if job.families.star else job.families.place.children
    assert got == {child: 1 for child, _ in children}
    assert job.ports.largest < 4096  # digests and numbers, nobody's words


@pytest.mark.parametrize("sizes", [(0, 0), (1, 1), (100, 0), (0, 100_003), (70_001, 300_007)], ids=str)
def test_a_star_gathers_every_word(star: Job, sizes: tuple[int, int]) -> None:
    me, n = star.families.world.rank, star.families.world.size
    for entry, limit in ((1, 1 << 20), (2, 10_000 * n)):
        # Owners hold different amounts, the last one nothing.
        contents = {
            k: (words(k, sizes[0] // k), words(k, sizes[1] // k)) if k < n - 1 or n == 2 else (b"", b"")
            for k in range(1, n)
        }
        work = Work(star.families, *contents[me]) if me else Work(star.families)
        published(star.save(work, slice_limit=limit), entry)
        if me == 0:
            assert work.inventories == {k: i for k, (i, _) in contents.items() if i}
            assert work.payloads == {k: p for k, (_, p) in contents.items() if p}
            assert work.calls == ["shards", "root"]


def test_a_slow_writer_is_not_dead(job: Job) -> None:
    work = Work(job.families)
    if job.families.world.rank == job.families.world.size - 1 or job.families.star:
        work.seconds = 1.8
    published(job.save(work, deadline=0.6), 1)


@pytest.mark.parametrize("shape", [Star(), Tree(2)], ids=str)
def test_alone_without_mpi(shape: Hierarchy) -> None:
    families = Families(Solo(), shape, 1)
    job = Job(families, ports_of(families))
    published(job.save(), 1)
    refused(job.save(failing=ValueError("no")), "user-code", 0)
    published(job.save(), 3)


# ---------------------------------------------------------------- one owner's fault is everybody's


def test_a_failed_capture_is_everybodys(job: Job) -> None:
    n = job.families.world.size
    for culprit in {0, n // 2, n - 1}:
        failing = ValueError("the getter failed") if job.families.world.rank == culprit else None
        refused(job.save(failing=failing), "user-code", culprit)
        published(job.save(), job.saves)


@pytest.mark.mpi(min_size=2)
def test_a_diverged_replica_is_named(job: Job) -> None:
    n = job.families.world.size
    for culprit in {1, n - 1}:
        refused(
            job.save(replicas="other" if job.families.world.rank == culprit else "same"),
            "diverged-replica",
            culprit,
        )
        published(job.save(), job.saves)


def test_a_full_disk_is_everybodys(job: Job) -> None:
    n = job.families.world.size
    for culprit in {0} if job.families.star else {0, n // 2, n - 1}:
        work = Work(job.families)
        work.fail_shards = job.families.world.rank == culprit
        refused(job.save(work), "no-space", culprit)
        assert "root" not in work.calls
        published(job.save(), job.saves)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("where", ["member", "root"])
def test_a_gather_that_fails_half_way_leaves_the_next_save_whole(star: Job, where: str) -> None:
    me, n = star.families.world.rank, star.families.world.size

    def work() -> Work:
        return Work(star.families, words(me, 5000), words(me, 200_000)) if me else Work(star.families)

    failing = work()
    failing.fail_payload = where == "member" and me == n - 1
    failing.fail_receive = where == "root" and me == 0
    end = star.save(failing, slice_limit=5000 * n)
    refused(end, *(("user-code", n - 1) if where == "member" else ("no-space", 0)))
    again = work()
    published(star.save(again, slice_limit=5000 * n), 2)
    if me == 0:
        assert again.payloads == {k: words(k, 200_000) for k in range(1, n)}


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_failures_leaves_all_owners_in_step(job: Job, everyone: Everyone, seed: int) -> None:
    me, n = job.families.world.rank, job.families.world.size
    order = random.Random(seed)  # the same on every rank
    for entry in range(1, 26):
        fault = order.choice(["none", "capture", "replica", "shards", "payload", "receive"])
        culprit, size = order.randrange(n), order.choice([0, 1, 5000, 60_000])
        slice_limit = order.choice([1000, 7000, 100_000]) * n
        work = Work(job.families, words(me, size // 7), words(me, size)) if me else Work(job.families)
        work.fail_shards = fault == "shards" and me == culprit
        work.fail_payload = fault == "payload" and me == culprit
        work.fail_receive = fault == "receive" and me == 0
        failing = ValueError("no") if fault == "capture" and me == culprit else None
        replicas = "other" if fault == "replica" and me == culprit else "same"
        end = job.save(work, replicas, failing, slice_limit)
        ends = everyone((end.outcome, end.root, end.entry if end.root else None, end.cause))
        assert len(set(ends)) == 1, (fault, culprit, ends)
        if fault == "none":
            published(end, entry)
        if end.outcome == "published" and me == 0 and job.families.star:
            assert work.payloads == {k: words(k, size) for k in range(1, n) if size}


# ---------------------------------------------------------------- silence


@pytest.mark.mpi(min_size=2)
def test_a_late_owner_is_named_and_later_saves_work(job: Job, everyone: Everyone) -> None:
    late = job.families.world.size - 1
    if job.families.world.rank == late:
        everyone(None)  # until all others have given up twice
        first, second = job.save(deadline=0.7), job.save(deadline=0.7)
    else:
        first, second = job.save(deadline=0.7), job.save(deadline=0.7)
        everyone(None)
    for end in (first, second):
        refused(end, "missing-subtree", late)
    published(job.save(), 3)
    published(job.save(), 4)


@pytest.mark.mpi(min_size=2)
def test_a_late_root_is_named(job: Job, everyone: Everyone) -> None:
    if job.families.world.rank == 0:
        everyone(None)
        end = job.save(deadline=0.7)
        assert end.outcome == "not-published"
    else:
        end = job.save(deadline=0.7)
        refused(end, "missing-subtree", 0)
        everyone(None)
    published(job.save(), 2)


# ---------------------------------------------------------------- leaving, interrupts


@pytest.mark.mpi(min_size=2)
def test_who_leaves_the_block_is_learnt_of_at_once(job: Job) -> None:
    published(job.save(), 1)
    me, n = job.families.world.rank, job.families.world.size
    leaver = n - 1
    cause = PeerFailed("ValueError: a bad batch", code="user-code", role=leaver).cause()
    attempt = job.machine.attempt
    job.families.world.lost = cause  # as in the product, nothing collective follows: nothing is freed
    if me == leaver:
        job.ports.leave(attempt, cause)
        return
    began = time.monotonic()
    for _ in range(2):  # and no later save succeeds
        end = job.save()
        assert end.outcome == "not-published" and end.cause is not None
        assert (end.cause.code, end.cause.role) == ("left", leaver)
        job.ports.leave(attempt, end.cause)  # as the block of this owner ends, too
    assert time.monotonic() - began < 10


def test_an_interrupt_while_waiting_aborts_for_all(job: Job) -> None:
    me, culprit = job.families.world.rank, job.families.world.size - 1
    # From `go` on a member of a star has committed: its interrupt waits for the end.
    waits = job.families.star and culprit > 0
    work = Work(job.families)
    work.seconds = 1.5 if waits else 20
    if me == culprit:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            job.save(work)
    else:
        job.save(work)
    end = job.machine.outcome
    assert end is not None
    if waits:
        published(end, 1)
    else:
        refused(end, "user-code", culprit)
    published(job.save(), 2)


def test_a_handler_of_the_users_own_runs_between_steps(job: Job) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    work = Work(job.families)
    work.on_shards = lambda: os.kill(os.getpid(), signal.SIGUSR1)
    try:
        published(job.save(work), 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == ([signal.SIGUSR1] if "shards" in work.calls else [])


def test_work_that_cannot_be_started_is_a_failure(job: Job) -> None:
    work = Work(job.families)

    def broken(report: object) -> None:
        raise Refused("no such device", code="device")

    if job.families.world.rank == 0:
        work.write_shards = broken  # type: ignore[method-assign]
    refused(job.save(work), "device", 0)
    published(job.save(), 2)
