"""The rules of the publication machines, one by one."""

from __future__ import annotations

import dataclasses

import pytest
from protocol.network import ATTEMPT, DEADLINE, ENTRY, PREFIX, REPLICAS, ROOT, Network, digest

from alpha_mpi.errors import Cause, Refused, error_of
from alpha_mpi.format.messages import (
    Abort,
    Begin,
    Commitment,
    Doubt,
    Enter,
    Go,
    Group,
    Left,
    Message,
    Release,
    Sign,
    decode,
    encode,
)
from alpha_mpi.model.capture import Attempt, Moment
from alpha_mpi.protocol import events as ev
from alpha_mpi.protocol.hierarchy import Star, Tree, place
from alpha_mpi.protocol.publication import LARGEST_SLICE, StarMember, StarRoot, TreeRole
from alpha_mpi.protocol.silence import Silence
from alpha_mpi.protocol.star import slices

SHAPES = [(Star(), 4), (Star(), 7), (Tree(1), 4), (Tree(2), 4), (Tree(2), 7), (Tree(6), 7)]
SHAPES.append((Tree(2, nodes=(2, 1, 3, 1)), 7))
shapes = pytest.mark.parametrize(("hierarchy", "owners"), SHAPES, ids=str)
BAD = Cause(kind="peer-failed", code="user-code", message="ValueError: bad", retryable=True)
FULL = Cause(kind="commit-failed", code="no-space", message="no space", retryable=True, role=3, errno=28)


def waiting(*kinds: type, roles: set[int]) -> object:
    """Leave these kinds of I/O pending at these roles."""
    return lambda k, effect: None if k in roles and isinstance(effect, kinds) else Network.DONE


# ---------------------------------------------------------------- the way forward


@shapes
def test_everybody_is_released(hierarchy: Star | Tree, owners: int) -> None:
    network = Network(hierarchy, owners).start()
    assert network.outcomes == {"published"}
    assert {(end.root, end.entry) for end in network.ends.values()} == {(ROOT, ENTRY)}
    assert network.ends[0].clean


def test_one_owner_is_enough() -> None:
    assert Network(Tree(2), 1).start().outcomes == {"published"}
    assert Network(Star(), 1).start().outcomes == {"published"}


@shapes
def test_every_message_survives_its_encoding(hierarchy: Star | Tree, owners: int) -> None:
    network = Network(hierarchy, owners, tamper=lambda s, t, m: decode(encode(m)))
    assert network.start().outcomes == {"published"}


def test_the_prefix_comes_before_any_byte() -> None:
    network = Network(Tree(1), 3)
    for k in (2, 1):
        network.enter(k)
    network.settle()
    assert not network.done
    network.enter(0)
    network.settle()
    assert [k for k, effect in network.done if isinstance(effect, ev.WriteShards)] == [0, 1, 2]


def test_children_are_named_in_preorder_with_what_they_said() -> None:
    network = Network(Tree(2), 7).start()
    published = next(effect for _, effect in network.done if isinstance(effect, ev.PublishRoot))
    assert [(c.role, c.size) for c in published.children] == [(1, 3), (4, 3)]
    assert published.entry == ENTRY


# ---------------------------------------------------------------- prefixes

FIELDS = {
    "version": (2, "format-version"),
    "attempt": (Attempt(2, 6), "mixed-moments"),
    "schema": (digest(99), "schema-differs"),
    "learner": (digest(99), "other-learner"),
    "contract": (digest(99), "other-contract"),
    "layout": (digest(99), "layout-differs"),
    "cover": (digest(99), "cover-differs"),
    "moment": (Moment(11, 640, 2), "mixed-moments"),
    "replicas": (digest(99), "diverged-replica"),
}


@shapes
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("role", [1, 3])
def test_who_differs_is_named_with_the_field(
    hierarchy: Star | Tree, owners: int, field: str, role: int
) -> None:
    value, code = FIELDS[field]
    other = dataclasses.replace(PREFIX, **{field: value})
    network = Network(hierarchy, owners, prefixes={role: other}).start()
    assert (network.cause.code, network.cause.role) == (code, role)
    assert network.ends[0].clean
    assert not any(isinstance(effect, ev.PublishRoot) for _, effect in network.done)


