"""Every order of events for three roles, with faults; and proof that the explorer sees faults."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.explorer import ATTEMPT, PREFIX, Explorer, Scene, Violation, explore, wander

from alpha_mpi.model.capture import Moment
from alpha_mpi.protocol import events as ev
from alpha_mpi.protocol.groups import Copies
from alpha_mpi.protocol.role import Role
from alpha_mpi.protocol.star import StarRoot
from alpha_mpi.protocol.tree import TreeRole

SHAPES = {"chain": 1, "wide": 2, "star": None}
FAULTS = [
    {},
    {"disk": 1},
    {"disk": 2},
    {"crash": 1},
    {"crash": 2},
    {"drop": 1},
    {"hold": 1},
    {"claim": 1},
    {"disturb": 1},
    {"crash": 1, "claim": 1},
]
MORE_FAULTS = [
    {"crash": 1, "disk": 1},
    {"disturb": 1, "disk": 1},
    {"disturb": 1, "crash": 1},
    {"hold": 1, "claim": 1},
    {"hold": 1, "disk": 1},
    {"hold": 1, "crash": 1},
    {"drop": 1, "crash": 1},
    {"disk": 1, "crash": 1, "claim": 1},
]
OTHER = "xxh3-128:" + "ff" * 16


def scene(shape: str, owners: int = 3, faults: dict[str, int] | None = None, **more: object) -> Scene:
    return Scene(owners, SHAPES[shape], faults=tuple((faults or {}).items()), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("faults", FAULTS, ids=lambda f: "+".join(f"{k}{n}" for k, n in f.items()) or "none")
@pytest.mark.parametrize("shape", SHAPES)
def test_three_roles_end_alike(shape: str, faults: dict[str, int]) -> None:
    explorer = explore(scene(shape, faults=faults))
    assert ("published",) in explorer.outcomes
    if not faults:
        assert explorer.outcomes == {("published",)}
    if "claim" in faults or "disk" in faults or "crash" in faults:
        assert ("not-published",) in explorer.outcomes


@pytest.mark.slow
@pytest.mark.parametrize("faults", MORE_FAULTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_three_roles_end_alike_with_two_faults(shape: str, faults: dict[str, int]) -> None:
    assert ("published",) in explore(scene(shape, faults=faults)).outcomes


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS[1:], ids=str)
@pytest.mark.parametrize("shape", ["wide", "star"])
def test_four_roles_end_alike(shape: str, faults: dict[str, int]) -> None:
    assert ("published",) in explore(scene(shape, 4, faults)).outcomes


@pytest.mark.parametrize("faults", [{}, {"disk": 1}, {"crash": 1}], ids=str)
@pytest.mark.parametrize("role", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_mixed_moment_publishes_nothing_and_names_the_role(
    shape: str, role: int, faults: dict[str, int]
) -> None:
    mixed = dataclasses.replace(PREFIX, moment=Moment(11, 640, 2))
    more = {"blame": role} if not faults else {}
    try:
        explorer = explore(scene(shape, faults=faults, prefixes=((role, mixed),), **more))
    except Violation as violation:  # with another fault beside it, that may be the first cause
        assert faults and str(violation).startswith("NAMED-CAUSE") and f"role={role}" in str(violation)
    else:
        assert explorer.outcomes == {("not-published",)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("role", [0, 1, 2])
def test_a_failed_capture_is_everybodys(shape: str, role: int) -> None:
    explorer = explore(scene(shape, prefixes=((role, None),), blame=role))
    assert explorer.outcomes == {("not-published",)}


@pytest.mark.parametrize("shape", ["chain", "wide"])
@pytest.mark.parametrize("faults", FAULTS[:8], ids=str)
def test_replica_groups_change_no_outcome(shape: str, faults: dict[str, int]) -> None:
    explorer = explore(scene(shape, faults=faults, groups=((0, (0, 2)),)))
    assert ("published",) in explorer.outcomes


@pytest.mark.parametrize("shape", ["chain", "wide"])
@pytest.mark.parametrize(("members", "differs"), [((0, 2), 2), ((1, 2), 2), ((0, 1, 2), 1)])
def test_a_diverged_copy_publishes_nothing(shape: str, members: tuple[int, ...], differs: int) -> None:
    explorer = explore(
        scene(shape, groups=((0, members),), copies=((differs, ((0, OTHER),)),), blame=differs)
    )
    assert explorer.outcomes == {("not-published",)}


@settings(max_examples=80, derandomize=True, deadline=None)
@given(
    owners=st.integers(4, 9),
    fan_out=st.sampled_from([None, 1, 2, 3, 8]),
    seed=st.integers(0, 10**9),
    faults=st.fixed_dictionaries(
        {},
        optional={f: st.integers(1, 2) for f in ("crash", "disk", "drop", "claim", "disturb")}
        | {"hold": st.just(1)},
    ),
)
def test_up_to_nine_roles_end_alike(
    owners: int, fan_out: int | None, seed: int, faults: dict[str, int]
) -> None:
    wander(Scene(owners, fan_out, faults=tuple(faults.items())), seed)


# ---------------------------------------------------------------- the explorer sees faults


def sees(invariant: str, a_scene: Scene) -> None:
    with pytest.raises(Violation, match=invariant):
        explore(a_scene)


def test_seen_a_parent_that_does_not_wait_for_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: TreeRole, now: float) -> None:
        if not self._agreed:
            self._agree(now)
        elif self._shards and not self._naming and not self._publishing:
            self._records = dict.fromkeys(self._children)  # type: ignore[arg-type]
            self._name(now)

    monkeypatch.setattr(TreeRole, "_advance", advance)
    sees("DURABLE-BEFORE-NAMED", scene("chain"))


def test_seen_a_commitment_before_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    name = TreeRole._name

    def hasty(self: TreeRole, now: float) -> None:
        name(self, now)
        if self._naming:
            from alpha_mpi.format.manifest import ChildRecord

            self._own(ev.ManifestDurable(ChildRecord(self._me, 1, OTHER, PREFIX.cover)), now)

    monkeypatch.setattr(TreeRole, "_name", hasty)
    sees("DURABLE-BEFORE-NAMED", scene("wide"))


def test_seen_a_release_on_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubt(self: Role, cause: object) -> None:
        self._release(OTHER, self.entry or 0)

    monkeypatch.setattr(Role, "_doubt", doubt)
    sees("SUCCESS-IS-PUBLISHED", scene("chain", faults={"disk": 1}))


def test_seen_an_abort_on_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Role, "_doubt", lambda self, cause: self._abort(cause, 0.0))
    sees("SAME-OUTCOME", scene("chain", faults={"disk": 1}))


@pytest.mark.parametrize("shape", SHAPES)
def test_seen_a_committed_role_that_aborts_alone(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    def watch(self: Role, now: float) -> None:
        if self._silence.silent(self._parent or 0, now) >= 2 * self._deadline:
            self._lost.add(self._parent or 0)
            from alpha_mpi.protocol.causes import missing

            self._abort(missing(self._parent or 0), now)

    monkeypatch.setattr(Role, "_watch_parent", watch)
    sees("SAME-OUTCOME", scene(shape, faults={"crash": 1}))


@pytest.mark.parametrize("shape", SHAPES)
def test_seen_an_abort_of_a_publishing_root(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """The root gives up on a slow directory sync and says so, instead of doubting."""
    tick = Role._tick

    def hasty(self: Role, written: int, now: float) -> None:
        if self._publishing and self._silence.idle(now) >= self._deadline / 2:
            from alpha_mpi.protocol.causes import stalled

            self._abort(stalled(self._me, self._deadline), now)
            self._out = [e for e in self._out if not isinstance(e, ev.StopWriting)]
            assert self._abortion is not None
            self._abortion.stopping = False
        else:
            tick(self, written, now)

    monkeypatch.setattr(Role, "_tick", hasty)
    sees("SAME-OUTCOME|CLEAN-IS-OVER", scene(shape, faults={"hold": 1}))


@pytest.mark.parametrize("shape", SHAPES)
def test_seen_a_disturbance_taken_for_a_failed_root(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    handle = Role.handle

    def hasty(self: Role, event: ev.Event, now: float) -> list[ev.Effect]:
        return handle(self, ev.Failed(event.cause) if isinstance(event, ev.Disturbed) else event, now)

    monkeypatch.setattr(Role, "handle", hasty)
    sees("SAME-OUTCOME|CLEAN-IS-OVER", scene(shape, faults={"disturb": 1}))


def test_seen_an_answer_while_the_writer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Role._finish

    def hasty(self: Role, now: float) -> None:
        assert self._abortion is not None
        self._abortion.stopping = False
        finish(self, now)

    monkeypatch.setattr(Role, "_finish", hasty)
    sees("ENDED-IS-STILL", scene("wide", faults={"disk": 1}))


def test_seen_a_root_that_does_not_wait_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Role._finish

    def hasty(self: Role, now: float) -> None:
        assert self._abortion is not None
        self._abortion.waiting.clear()
        finish(self, now)

    monkeypatch.setattr(Role, "_finish", hasty)
    sees("CLEAN-IS-OVER|ENDED-IS-STILL", scene("wide", faults={"disk": 1}))


def test_seen_two_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a final word of the root each role reports what it heard first."""
    abort = Role._abort

    def alone(self: Role, cause: object, now: float, **more: object) -> None:
        abort(self, cause, now, **(more | {"final": True}))  # type: ignore[arg-type]

    monkeypatch.setattr(Role, "_abort", alone)
    sees("SAME-CAUSE", scene("wide", faults={"disk": 2}))


