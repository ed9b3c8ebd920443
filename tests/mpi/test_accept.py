"""Resuming in spite of a difference: what can be accepted, with a reason, and what cannot."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.format.claim import decode_claim
from tests.mpi.scenario import HIERARCHIES, Words, name_of, open_, publish, refusal, refused_resume, snapshot

pytestmark = pytest.mark.mpi

OLD = (
    ("gone", (300, 2), np.float32, am.rows()),
    ("w", (41, 5), np.float32, am.rows()),
    ("bias", (7,), np.float64, None),
    ("dropped", (3,), np.int16, None),
    ("mine", (4,), np.uint64, "own"),
    ("loose", (2,), np.float32, "own"),
)
#: Other order, two regions of other kinds gone, three that are new.
NEW = (
    ("bias", (7,), np.float64, None),
    ("fresh", (6,), np.float32, None),
    ("mine", (4,), np.uint64, "own"),
    ("w", (41, 5), np.float32, am.shares()),
    ("wide", (90,), np.int8, am.shares()),
    ("own", (2, 2), np.float32, "own"),
)
EXTRA, MISSING = ("gone", "dropped", "loose"), ("fresh", "wide", "own")


def new_state(words: Words, values: dict[str, Any]) -> am.State:
    """Declare the document ``more``, the regions of `words`, and the document ``plan``."""
    state = am.State()
    state.document("more", read=lambda: values["more"], write=lambda v: values.update(more=v))
    for name, shape, dtype, rule in words.regions:
        array = words.arrays[name]
        if rule is None:
            state.replicate(name, array)
        elif rule == "own":
            state.per_owner(name, array)
        else:
            state.partition(name, array, shape=shape, layout=rule, dtype=dtype)
    state.document("plan", read=lambda: values["plan"], write=lambda v: values.update(plan=v))
    return state


def claim(path: pathlib.Path, epoch: int) -> Any:
    """Return the claim of an epoch; any rank may read it."""
    file = path / f"epochs/e{epoch:06d}.json"
    return decode_claim(file.read_bytes(), str(file))


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_another_learner_and_contract(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    path = mpi_tmp_path / "s"
    words = Words(comm, *OLD[:3])
    was = {
        "learner": am.Learner("digits", rate=0.5),
        "contract": am.Contract(combine="by rank", product="P1"),
    }
    now = {
        "learner": am.Learner("digits", rate=0.25),
        "contract": am.Contract(combine="by tree", product="P2"),
    }
    publish(path, words, comm, 10, 20, hierarchy=hierarchy, **was)

    told = refused_resume(comm, path, words.state(), hierarchy=hierarchy, **now)
    assert told.code == "other-learner" and "rate: expected 0.25, found 0.5" in str(told)
    assert 'accept=am.Accept(learner="why")' in str(told)
    reasons: dict[str, str] = {"learner": "the rate falls"}
    for code, word, line in (
        ("other-contract", "contract", "combine: expected 'by tree', found 'by rank'"),
        ("wrong-device", "device", "product: expected 'P2', found 'P1'"),
    ):
        before = snapshot(comm, path)
        with open_(path, words.state(), comm, hierarchy=hierarchy, **now) as ckpt:
            given = am.Accept(**reasons)
            told = refusal(comm, lambda given=given, ckpt=ckpt: ckpt.resume(accept=given))
        assert snapshot(comm, path) == before
        assert told.code == code and line in str(told) and f'am.Accept({word}="why")' in str(told)
        reasons[word] = f"another {word}"

    fresh = Words(comm, *words.regions)
    with open_(path, fresh.state(), comm, hierarchy=hierarchy, **now) as ckpt:
        assert ckpt.resume(accept=am.Accept(**reasons)) == am.Moment(20, 20, 2)
        fresh.check(20)
        assert ckpt.resumed is not None
        accepted = ckpt.resumed.accepted
        assert accepted == (
            ("contract", "combine: expected 'by tree', found 'by rank'", "another contract"),
            ("device", "product: expected 'P2', found 'P1'", "another device"),
            ("learner", "rate: expected 0.25, found 0.5", "the rate falls"),
        )
        # The old one is of another learner: the same update is no success of this one.
        assert refusal(comm, lambda: ckpt.save(20)).code == "other-words"
        assert refusal(comm, lambda: ckpt.save(19)).code == "stale-update"
        assert refusal(comm, lambda: ckpt.save(21)).code == "unchanged-state"
        fresh.at(30)
        ckpt.save(30)
    assert claim(path, 2).accepted == accepted
    # What was not needed is accepted, and not recorded.
    again = Words(comm, *words.regions)
    with open_(path, again.state(), comm, hierarchy=hierarchy, **now) as ckpt:
        assert ckpt.resume(accept=am.Accept(**reasons)).update == 30
        again.check(30)
        assert ckpt.resumed is not None and ckpt.resumed.accepted == ()
    assert claim(path, 3).accepted == ()
    with open_(path, again.state(), comm, hierarchy=hierarchy, **now) as ckpt:
        assert ckpt.resume().update == 30
    told = refused_resume(comm, path, again.state(), hierarchy=hierarchy, **was)
    assert told.code == "other-learner"


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_regions_that_only_one_side_has(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    path = mpi_tmp_path / "s"
    old = Words(comm, *OLD)
    state = old.state()
    for name in ("plan", "note"):
        state.document(name, read=lambda: 1, write=lambda value: None)
    with open_(path, state, comm, hierarchy=hierarchy) as ckpt:
        ckpt.resume()
        old.at(10)
        ckpt.save(10)

    new = Words(comm, *NEW)
    kept = {name: new.arrays[name].copy() for name in MISSING}
    values = {"plan": "none", "more": "kept"}
    state = new_state(new, values)

    told = refused_resume(comm, path, state, hierarchy=hierarchy)
    assert told.code == "schema-differs"
    for name in (*EXTRA, "note", *MISSING, "more"):
        assert repr(name) in str(told)
    assert "am.Accept(missing=[" in str(told)

    missing = {name: f"{name} is new" for name in (*MISSING, "more")}
    part = am.Accept(missing=missing, extra=EXTRA, why="no longer trained")
    before = snapshot(comm, path)
    with open_(path, state, comm, hierarchy=hierarchy) as ckpt:
        told = refusal(comm, lambda: ckpt.resume(accept=part))
        assert (told.code, told.region) == ("schema-differs", "note")
        assert snapshot(comm, path) == before
        accept = am.Accept(missing=missing, extra=(*EXTRA, "note"), why="no longer trained")
        assert ckpt.resume(accept=accept) == am.Moment(10, 10, 2)
        for i, (name, *_) in enumerate(NEW):
            expected = kept[name] if name in MISSING else new.words(i, 10)
            assert new.arrays[name].tobytes() == expected.tobytes(), name
        assert values == {"plan": 1, "more": "kept"}
        assert refusal(comm, lambda: ckpt.save(10)).code == "other-words"
        new.at(11)
        ckpt.save(11)
    recorded = claim(path, 2).accepted
    assert [one[:2] for one in recorded] == sorted(
        [("extra", n) for n in (*EXTRA, "note")] + [("missing", n) for n in (*MISSING, "more")]
    )
    assert ("missing", "wide", "wide is new") in recorded
    again = Words(comm, *NEW)
    values["plan"] = "?"
    with open_(path, new_state(again, values), comm, hierarchy=hierarchy) as ckpt:
        assert ckpt.resume() == am.Moment(11, 11, 3)
        again.check(11)
        assert values["plan"] == 1


def test_what_nothing_accepts(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    path = mpi_tmp_path / "s"
    publish(path, Words(comm, *OLD[:3]), comm, 10)
    every = {name: "because" for name, *_ in OLD}
    accept = am.Accept(learner="a", contract="b", device="c", missing=every, extra=every)
    gone, w, bias = OLD[:3]
    changed = [
        (gone, ("w", (41, 6), np.float32, am.rows()), bias),
        (gone, ("w", (41, 5), np.float64, am.rows()), bias),
        (gone, ("w", (41, 5), np.float32, "own"), bias),
        (w, ("bias", (8,), np.float64, None)),
        (w, gone, bias),
    ]
    before = snapshot(comm, path)
    for regions in changed:
        words = Words(comm, *regions)
        with open_(path, words.state(), comm) as ckpt:
            assert refusal(comm, lambda ckpt=ckpt: ckpt.resume(accept=accept)).code == "schema-differs"
        assert all((array.view(np.uint8) == 0xA5).all() for array in words.arrays.values())
    assert snapshot(comm, path) == before
    if comm.rank == 0:
        pack = next(path.rglob("*.pack"))
        data = bytearray(pack.read_bytes())
        data[130] ^= 1
        pack.write_bytes(data)
    comm.barrier()
    with open_(path, Words(comm, w, bias).state(), comm) as ckpt:
        dropped = am.Accept(extra={"gone": "damaged"}, learner="a")
        ckpt.resume(accept=dropped)  # the damage is in what is dropped, which is not read
    with open_(path, Words(comm, *OLD[:3]).state(), comm) as ckpt:
        assert refusal(comm, lambda: ckpt.resume(accept=accept)).code in ("corrupt-shard", "corrupt-pack")


def test_ranks_that_accept_differently(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    path = mpi_tmp_path / "s"
    words = Words(comm, *OLD[1:3])
    publish(path, words, comm, 10)
    last = comm.rank == comm.size - 1
    with open_(path, words.state(), comm) as ckpt:
        mine = am.Accept(learner="a" if last else "b") if comm.size > 1 else 7
        told = refusal(comm, lambda: ckpt.resume(accept=mine))  # type: ignore[arg-type]
        if comm.size > 1:
            assert (told.code, told.role) == ("argument-differs", comm.size - 1)
            assert "accept=" in str(told)
            told = refusal(comm, lambda: ckpt.resume(fallback=last))
            assert (told.code, told.role) == ("argument-differs", comm.size - 1)
            told = refusal(comm, lambda: ckpt.resume(accept="why" if last else None))  # type: ignore[arg-type]
            assert (told.code, told.role) == ("argument", comm.size - 1)
        else:
            assert told.code == "argument"
        assert ckpt.resume() == am.Moment(10, 10, 2)


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_bound_to_another_number_of_owners(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    path = mpi_tmp_path / "s"
    bound = {
        "hierarchy": hierarchy,
        "contract": am.Contract(placement="bound", combine=f"tree of {comm.size}"),
    }
    words = Words(comm, *OLD[:3])
    publish(path, words, comm, 10, **bound)
    alone = comm.Split(comm.rank, 0)
    if comm.rank == 0 and comm.size > 1:
        one = Words(alone, *OLD[:3])
        now = {"hierarchy": hierarchy, "contract": am.Contract(placement="bound", combine="tree of 1")}
        told = refused_resume(alone, path, one.state(), **now)
        assert told.code == "placement-bound" and 'accept=am.Accept(contract="why")' in str(told)
        with open_(path, one.state(), alone, **now) as ckpt:
            ckpt.resume(accept=am.Accept(contract="one node is left"))
            one.check(10)
            one.at(11)
            ckpt.save(11)
        [(kind, subject, reason)] = claim(path, 2).accepted
        assert (kind, reason) == ("contract", "one node is left")
        assert f"bound to {comm.size} owners, resumed on 1" in subject and "tree of 1" in subject
        with open_(path, one.state(), alone, **now) as ckpt:
            assert ckpt.resume().update == 11
        free = {"hierarchy": hierarchy, "contract": am.Contract(combine="x")}
        other = mpi_tmp_path / "free"
        publish(other, Words(alone, *OLD[:3], OLD[5]), alone, 10, **free)
    alone.Free()
    comm.barrier()
    if comm.size > 1:
        other = mpi_tmp_path / "free"
        now = {"hierarchy": hierarchy, "contract": am.Contract(combine="y")}
        with open_(other, words.state(), comm, **now) as ckpt:
            # What each owner had of its own fits no other number of owners, but it is not wanted.
            extra = {"loose": "one owner's"}
            told = refusal(comm, lambda: ckpt.resume(accept=am.Accept(extra=extra)))
            assert told.code == "other-contract"
            assert f"another owner count ({comm.size} instead of 1) changes the combine order" in str(told)
            assert ckpt.resume(accept=am.Accept(extra=extra, contract="more nodes")).update == 10
            words.check(10)


def test_show_and_why_tell_it(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    from click.testing import CliRunner

    from alpha_mpi.cli import alpha_mpi

    path = mpi_tmp_path / "s"
    publish(path, Words(comm, *OLD[:3]), comm, 10)
    words = Words(comm, *OLD[1:3])
    with open_(path, words.state(), comm, learner=am.Learner("b")) as ckpt:
        ckpt.resume(accept=am.Accept(learner="a better rule", extra={"gone": "not\nneeded"}))
        words.at(11)
        ckpt.save(11)
    if comm.rank == 0:
        for command in ("show", "why"):
            result = CliRunner().invoke(alpha_mpi(), [command, str(path)])
            assert result.exit_code == 0, result.output
            lines = [line.strip() for line in result.output.splitlines()]
            assert "accepted: region 'gone' is dropped, because: not\\nneeded" in lines
            learner = "another learner (label: expected 'b', found '')"
            assert f"accepted: {learner}, because: a better rule" in lines
            told = json.loads(CliRunner().invoke(alpha_mpi(), [command, str(path), "--json"]).output)
            told = told if command == "show" else told["claims"][-1]
            assert ["extra", "gone", "not\nneeded"] in told["accepted"]