@pytest.mark.parametrize("part", ["update", "cursor", "epoch"])
def test_a_mixed_moment_tells_both(part: str) -> None:
    moment = dataclasses.replace(PREFIX.moment, **{part: 99})
    network = Network(Tree(2), 7, prefixes={5: dataclasses.replace(PREFIX, moment=moment)}).start()
    assert network.cause.expected == "update 10, cursor 640, epoch 2"
    assert f"{part} 99" in (network.cause.found or "")


@shapes
def test_a_diverged_replica_names_its_first_region(hierarchy: Star | Tree, owners: int) -> None:
    theirs = (REPLICAS[0], (3, digest(999)), (5, digest(999)))
    other = dataclasses.replace(PREFIX, replicas=digest(7))
    network = Network(hierarchy, owners, prefixes={3: other}, replicas={3: theirs}).start()
    cause = network.cause
    assert (cause.code, cause.role, cause.region) == ("diverged-replica", 3, "r3")
    assert (cause.expected, cause.found) == (digest(103), digest(999))
    assert cause.retryable


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)], ids=str)
def test_more_replicated_regions_than_a_message_lists(hierarchy: Star | Tree) -> None:
    many = tuple((i, digest(i)) for i in range(9000))
    other = dataclasses.replace(PREFIX, replicas=digest(7))
    network = Network(
        hierarchy,
        4,
        prefixes={2: other},
        replicas=dict.fromkeys(range(4), many),
        tamper=lambda s, t, m: decode(encode(m)),
    ).start()
    assert (network.cause.code, network.cause.role, network.cause.region) == ("diverged-replica", 2, None)


def test_who_differs_tells_its_children_too() -> None:
    other = dataclasses.replace(PREFIX, schema=digest(99))
    network = Network(Tree(1), 3, prefixes={1: other}).start()
    assert network.counts[1].sent["Abort"] >= 2
    assert network.counts[2].received["Begin"] == 0
    assert not [k for k, effect in network.done if isinstance(effect, ev.WriteShards) and k != 0]


# ---------------------------------------------------------------- commitments


def in_commitment(child: int, fields: dict[str, object]) -> object:
    def tamper(sender: int, to: int, message: Message) -> Message:
        if isinstance(message, Commitment) and sender == child:
            record = {name: fields[name] for name in ("role", "size", "cover") if name in fields}
            prefix = {name: fields[name] for name in ("moment",) if name in fields}
            return Commitment(
                message.attempt,
                dataclasses.replace(message.prefix, **prefix),
                type(message.record)(
                    **{
                        name: record.get(name, getattr(message.record, name))
                        for name in ("role", "size", "manifest", "cover")
                    }
                ),
                message.changed,
            )
        return message

    return tamper


@pytest.mark.parametrize(
    ("role", "fields", "code"),
    [
        (1, {"role": 2}, "wrong-child"),
        (5, {"role": 6}, "wrong-child"),
        (1, {"size": 4}, "wrong-subtree-size"),
        (6, {"size": 0}, "wrong-subtree-size"),
        (4, {"moment": Moment(9, 640, 2)}, "mixed-moments"),
        (1, {"cover": digest(99)}, "cover-differs"),
    ],
)
def test_a_parent_checks_the_commitment_again(role: int, fields: dict[str, object], code: str) -> None:
    covers = {k: digest(2000 + k) for k in range(7)}
    network = Network(Tree(2), 7, tamper=in_commitment(role, fields), covers=covers).start()
    network.wait(4)
    assert (network.cause.code, network.cause.role) == (code, role)
    assert not any(isinstance(effect, ev.PublishRoot) for _, effect in network.done)


def test_a_commitment_of_somebody_elses_child() -> None:
    network = Network(Tree(2), 7, io=waiting(ev.WriteShards, roles={4})).start()
    record = network._answer(2, ev.WriteManifest(())).record
    network.send(2, 0, Commitment(ATTEMPT, PREFIX, record, True))
    assert (network.cause.code, network.cause.role) == ("unknown-child", 2)