def test_seen_silence_that_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Role, "_watch_before_commitment", lambda self, now: None)
    sees("BOUNDED", scene("chain", faults={"crash": 1}))


def test_seen_an_ancestor_blamed_for_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that counts a child's silence while it has not told it to begin."""
    monkeypatch.setattr(
        TreeRole, "_awaited_children", lambda self: [c for c in self._children if c not in self._records]
    )
    sees("NAMED-CAUSE", scene("chain", faults={"crash": 1}))


def test_seen_prefixes_that_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from alpha_mpi.protocol import prefixes

    monkeypatch.setattr(prefixes, "difference", lambda *a, **k: None)
    mixed = dataclasses.replace(PREFIX, moment=Moment(11, 640, 2))
    for shape in SHAPES:
        assert ("published",) in explore(scene(shape, prefixes=((2, mixed),))).outcomes


def test_seen_copies_that_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copies, "difference", lambda self: None)
    explorer = explore(scene("wide", groups=((0, (0, 2)),), copies=((2, ((0, OTHER),)),)))
    assert ("published",) in explorer.outcomes


def test_seen_a_star_that_waits_for_a_gather_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StarRoot, "_watch", lambda self, now: None)
    sees("BOUNDED", scene("star", faults={"drop": 1}))


def test_the_explorer_visits_every_order() -> None:
    """Two roles: four events at the root's side, three at the other's; a hand count of their merges."""
    explorer = Explorer(Scene(2, 1))
    explorer.run()
    assert explorer.visited > 10
    assert explorer.outcomes == {("published",)}
    assert PREFIX.attempt == ATTEMPT
