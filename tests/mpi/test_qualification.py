"""The checks of a team with ranks of MPI: held where all is well, and one that fails on one rank."""

import os

import numpy as np
import pytest

from alpha_mpi.qualification import learners, steps
from alpha_mpi.qualification.check import Plan
from alpha_mpi.qualification.scratch import PARTS
from alpha_mpi.qualification.team import MpiTeam
from alpha_mpi.restore import choose
from alpha_mpi.store.store import Store

PLAN = Plan(minutes=5, names=40, rounds=2, size=1 << 16, repeats=1, quick=True)


@pytest.fixture
def team():
    team = MpiTeam(60)
    yield team
    team.close()


@pytest.fixture
def scratch(team, tmp_path):
    path = team.from_first(str(tmp_path))
    if team.rank == 0:
        for part in PARTS:
            os.mkdir(os.path.join(path, part))
    team.barrier()
    return path


@pytest.mark.mpi
def test_all_checks_of_a_team(team, scratch, monkeypatch):
    monkeypatch.setattr(learners, "counts", lambda size: [size, 2])
    begun, found = [], []
    steps.together(team, scratch, PLAN, False, steps.TOGETHER, begun.append, found.append)
    assert begun == list(steps.TOGETHER)
    told = {check.key: check.verdict for check in found}
    assert told.pop("visibility") == "not tried"  # one node
    assert set(told.values()) == {"held"}, [check.notes for check in found]
    assert len({check.found for check in found}) == len(steps.TOGETHER)
    with Store.open(os.path.join(scratch, "specimen")) as store:  # for damage: two epochs, a tree
        seen = choose.survey(store)
        assert seen.epoch == 2 and seen.newest.manifest.root.owners == min(team.size, 4)
    team.barrier()


@pytest.mark.mpi
def test_a_learner_that_forgets_on_one_rank_is_found(team, scratch, monkeypatch):
    real = learners.DataParallel.stand_at

    def wrong(self, moment):
        real(self, moment)
        if moment.update and team.rank == 1 and self.moments[0].size:
            self.moments[0][0] = np.nextafter(self.moments[0][0], 9)

    monkeypatch.setattr(learners.DataParallel, "stand_at", wrong)
    monkeypatch.setattr(learners, "counts", lambda size: [2])
    check = learners.equivalence(team, os.path.join(scratch, "learners"), PLAN)
    assert check.verdict == "failed" and "different after update 4" in check.found, check
    team.barrier()