def test_a_child_that_commits_twice() -> None:
    network = Network(Tree(2), 7, io=waiting(ev.WriteShards, roles={4}))
    network.start()
    record = network._answer(1, ev.WriteManifest(())).record
    network.send(1, 0, Commitment(ATTEMPT, PREFIX, record, True))
    network.wait(4)
    assert network.ends[0].cause is not None
    assert (network.ends[0].cause.code, network.ends[0].cause.role) == ("duplicate-child", 1)


def test_a_message_without_a_place_aborts_and_names_its_sender() -> None:
    network = Network(Tree(2), 7, io=waiting(ev.WriteShards, roles={4}))
    network.start()
    network.send(1, 0, Release(ATTEMPT, ROOT, ENTRY))
    assert (network.cause.code, network.cause.role) == ("unexpected-message", 1)


# ---------------------------------------------------------------- failures


@shapes
@pytest.mark.parametrize("role", [0, 1, 3])
def test_a_failed_capture_is_everybodys_failure(hierarchy: Star | Tree, owners: int, role: int) -> None:
    network = Network(hierarchy, owners, prefixes={role: BAD}).start()
    assert (network.cause.code, network.cause.role, network.cause.message) == ("user-code", role, BAD.message)
    assert network.ends[0].clean


@pytest.mark.parametrize("effect", [ev.WriteShards, ev.WriteManifest, ev.PublishRoot])
def test_a_failed_disk_is_everybodys_failure(effect: type) -> None:
    role = 0 if effect is ev.PublishRoot else 3
    cause = dataclasses.replace(FULL, role=role)
    network = Network(
        Tree(2), 7, io=lambda k, e: ev.Failed(cause) if k == role and isinstance(e, effect) else Network.DONE
    ).start()
    assert network.cause == cause
    assert network.ends[0].clean
    assert error_of(network.cause).retryable


def test_the_first_cause_that_reaches_the_root_is_everybodys() -> None:
    def io(k: int, effect: ev.Effect) -> object:
        if k in (2, 3, 5, 6) and isinstance(effect, ev.WriteShards):
            return ev.Failed(dataclasses.replace(FULL, role=k))
        return Network.DONE

    network = Network(Tree(2), 7, io=io).start()
    assert network.cause.role in (2, 3, 5, 6)


def test_a_root_in_doubt_is_in_doubt_everywhere() -> None:
    cause = Cause(kind="in-doubt", code="in-doubt", message="directory sync", role=0, visible=True)
    for hierarchy in (Star(), Tree(2)):
        network = Network(
            hierarchy,
            5,
            io=lambda k, e: ev.RootInDoubt(cause) if isinstance(e, ev.PublishRoot) else Network.DONE,
        ).start()
        assert network.outcomes == {"in-doubt"}
        assert {end.cause for end in network.ends.values()} == {cause}


def test_a_writer_that_does_not_stop_leaves_the_files() -> None:
    network = Network(Tree(2), 7, io=waiting(ev.WriteShards, ev.StopWriting, roles={5}))
    network.start()
    network.tell(0, ev.Disturbed(BAD))
    network.settle().wait(8)
    assert network.cause.code == "user-code"
    assert not network.ends[0].clean


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)], ids=str)
def test_the_roots_verdict_is_everybodys(hierarchy: Star | Tree) -> None:
    unchanged = Cause(kind="refused", code="unchanged-state", message="no region changed", retryable=True)
    said = []

    def verdict(changed: bool) -> Cause | None:
        said.append(changed)
        return None if changed else unchanged

    assert Network(hierarchy, 5, verdict=verdict).start().cause == unchanged
    changer = 0 if isinstance(hierarchy, Star) else 4  # owner 0 of a star sees everybody's words
    assert Network(hierarchy, 5, verdict=verdict, changed=[changer]).start().outcomes == {"published"}
    assert said == [False, True]


# ---------------------------------------------------------------- silence


@shapes
@pytest.mark.parametrize("role", [0, 1, 3])
def test_a_missing_role_is_named_by_everybody(hierarchy: Star | Tree, owners: int, role: int) -> None:
    network = Network(hierarchy, owners, dead=[role]).start().wait(7)
    assert (network.cause.code, network.cause.role) == ("missing-subtree", role)
    assert not network.ends.get(0, ev.End("not-published")).clean
    assert network.now <= 2.1 * DEADLINE


