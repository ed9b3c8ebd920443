"""Jobs that are killed while they continue, again and again: nothing is lost, nothing is hidden."""

from __future__ import annotations

import pathlib
import random

import pytest
from damage import kit
from store.small_store import Killed, killed_at, publish, resume, root_bytes

from alpha_mpi.errors import Refused, Superseded
from alpha_mpi.restore import choose
from alpha_mpi.restore.resume import Checked
from alpha_mpi.store import entries
from alpha_mpi.store.store import Store


def test_a_hundred_killed_retries_leave_a_store_that_resumes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(1)
    path = tmp_path / "ckpt"
    with Store.create_or_open(path, probe=False) as store:
        resume(store)
        newest = publish(store, 1, 1)
    killed, last = 0, 1
    while killed < 100:
        with Store.create_or_open(path, probe=False) as store:
            with killed_at(monkeypatch, draw.randrange(1, 9), draw.random() < 0.5) as count:
                try:
                    resume(store, job=f"retry {killed}")
                except Killed:
                    pass
            killed += count.dead
        with Store.open(path) as reader:
            seen = choose.survey(reader)
        assert seen.newest == newest and seen.damage is None
        # Each claim that succeeded took one epoch, one after the other; the others took none.
        assert last <= seen.epoch <= last + 1
        last = seen.epoch
        assert sorted(seen.claims) == list(range(1, last + 1))
    assert last > 10
    with Store.create_or_open(path, probe=False) as store:
        epoch = resume(store, job="the one that lives")
        assert epoch in (last + 1, last + 2)
        with pytest.raises(Superseded):
            entries.publish(store, 1, 2, root_bytes(store, 1, 2, update=2))
        assert publish(store, epoch, 1, update=2).position == choose.survey(store).newest.position


def test_who_dies_before_the_copy_has_taken_its_epoch_and_hides_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ckpt"
    kit.make(path)

    class Died(BaseException):
        pass

    def die(self: Checked) -> None:
        raise Died

    for epoch in range(3, 8):
        job = kit.Job(path)
        words = job.words
        with monkeypatch.context() as patch:
            patch.setattr(Checked, "apply", die)
            with pytest.raises(Died), job.checkpointer as ckpt:
                ckpt.resume()
        assert job.words == words
        with Store.open(path) as store:
            seen = choose.survey(store)
        assert (seen.epoch, seen.newest.name) == (epoch, kit.NEWEST)
    job = kit.Job(path)
    with job.checkpointer as ckpt:
        moment = ckpt.resume()
        assert (moment.update, moment.epoch) == (40, 8)


def test_a_refused_restore_takes_no_epoch(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ckpt"
    kit.make(path)
    for learner in ("other", "another"):
        assert kit.refused(path, learner=kit.am.Learner(learner)).code == "other-learner"
    pack = next((path / "data" / "e000002-000003").rglob("*.pack"))
    good = pack.read_bytes()
    pack.write_bytes(good[:-1])
    for _ in range(3):
        assert kit.refused(path).code == "truncated"
    pack.write_bytes(good)
    job = kit.Job(path)
    with job.checkpointer as ckpt:
        assert ckpt.resume().epoch == 3


def test_an_older_job_cannot_be_acknowledged_any_more(tmp_path: pathlib.Path) -> None:
    """R26: a job that was stopped while a newer one continued is told which, and by every save."""
    path = tmp_path / "ckpt"
    old = kit.Job(path)
    with old.checkpointer as ckpt:
        ckpt.resume()
        old.w += 1
        ckpt.save(10)
        before = kit.digests(path)
        new = kit.Job(path)
        with new.checkpointer as newer:
            assert newer.resume().update == 10
            for update in (15, 20):
                new.w += update
                newer.save(update)
            after = kit.digests(path)
            assert before.items() <= after.items()  # nothing published was changed for it
            for update in (20, 21):
                old.w += 1
                with pytest.raises(Superseded) as caught:
                    ckpt.save(update)
                assert "continued as epoch 2" in str(caught.value)
            with pytest.raises(Refused):
                ckpt.save(22)
            gone = {k: v for k, v in kit.digests(path).items() if k not in after}
            assert not [name for name in gone if name.startswith(("published", "epochs"))]
    third = kit.Job(path)
    with third.checkpointer as last:
        assert last.resume().update == 20
    assert third.words == new.words
