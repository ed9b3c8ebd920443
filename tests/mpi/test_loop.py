"""What a training loop meets: saves that repeat, go back, or come too early; slow and silent roles;
a newer job. The same on every owner, on star and tree.
"""

from __future__ import annotations

import itertools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fill import fill, same_bits

import alpha_mpi as am
from alpha_mpi import continuing
from alpha_mpi.publication.writer import PackWriter
from alpha_mpi.restore import choose

HIERARCHIES = [am.Star(), am.Tree(2)]


def names(h: Any) -> str:
    return "star" if isinstance(h, am.Star) else f"tree{h.fan_out}"


pytestmark = [pytest.mark.mpi, pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)]

SHAPE = (300, 7)


class Job:
    def __init__(self, comm: Any, path: pathlib.Path, hierarchy: Any, **options: Any) -> None:
        self.comm = comm
        a, b = am.rows().bounds(SHAPE[0], comm.size, comm.rank)
        self.rows = slice(a, b)
        self.w = np.zeros((b - a, SHAPE[1]))
        self.document: Any = {"seen": 0}
        state = am.State()
        state.partition("w", self, "w", shape=SHAPE, layout=am.rows())
        state.document("note", lambda: self.document, lambda v: setattr(self, "document", v))
        self.ckpt = am.Checkpointer(path, state, comm, hierarchy=hierarchy, **{"deadline": 30, **options})

    def at(self, update: int) -> None:
        self.w[...] = fill("w", update, SHAPE, np.float64)[self.rows]
        self.document = {"seen": update}

    def is_at(self, update: int) -> bool:
        whole = fill("w", update, SHAPE, np.float64)[self.rows]
        return same_bits(self.w, whole) and self.document == {"seen": update}