def test_the_lowest_parent_speaks_first_in_a_deep_tree() -> None:
    network = Network(Tree(1), 20, dead=[19]).start().wait(9)
    assert (network.cause.code, network.cause.role) == ("missing-subtree", 19)
    assert network.now <= 1.2 * DEADLINE


@shapes
@pytest.mark.parametrize("role", [0, 1, 3])
def test_a_writer_slow_for_three_deadlines_is_not_dead(
    hierarchy: Star | Tree, owners: int, role: int
) -> None:
    slow = {0, role} if isinstance(hierarchy, Star) else {role}
    network = Network(hierarchy, owners, io=waiting(ev.WriteShards, ev.SendPayload, roles=slow)).start()
    for _ in range(5):
        for k in slow:  # what owner 0 of a star gathers grows as what is sent does
            network.written[k] += 1
        network.wait(0.7)
    assert not network.ends
    if isinstance(hierarchy, Star) and role:
        network.finish(role, ev.SendPayload)
    network.finish(min(slow), ev.WriteShards)
    assert network.outcomes == {"published"}


@shapes
def test_a_writer_that_writes_nothing_names_itself(hierarchy: Star | Tree, owners: int) -> None:
    role = 0 if isinstance(hierarchy, Star) else 3
    network = Network(hierarchy, owners, io=waiting(ev.WriteShards, roles={role})).start().wait(4)
    assert (network.cause.code, network.cause.role) == ("stalled", role)


@pytest.mark.parametrize(("hierarchy", "role"), [(Star(), 2), (Tree(2), 1), (Tree(2), 2)], ids=str)
@pytest.mark.parametrize("visible", [True, False])
def test_a_committed_role_looks_before_it_speaks(hierarchy: Star | Tree, role: int, visible: bool) -> None:
    def io(k: int, effect: ev.Effect) -> object:
        if isinstance(effect, ev.LookAtNextEntry):
            assert effect.entry == ENTRY
            return ev.NextEntry(None, visible)
        return None if isinstance(effect, ev.PublishRoot) else Network.DONE

    network = Network(hierarchy, 7, io=io).start()
    assert network.machines[role].committed and network.machines[0].committed
    del network.machines[0]  # the root dies while it publishes
    network.wait(6)
    assert network.outcomes == {"in-doubt"}
    causes = {end.cause for end in network.ends.values()}
    assert {(c.role, c.visible) for c in causes if c is not None} == {(0, visible)}


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)], ids=str)
def test_a_newer_claim_in_the_next_entry_is_certain(hierarchy: Star | Tree) -> None:
    newer = Cause(kind="superseded", code="superseded", message="job 12 on node7 continues")

    def io(k: int, effect: ev.Effect) -> object:
        if isinstance(effect, ev.LookAtNextEntry):
            return ev.NextEntry(newer, False)
        return None if isinstance(effect, ev.PublishRoot) else Network.DONE

    network = Network(hierarchy, 7, io=io).start()
    del network.machines[0]
    assert network.wait(6).cause == newer


def test_a_look_that_is_never_answered_ends_in_doubt() -> None:
    network = Network(Tree(2), 3, io=waiting(ev.PublishRoot, ev.LookAtNextEntry, roles={0, 1, 2})).start()
    del network.machines[0]
    network.wait(6)
    assert network.outcomes == {"in-doubt"}
    assert {end.cause.visible for end in network.ends.values() if end.cause} == {None}


def test_a_root_that_never_hears_from_its_disk_doubts() -> None:
    network = Network(Tree(2), 3, io=waiting(ev.PublishRoot, roles={0})).start().wait(6)
    assert network.outcomes == {"in-doubt"}
    assert network.ends[0].cause is not None and network.ends[0].cause.role == 0


def test_ones_own_pause_is_nobodys_silence() -> None:
    """Stopped for five deadlines and continued: its own clock says nothing about its peers."""
    network = Network(Tree(2), 3, io=waiting(ev.WriteShards, roles={0}))
    network.start()
    network.written[0] = 1
    for already, asleep in ((0.9, 5), (0.4, 60)):
        network.now += already * DEADLINE / 2
        network.tell(0, ev.Tick(2))
        network.now += already * DEADLINE / 2
        network.tell(0, ev.Tick(2))
        network.now += asleep * DEADLINE
        network.tell(0, ev.Tick(2))
        assert not network.machines[0].aborting
    network.finish(0, ev.WriteShards)
    assert network.outcomes == {"published"}


