"""What is captured: the pieces that the layout check decided on, and no other ones."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.errors import Refused
from alpha_mpi.format.columns import Pieces
from alpha_mpi.format.manifest import Table
from alpha_mpi.model.pieces import Box, Interval, Piece, local_shape
from alpha_mpi.opening import Run
from alpha_mpi.publication.publish import Work

SHAPE = (4, 4)
#: Pieces that cover the region.
DECIDED: list[Piece] = [Box((0, 0), (2, 2)), Box((0, 2), (2, 4)), Interval(8, 12), Interval(12, 16)]
#: What may be there a moment later.
LATER: dict[str, list[Piece]] = {
    "another start": [*DECIDED[:2], Interval(8, 11), Interval(11, 16)],
    "another length": [*DECIDED[:2], Interval(8, 13), DECIDED[3]],
    "another shape of as many words": [Box((0, 0), (1, 4)), *DECIDED[1:]],
    "one more": [*DECIDED, Interval(9, 10)],
    "one twice": [DECIDED[0], *DECIDED],
    "one less": DECIDED[:3],
    "none": [],
}


@pytest.mark.parametrize("what", LATER)
def test_pieces_that_change_after_the_layout_check_are_refused(
    what: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, made = [DECIDED], dict[str, list[np.ndarray]]()

    def arrays() -> list[np.ndarray]:
        return made.setdefault(str(now[0]), [np.ones(local_shape(piece)) for piece in now[0]])

    state = am.State()
    state.partition("w", arrays, shape=SHAPE, layout=am.irregular(lambda: now[0]))
    counter = np.zeros(3)
    state.replicate("counter", counter)
    check = Run.check_layout

    def then_change(run: Run) -> None:
        check(run)
        now[0] = LATER[what]

    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        counter += 1
        monkeypatch.setattr(Run, "check_layout", then_change)
        with pytest.raises(Refused) as caught:
            ckpt.save(2)
        assert (caught.value.code, caught.value.region) == ("changed-while-saving", "w")
        assert caught.value.role == 0
        monkeypatch.undo()
        now[0] = DECIDED
        assert ckpt.save(2).moment.update == 2


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_piece_that_was_not_written_is_refused_before_the_root(
    lost: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a piece ever left out on its way from the capture to the records, nothing would be published."""
    state = am.State()
    for i in range(3):
        state.partition(f"w{i}", np.ones(5), shape=(5,), layout=am.rows())
    real = Work._record

    def forgetful(work: Work, tables: Sequence[bytes]) -> None:
        real(work, tables)
        left = [row for i, row in enumerate(work._table.rows()) if i != lost]
        ordinals, owners, ints, nbytes, names, _ = zip(*left, strict=True)
        work._table = Table(Pieces(ordinals, owners, ints), nbytes, names, work._table.places)

    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        ckpt.resume()
        monkeypatch.setattr(Work, "_record", forgetful)
        with pytest.raises(Refused) as refused:
            ckpt.save(1)
        assert (refused.value.code, refused.value.role) == ("cover-differs", 0)
        assert not list((tmp_path / "s" / "published").glob("*.json"))
        monkeypatch.undo()
        assert ckpt.save(1).moment.update == 1