@pytest.fixture
def job(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> Iterator[Callable[..., Job]]:
    def make(**options: Any) -> Job:
        return Job(comm, mpi_tmp_path / "ckpt", hierarchy, **options)

    yield make


def refused(code: str, *arguments: Any, call: Callable[..., Any], **more: Any) -> am.CheckpointError:
    with pytest.raises(am.CheckpointError) as caught:
        call(*arguments, **more)
    assert caught.value.code == code, caught.value
    return caught.value


def test_a_save_needs_a_resume_and_an_open_checkpointer(job: Callable[..., Job]) -> None:
    one = job()
    with one.ckpt as ckpt:
        refused("not-resumed", 1, call=ckpt.save)
        assert ckpt.resume() == am.Moment(0, 0, 1)
        one.at(1)
        assert ckpt.save(1).name == "e000001-000001"
    refused("closed", 2, call=ckpt.save)
    refused("closed", call=ckpt.resume)


def test_the_newest_moment_again(job: Callable[..., Job]) -> None:
    one = job()
    with one.ckpt as ckpt:
        ckpt.resume()
        one.at(5)
        first = ckpt.save(5)
        assert ckpt.save(5) == first
        one.document = {"seen": 6}
        refused("other-words", 5, call=ckpt.save)
        one.at(5)
        assert ckpt.save(5) == first
        refused("stale-update", 5, 6, call=ckpt.save)
        refused("reset-cursor", 6, 4, call=ckpt.save)
        refused("stale-update", 4, 5, call=ckpt.save)
        refused("argument", -1, call=ckpt.save)
        refused("argument", 1.5, call=ckpt.save)
        refused("unchanged-state", 6, call=ckpt.save)
        assert ckpt.save(6, unchanged_ok=True).name == "e000001-000002"
    two = job()
    with two.ckpt as ckpt:
        moment = ckpt.resume()
        assert (moment.update, moment.epoch) == (6, 2)
        assert two.is_at(5)
        # Also the one resumed from is returned, not published again.
        assert ckpt.save(6).name == "e000001-000002"
        two.w += 1
        refused("other-words", 6, call=ckpt.save)
        assert ckpt.save(7).name == "e000002-000001"


def test_a_declared_input_needs_its_cursor(job: Callable[..., Job]) -> None:
    one = job(learner=am.Learner("x", inputs="a sequence"))
    with one.ckpt as ckpt:
        ckpt.resume()
        one.at(1)
        refused("argument", 1, call=ckpt.save)
        refused("reset-cursor", 1, 0, call=ckpt.save)
        assert ckpt.save(1, 12).moment == am.Moment(1, 12, 1)
        one.at(2)
        refused("reset-cursor", 2, 11, call=ckpt.save)
        assert ckpt.save(2, 12).moment.cursor == 12
    other = job(learner=am.Learner("y", inputs="a sequence"))
    with other.ckpt as ckpt:
        before = other.w.copy()
        error = refused("other-learner", call=ckpt.resume)
        assert "x" in str(error) and "y" in str(error)
        assert same_bits(before, other.w)


def test_due_counts_updates(job: Callable[..., Job]) -> None:
    one = job(every=3)
    with one.ckpt as ckpt:
        assert [u for u in range(10) if ckpt.due(u)] == [3, 6, 9]
    with job().ckpt as ckpt:
        assert not any(ckpt.due(u) for u in range(10))


def test_keep_leaves_the_last_generations(
    job: Callable[..., Job], comm: Any, mpi_tmp_path: pathlib.Path
) -> None:
    one = job(keep=2)
    with one.ckpt as ckpt:
        ckpt.resume()
        for update in range(1, 6):
            one.at(update)
            ckpt.save(update)
        comm.Barrier()  # owner 0 returns once it has retired what is beyond
        attempts = sorted(p.name for p in (mpi_tmp_path / "ckpt" / "data").iterdir())
        assert attempts == ["e000001-000004", "e000001-000005"]
    two = job(keep=2)
    with two.ckpt as ckpt:
        assert ckpt.resume().update == 5 and two.is_at(5)


def test_r26_a_newer_job_supersedes_this_one(job: Callable[..., Job]) -> None:
    old, new = job(), job()
    with old.ckpt, new.ckpt:
        old.ckpt.resume()
        old.at(1)
        old.ckpt.save(1)
        assert new.ckpt.resume() == am.Moment(1, 1, 2)
        new.at(2)
        old.at(3)
        with pytest.raises(am.Superseded) as caught:
            old.ckpt.save(3)
        assert "continued as epoch 2" in str(caught.value)
        with pytest.raises(am.Superseded):
            old.ckpt.save(4)
        assert new.ckpt.save(2).name == "e000002-000001"
    with job().ckpt as third:
        assert third.resume() == am.Moment(2, 2, 3)


def test_a_writer_slow_for_three_deadlines_is_not_dead(
    job: Callable[..., Job], comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(deadline=1.0)
    pwrite = PackWriter._pwrite

    def slowly(self: PackWriter, buffers: list[Any], offset: int) -> None:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            step = max(1, len(view) // 4)
            for at in range(0, len(view), step):
                pwrite(self, [view[at : at + step]], offset + at)
                time.sleep(0.15)
            offset += len(view)

    with one.ckpt as ckpt:
        ckpt.resume()
        one.at(1)
        if comm.rank in (0, comm.size - 1):
            monkeypatch.setattr(PackWriter, "_pwrite", slowly)
        begin = time.monotonic()
        assert ckpt.save(1).moment.update == 1
        assert time.monotonic() - begin > 3


@pytest.mark.parametrize("fallback", [False, True])
def test_a_generation_retired_while_it_is_resumed_gives_way_to_the_next(
    job: Callable[..., Job], comm: Any, monkeypatch: pytest.MonkeyPatch, fallback: bool
) -> None:
    old, new = job(keep=1), job(visibility=0.2)
    with old.ckpt, new.ckpt as ckpt:
        old.ckpt.resume()
        old.at(1)
        old.ckpt.save(1)
        calls = itertools.count()

        def meanwhile(call: Callable[..., Any]) -> Callable[..., Any]:
            def later(*arguments: Any, **more: Any) -> Any:
                if next(calls) == 0:
                    old.at(2)
                    old.ckpt.save(2)
                return call(*arguments, **more)

            return later

        if fallback and comm.size == 1:  # before its root is read, which owner 0 does alone
            monkeypatch.setattr(choose, "await_root", meanwhile(choose.await_root))
        else:
            monkeypatch.setattr(continuing, "read", meanwhile(continuing.read))
        assert ckpt.resume(fallback=fallback) == am.Moment(2, 2, 2)
        assert new.is_at(2)
        assert new.ckpt.resumed is not None and new.ckpt.resumed.skipped == ()
        assert next(calls) == 2


@pytest.mark.parametrize("algorithm", ["xxh3-128", "sha256"])
def test_words_written_to_during_a_save_are_refused(
    job: Callable[..., Job], comm: Any, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    one = job(digest=algorithm)
    flush, others = PackWriter._flush, itertools.count(1.5)
    with one.ckpt as ckpt:
        ckpt.resume()
        one.at(1)
        ckpt.save(1)
        one.at(2)

        def meanwhile(self: PackWriter) -> None:
            one.w[-1, -1] = next(others)  # after its digest was taken, before it is written
            flush(self)

        if comm.rank == 0:
            monkeypatch.setattr(PackWriter, "_flush", meanwhile)
        refused("changed-while-saving", 2, call=ckpt.save)
        monkeypatch.undo()
        one.at(3)
        assert ckpt.save(3).name == "e000001-000002"
    with job(digest=algorithm).ckpt as again:
        assert again.resume().update == 3
        # The same words twice are those of one moment, whoever has looked at them.
        assert again.save(3).name == "e000001-000002"


@pytest.mark.mpi(min_size=2)
def test_a_silent_role_is_named_and_the_others_end(
    job: Callable[..., Job], comm: Any, mpi_tmp_path: pathlib.Path
) -> None:
    one = job(deadline=1.0)
    one.ckpt.resume()
    one.at(1)
    one.ckpt.save(1)
    one.at(2)
    silent = comm.size - 1
    if comm.rank != silent:
        begin = time.monotonic()
        with pytest.raises(am.PeerFailed) as caught:
            one.ckpt.save(2)
        assert caught.value.role == silent, caught.value
        assert time.monotonic() - begin < 15
    comm.Barrier()
    # Later it comes after all: nothing of this attempt is published by anybody.
    if comm.rank == silent:
        with pytest.raises(am.CheckpointError):
            one.ckpt.save(2)
    comm.Barrier()
    published = sorted(p.name for p in (mpi_tmp_path / "ckpt" / "published").iterdir())
    assert published == ["e000001-000001.json"]


def damage(path: pathlib.Path, pattern: str) -> None:
    (file,) = path.glob(pattern)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_r03_a_damaged_newest_is_refused_or_passed_over_by_all_alike(
    job: Callable[..., Job], comm: Any, mpi_tmp_path: pathlib.Path
) -> None:
    store = mpi_tmp_path / "ckpt"
    with job().ckpt as ckpt:
        pass
    one = job()
    with one.ckpt as ckpt:
        ckpt.resume()
        for update in (10, 20):
            one.at(update)
            ckpt.save(update)
    comm.Barrier()
    if comm.rank == 0:
        damage(store, "data/e000001-000002/000/000000.pack")
    comm.Barrier()
    two = job()
    with two.ckpt as ckpt:
        two.at(5)
        with pytest.raises(am.Refused) as caught:
            ckpt.resume()
        everyone = comm.allgather((caught.value.code, caught.value.role, caught.value.file))
        assert all(one == everyone[0] for one in everyone), everyone
        assert "e000001-000002/000/000000.pack" in str(caught.value)
        assert two.is_at(5)
        moment = ckpt.resume(fallback=True)
        assert (moment.update, moment.epoch) == (10, 2) and two.is_at(10)
        assert ckpt.resumed is not None
        assert [name for name, _ in ckpt.resumed.skipped] == ["e000001-000002"]
        two.at(30)
        ckpt.save(30)
    with job().ckpt as ckpt:
        assert ckpt.resume().update == 30
    comm.Barrier()
    if comm.rank == 0:
        for attempt in ("e000001-000001", "e000002-000001"):
            damage(store, f"data/{attempt}/000/000000.pack")
    comm.Barrier()
    three = job()
    with three.ckpt as ckpt:
        three.at(5)
        with pytest.raises(am.Refused) as caught:
            ckpt.resume(fallback=True)
        assert caught.value.code == "all-damaged"
        assert three.is_at(5)


def test_r11_going_back_on_purpose_begins_a_new_line(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)  # these tests may run inside a job themselves
    one = job()
    with one.ckpt as ckpt:
        ckpt.resume()
        for update in (1600, 1800, 1820):
            one.at(update)
            ckpt.save(update)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    two = job()
    with two.ckpt as ckpt:
        assert ckpt.resume(generation=1600).update == 1600 and two.is_at(1600)
        assert ckpt.resumed is not None and ckpt.resumed.forked
        for update in (1620, 1640):
            two.at(update)
            ckpt.save(update)
    # The requeued job asks for the same, and goes on with its own fork.
    again = job()
    with again.ckpt as ckpt:
        assert ckpt.resume(generation="u1600").update == 1640
        assert ckpt.resumed is not None and not ckpt.resumed.forked
    monkeypatch.delenv("SLURM_JOB_ID")
    three = job()
    with three.ckpt as ckpt:
        assert ckpt.resume().update == 1640 and three.is_at(1640)
    four = job()
    with four.ckpt as ckpt:
        assert ckpt.resume(generation="e000001-000003").update == 1820 and four.is_at(1820)
        refused("no-generation", call=four.ckpt.resume, generation=7)