@pytest.mark.parametrize("before", [0, 4, 6, 9])
def test_half_a_deadline_is_left_after_a_pause(before: int) -> None:
    silence = Silence(10, 0, [1])
    silence.await_group(2, 0)
    for now in range(before + 1):
        silence.tick(0, now)
    woken = before + 600
    silence.tick(0, woken)
    for found in (silence.silent(1, woken), silence.group_silent(2, woken), silence.idle(woken)):
        assert found == 5


# ---------------------------------------------------------------- attempts


def test_older_messages_are_dropped() -> None:
    old = Attempt(2, 6)
    network = Network(Tree(2), 3, io=waiting(ev.WriteShards, roles={0})).start()
    for message in (Abort(old, BAD), Sign(old), Doubt(old, BAD), Begin(old, PREFIX, 1)):
        network.send(1, 0, message)
        network.send(0, 1, message)
    assert not network.ends
    network.finish(0, ev.WriteShards)
    assert network.outcomes == {"published"}


def test_a_newer_attempt_before_this_one_ended_is_an_error() -> None:
    network = Network(Tree(2), 3, io=waiting(ev.WriteShards, roles={0, 1, 2})).start()
    del network.machines[1]
    network.send(1, 0, Sign(Attempt(2, 8)))
    network.wait(6)
    assert {(end.cause.code, end.cause.role) for end in network.ends.values() if end.cause} == {
        ("attempt", 1)
    }


def test_who_is_ahead_learns_it_too() -> None:
    role = TreeRole(place(Tree(2), 3, 0), 3, ATTEMPT, DEADLINE, ENTRY, fan_out=2)
    role.handle(ev.Entered(PREFIX), 0.0)
    effects = role.handle(ev.Received(1, Sign(Attempt(2, 8))), 0.0)
    sent = [e for e in effects if isinstance(e, ev.Send) and e.to == 1]
    assert any(isinstance(e.message, Abort) and e.message.attempt == Attempt(2, 8) for e in sent)


@pytest.mark.parametrize("group", [Group(Attempt(2, 8), ()), Sign(Attempt(2, 8), group=True)], ids=str)
def test_a_replica_group_may_be_one_attempt_ahead(group: Message) -> None:
    """Its sender may have heard of the end already: the message waits for the next machine."""
    network = Network(Tree(2), 3, io=waiting(ev.WriteShards, roles={0, 1, 2})).start()
    network.send(1, 2, group)
    assert not network.ends
    assert network.machines[2].later == [ev.Received(1, group)]


def test_messages_of_the_next_attempt_wait_once_this_one_aborts() -> None:
    network = Network(Tree(2), 3, io=waiting(ev.WriteShards, ev.StopWriting, roles={0, 1, 2})).start()
    network.tell(1, ev.Disturbed(BAD))
    network.settle()
    network.finish(1, ev.StopWriting)  # role 1 has ended, and saves again
    network.send(1, 0, Sign(Attempt(2, 8)))
    assert network.machines[0].later == [ev.Received(1, Sign(Attempt(2, 8)))]


def test_after_the_end_nothing_happens() -> None:
    network = Network(Tree(2), 3).start()
    for message in (Abort(ATTEMPT, BAD), Release(ATTEMPT, ROOT, ENTRY), Sign(ATTEMPT)):
        assert network.machines[1].handle(ev.Received(0, message), 1.0) == []
    assert network.machines[1].handle(ev.Tick(5), 1000.0) == []
    assert network.ends[1] == network.machines[1].outcome


# ---------------------------------------------------------------- leaving


@shapes
@pytest.mark.parametrize("role", [0, 1, 3])
def test_a_program_that_left_is_named_at_the_next_save(
    hierarchy: Star | Tree, owners: int, role: int
) -> None:
    network = Network(hierarchy, owners, dead=[role])
    left = Left(Attempt(2, 6), dataclasses.replace(BAD, role=role))
    neighbours = (
        range(owners) if isinstance(hierarchy, Star) and role == 0 else _neighbours(hierarchy, owners, role)
    )
    for peer in neighbours:
        if peer != role:
            network.queue.append((role, peer, left))
    network.start().wait(1)
    assert (network.cause.code, network.cause.role) == ("left", role)
    assert "ValueError: bad" in network.cause.message
    told = [m for m in network.machines.values() if m.later]
    assert told, "and at every save after that"


