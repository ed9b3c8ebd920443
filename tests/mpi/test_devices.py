"""Arrays on GPUs of several owners: gathered on a star, compared as replicas, dealt anew on resume."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from fake_device import Fake, FakeError
from fill import same_bits

import alpha_mpi as am
from alpha_mpi.devices import runtime as seam
from tests.mpi.scenario import HIERARCHIES, Words, name_of, open_, refusal, team

pytestmark = pytest.mark.mpi

#: One array larger than a chunk on each owner, replicated and copied words, pieces of all kinds.
REGIONS = (
    ("large", (1300, 700), np.float32, am.rows()),
    ("both", (500, 600), np.float32, None),
    ("copied", (6, 50), np.float64, am.mesh({"dp": 3}, (None, None))),
    ("grid", (40, 30), np.int32, am.rows(1)),
    ("own", (7,), np.uint64, "own"),
    ("one", (), np.float64, None),
)
#: The same regions, dealt otherwise.
OTHERWISE = (
    ("large", (1300, 700), np.float32, am.rows(1)),
    ("both", (500, 600), np.float32, am.shares()),
    ("copied", (6, 50), np.float64, am.rows()),
    ("grid", (40, 30), np.int32, am.shares()),
    ("own", (7,), np.uint64, "own"),
    ("one", (), np.float64, None),
)


class Devices(Words):
    """The words of `Words` on a device of each owner, strided where a word is not the last axis."""

    def __init__(self, fake: Fake, comm: Any, *regions: Any) -> None:
        super().__init__(comm, *regions)
        self.there = {}
        for name, array in self.arrays.items():
            strided = array.ndim == 2 and name in ("grid", "both")
            self.there[name] = fake.array(array.T).T if strided else fake.array(array)

    def at(self, update: int) -> None:
        for i, (name, *_) in enumerate(self.regions):
            self.there[name].later(self.words(i, update))

    def check(self, update: int) -> None:
        for i, (name, *_) in enumerate(self.regions):
            assert same_bits(self.there[name].get().copy(order="C"), self.words(i, update)), name

    def state(self, **_: Any) -> am.State:
        return super().state(**self.there)


@pytest.mark.parametrize(
    ("hierarchy", "early"),
    [(am.Star(), False), (am.Tree(2), True)],
    ids=["star-late", "tree2-early"],
)
def test_saved_and_resumed(
    comm: Any, mpi_tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, hierarchy: Any, early: bool
) -> None:
    """Every bit, on the same owners, dealt otherwise on another hierarchy, and on the host."""
    monkeypatch.setattr("alpha_mpi.publication.own.DEALT", 1 << 20)  # several owners write "both"
    path, fake = mpi_tmp_path / "s", Fake(early=early)
    with seam.replaced(fake):
        words = Devices(fake, comm, *REGIONS)
        with open_(path, words.state(), comm, hierarchy=hierarchy) as ckpt:
            ckpt.resume()
            for update in (1, 2):
                words.at(update)
                ckpt.save(update)
        fresh = Devices(fake, comm, *REGIONS)
        with open_(path, fresh.state(), comm, hierarchy=hierarchy, staging=1 << 20) as ckpt:
            assert ckpt.resume().update == 2
            fresh.check(2)
            fresh.at(3)
            ckpt.save(3)
        other = HIERARCHIES[isinstance(hierarchy, am.Star)]
        moved = Devices(fake, comm, *OTHERWISE)
        with open_(path, moved.state(), comm, hierarchy=other) as ckpt:
            assert ckpt.resume().update == 3
            moved.check(3)
            with pytest.raises(am.Refused, match="unchanged-state"):
                ckpt.save(4)


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_one_owner_s_device_fails(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    """The same typed error on all of them, in a save and in a resume; the next attempt is right."""
    path, fake = mpi_tmp_path / "s", Fake()
    last = comm.size - 1
    with seam.replaced(fake):
        words = Devices(fake, comm, *REGIONS)
        with open_(path, words.state(), comm, hierarchy=hierarchy) as ckpt:
            ckpt.resume()
            words.at(1)
            ckpt.save(1)
            words.at(2)
            if comm.rank == last:
                fake.fail("copy", after=3)
            told = refusal(comm, lambda: ckpt.save(2))
            assert (told.code, told.role) == ("device-failed", last) and FakeError.__name__ in str(told)
            ckpt.save(3)
        fresh = Devices(fake, comm, *REGIONS)
        with open_(path, fresh.state(), comm, hierarchy=hierarchy) as ckpt:
            if comm.rank == last:
                fake.fail("to_device", after=1)
            told = refusal(comm, ckpt.resume)
            assert (told.code, told.role) == ("device-failed", last)
        with open_(path, fresh.state(), comm, hierarchy=hierarchy) as ckpt:
            assert ckpt.resume().update == 3
            fresh.check(2)


def test_diverged_replicas_on_devices(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    fake = Fake()
    with seam.replaced(fake), team(comm, 2) as part:
        if part is None or part.size < 2:
            return
        words = Devices(fake, part, *REGIONS[:2])
        with open_(mpi_tmp_path / "s", words.state(), part) as ckpt:
            ckpt.resume()
            words.at(1)
            if part.rank == 1:
                words.there["both"].later(np.ones((500, 600), np.float32))
            told = refusal(part, lambda: ckpt.save(1))
            assert (told.code, told.role, told.region) == ("diverged-replica", 1, "both")
