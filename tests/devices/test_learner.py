"""The learners on a device: the bits of the host, and of a run that was never interrupted."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from fake_device import CARD, NEWER, Fake, Math, Space

import alpha_mpi as am
from alpha_mpi.devices import runtime as seam
from alpha_mpi.learning import PLACEMENTS, RULES, DataParallel


def words(learner: DataParallel) -> list[bytes]:
    """Return every word of a learner's state."""
    return [a.tobytes() for a in (learner.parameters, *learner.moments, learner.powers)] + [
        np.float64(learner.loss).tobytes()
    ]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("rule", RULES)
def test_the_host_shadow_agrees_and_a_resume_goes_on(
    tmp_path: pathlib.Path, rule: str, placement: str
) -> None:
    fake = Fake(CARD, NEWER)
    with seam.replaced(fake):
        with (
            DataParallel(rule, placement) as shadow,
            DataParallel(rule, placement, arrays=Space(fake)) as run,
        ):
            for _ in range(4):
                assert run.step() == shadow.step()
            assert isinstance(run.parameters, Math) and words(run) == words(shadow)
        with DataParallel(rule, placement, arrays=Space(fake)) as first:
            saved(tmp_path / "s", first, 2)
        with DataParallel(rule, placement, arrays=Space(fake)) as second:
            saved(tmp_path / "s", second, 4)
            assert words(second) == words(shadow)
            assert second.contract.product is None, "the library finds it"
        with am.open(tmp_path / "s") as store:
            assert store.latest().contract.product == CARD.product
        with DataParallel(rule, placement, arrays=Space(fake, 1)) as other:
            with pytest.raises(am.Refused) as told:
                saved(tmp_path / "s", other, 5)
            assert told.value.code == "wrong-device" and other.update == 0


def saved(path: pathlib.Path, learner: DataParallel, stop: int) -> Any:
    """Resume, and save each update up to one."""
    with am.Checkpointer(path, learner.state(), learner=learner.identity, contract=learner.contract) as ckpt:
        learner.stand_at(ckpt.resume())
        while learner.update < stop:
            learner.step()
            ckpt.save(learner.update, learner.cursor)