def _neighbours(hierarchy: Star | Tree, owners: int, role: int) -> list[int]:
    if isinstance(hierarchy, Star):
        return [0]
    here = place(hierarchy, owners, role)
    return [k for k, _ in here.children] + ([] if here.parent is None else [here.parent])


# ---------------------------------------------------------------- replica groups

MEMBERS = (1, 3, 4, 6, 8)


def group_network(differs: int | None = None, **more: object) -> Network:
    return Network(
        Tree(2),
        9,
        groups=lambda k: [(3, MEMBERS), (5, MEMBERS)] if k in MEMBERS else [],
        copies=lambda k: ((3, digest(3)), (5, digest(99 if k == differs else 5))) if k in MEMBERS else (),
        **more,  # type: ignore[arg-type]
    )


def test_equal_copies_are_published() -> None:
    network = group_network().start()
    assert network.outcomes == {"published"}
    assert sum(c.sent["Group"] for c in network.counts) == len(MEMBERS) - 1
    assert max(c.sent["Group"] for c in network.counts) <= 2


@pytest.mark.parametrize("role", MEMBERS[1:])
def test_a_diverged_copy_names_role_and_region(role: int) -> None:
    cause = group_network(differs=role).start().cause
    assert (cause.code, cause.role, cause.region) == ("diverged-replica", role, "r5")


def test_nobody_commits_before_its_copy_is_compared() -> None:
    network = group_network(io=waiting(ev.WriteShards, roles={1})).start()
    assert not [k for k in MEMBERS if network.counts[k].sent["Commitment"]]
    network.finish(1, ev.WriteShards)
    assert network.outcomes == {"published"}


def test_a_slow_lowest_owner_keeps_its_group_alive() -> None:
    network = group_network(io=waiting(ev.WriteShards, roles={1})).start()
    for _ in range(5):
        network.written[1] += 1
        network.wait(0.7)
    assert not network.ends
    network.finish(1, ev.WriteShards)
    assert network.outcomes == {"published"}


@pytest.mark.parametrize("role", MEMBERS)
def test_a_dead_member_is_named(role: int) -> None:
    network = group_network(dead=[role]).start().wait(7)
    assert (network.cause.code, network.cause.role) == ("missing-subtree", role)


def test_a_member_that_dies_while_the_others_wait_is_named() -> None:
    network = group_network(io=waiting(ev.WriteShards, roles={1})).start()
    network.wait(0.5)
    del network.machines[1]
    network.wait(7)
    causes = {(end.cause.code, end.cause.role) for end in network.ends.values() if end.cause}
    assert causes == {("missing-subtree", 1)}


def test_lost_digests_end_in_bounds() -> None:
    network = group_network(tamper=lambda s, t, m: None if isinstance(m, Group) and t == 4 else m)
    network.start().wait(7)
    assert network.outcomes == {"not-published"}


def test_digests_from_the_wrong_owner_are_refused() -> None:
    network = group_network(io=waiting(ev.WriteShards, roles={1})).start()
    network.send(6, 3, Group(ATTEMPT, ((3, digest(3)),)))
    assert (network.cause.code, network.cause.role) == ("unexpected-message", 6)


def test_many_digests_are_cut_into_messages() -> None:
    many = tuple((i, digest(i)) for i in range(10_000))
    network = Network(
        Tree(2),
        3,
        groups=lambda k: [(i, range(3)) for i in range(10_000)],
        copies=lambda k: many,
        tamper=lambda s, t, m: decode(encode(m)),
    ).start()
    assert network.outcomes == {"published"}
    assert network.counts[0].sent["Group"] == 6


# ---------------------------------------------------------------- star


def test_slices_are_bounded_and_complete() -> None:
    for largest in (0, 1, 100, 1 << 20, (1 << 31) + 5, 1 << 40):
        for owners in (1, 2, 7, 1000):
            for limit in (1 << 10, 64 << 20, LARGEST_SLICE):
                share, rounds = slices(largest, owners, limit)
                assert share * rounds >= largest
                assert share * owners <= max(limit, owners)
                assert (rounds - 1) * share < largest or largest == 0
    assert slices(0, 4, 64 << 20) == (0, 0)


def test_go_tells_the_slices() -> None:
    seen: list[Go] = []

    def tamper(sender: int, to: int, message: Message) -> Message:
        if isinstance(message, Go):
            seen.append(message)
        return message

    Network(Star(), 4, tamper=tamper, slice_limit=1 << 20).start()
    assert {(g.entry, g.inventory_slice, g.inventory_rounds) for g in seen} == {(ENTRY, 100, 1)}
    assert {(g.payload_slice, g.payload_rounds) for g in seen} == {(1 << 18, 4)}


def test_a_slice_is_never_above_what_mpi_bears() -> None:
    with pytest.raises(ValueError, match="a slice holds"):
        StarRoot(4, ATTEMPT, DEADLINE, ENTRY, slice_limit=LARGEST_SLICE + 1)


def test_every_owner_enters_even_if_owner_0_failed() -> None:
    """The gather of prefixes completes, so that no request is left behind."""
    network = Network(Star(), 3, prefixes={0: BAD})
    for k in (0, 1):
        network.enter(k)
    network.settle()
    assert not network.ends
    network.enter(2)
    assert network.settle().cause.role == 0


def test_a_member_has_committed_with_go() -> None:
    member = StarMember(2, ATTEMPT, DEADLINE)
    member.handle(ev.Entered(PREFIX), 0.0)
    assert not member.committed
    effects = member.handle(ev.Received(0, Go(ATTEMPT, ENTRY, 0, 0, 8, 1)), 0.0)
    assert member.committed and member.entry == ENTRY
    assert [type(e) for e in effects] == [ev.SendPayload]
    assert member.handle(ev.Disturbed(BAD), 0.0) == []


def test_a_dead_member_is_named_although_the_gather_stalls() -> None:
    network = Network(Star(), 4, io=waiting(ev.WriteShards, ev.SendPayload, roles={0, 1, 2, 3})).start()
    network.wait(0.3)
    del network.machines[2]
    network.wait(4)
    assert {(e.cause.code, e.cause.role) for e in network.ends.values() if e.cause} == {
        ("missing-subtree", 2)
    }


def test_two_diverged_owners_name_themselves() -> None:
    other = dataclasses.replace(PREFIX, replicas=digest(7))
    theirs = (REPLICAS[0], (3, digest(999)), REPLICAS[2])
    network = Network(Star(), 4, prefixes={1: other, 3: other}, replicas={1: theirs, 3: theirs}).start()
    assert (network.cause.role, network.cause.region) == (1, "r3")


def test_an_enter_that_is_no_members() -> None:
    root = StarRoot(3, ATTEMPT, DEADLINE, ENTRY)
    effects = root.handle(ev.Received(3, Enter(ATTEMPT, PREFIX, None)), 0.0)
    assert any(isinstance(e, ev.Send) and isinstance(e.message, Abort) for e in effects)


# ---------------------------------------------------------------- construction


def test_what_cannot_be_a_role_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="entry"):
        TreeRole(place(Tree(2), 3, 1), 3, ATTEMPT, DEADLINE, ENTRY)
    with pytest.raises(ValueError, match="entry"):
        TreeRole(place(Tree(2), 3, 0), 3, ATTEMPT, DEADLINE)
    with pytest.raises(ValueError, match="does not fit"):
        TreeRole(place(Tree(2), 7, 0), 3, ATTEMPT, DEADLINE, ENTRY)
    with pytest.raises(ValueError, match="no member"):
        StarMember(0, ATTEMPT, DEADLINE)
    with pytest.raises(ValueError, match="not in its own group"):
        TreeRole(place(Tree(2), 3, 1), 3, ATTEMPT, DEADLINE, groups=[(0, (0, 2))])  # type: ignore[arg-type]


def test_causes_are_typed_errors() -> None:
    network = Network(Tree(2), 7, prefixes={5: dataclasses.replace(PREFIX, schema=digest(99))}).start()
    error = error_of(network.cause)
    assert isinstance(error, Refused)
    assert str(error).startswith("role 5: its schema is not the root's")
