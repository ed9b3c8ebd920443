"""Who takes the next entry: the rules one by one, then jobs against each other under schedules."""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.jobs import STORE, Job, Schedule, Violation, World, every_schedule

from alpha_mpi.format.claim import Claim
from alpha_mpi.protocol import continuation as c


def claim(epoch: int, base: tuple[int, int] | None = None, job: str = "B") -> c.Standing:
    continues = None if base is None else f"root {base}"
    value = Claim(store=STORE, epoch=epoch, continues=continues, base=base, nonce=job * 32, owners=4, job=job)
    return c.Standing(repr(value).encode(), claim=value)


def root(epoch: int, number: int) -> c.Standing:
    return c.Standing(b"%d %d" % (epoch, number), root=f"root {(epoch, number)}")


def test_an_unused_store_is_a_fresh_start() -> None:
    assert c.decide(c.Observed({}, {})) == c.Situation(0, 1, None, None, (), ())


def test_an_epoch_that_published_nothing_is_resumed_as_it_was() -> None:
    fresh = c.decide(c.Observed({1: claim(1)}, {}))
    assert fresh == c.Situation(1, 1, None, None, (), ())
    records = {1: claim(1), 2: claim(2, (1, 2))}
    entries = {(1, 1): root(1, 1), (1, 2): root(1, 2), (1, 3): claim(2, (1, 2))}
    assert c.decide(c.Observed(records, entries)) == c.Situation(
        2, 1, (1, 2), "root (1, 2)", ((1, 2), (1, 1)), ()
    )


def test_the_newest_is_the_last_root_of_the_newest_epoch() -> None:
    records = {1: claim(1), 2: claim(2, (1, 1))}
    entries = {(1, 1): root(1, 1), (1, 2): claim(2, (1, 1)), (2, 1): root(2, 1), (2, 10): root(2, 10)}
    seen = c.decide(c.Observed(records, entries))
    assert isinstance(seen, c.Situation)
    assert (seen.newest, seen.root, seen.next_entry) == ((2, 10), "root (2, 10)", 11)
    assert seen.lineage == ((2, 10), (2, 1), (1, 1))


def test_the_last_entry_is_read_before_anything_is_decided() -> None:
    assert c.decide(c.Observed({1: claim(1)}, {(1, 1): None, (1, 2): None})) == c.ReadEntry((1, 2))


def test_a_seal_without_its_record_gets_it_first() -> None:
    seal = claim(2, (1, 1))
    seen = c.Observed({1: claim(1)}, {(1, 1): root(1, 1), (1, 2): seal})
    assert c.decide(seen) == c.WriteRecord(2, seal)


def test_entries_after_the_one_continued_are_abandoned() -> None:
    records = {1: claim(1), 2: claim(2, (1, 3)), 3: claim(3, (1, 1))}
    entries = {(1, n): root(1, n) for n in (1, 2, 3)} | {(1, 4): claim(2, (1, 3)), (2, 1): root(2, 1)}
    entries |= {(2, 2): claim(3, (1, 1)), (3, 1): root(3, 1)}
    seen = c.decide(c.Observed(records, entries, removed=frozenset({(1, 2)})))
    assert isinstance(seen, c.Situation)
    assert seen.lineage == ((3, 1), (1, 1))
    assert seen.abandoned == ((2, 1), (1, 3))


def test_the_base_of_the_last_claim_is_the_newest_whatever_a_listing_shows() -> None:
    seen = c.decide(c.Observed({1: claim(1), 2: claim(2, (1, 3))}, {}))
    assert isinstance(seen, c.Situation)
    assert (seen.newest, seen.root) == ((1, 3), "root (1, 3)")


def test_removed_generations_are_not_of_the_lineage() -> None:
    entries = {(1, n): root(1, n) for n in (1, 2, 3)}
    seen = c.decide(c.Observed({1: claim(1)}, entries, removed=frozenset({(1, 1), (1, 2)})))
    assert isinstance(seen, c.Situation)
    assert seen.lineage == ((1, 3),)


def test_a_claim_counts_with_its_record_alone() -> None:
    assert c.claim_state(claim(2), None) == "unrecorded"
    assert c.claim_state(claim(2), claim(2)) == "counts"
    assert c.claim_state(claim(2), claim(2, job="C")) == "void"
    assert c.holder(claim(2), claim(2, job="C")) == claim(2, job="C").claim
    assert c.holder(claim(2), None) == c.holder(claim(2), claim(2)) == claim(2).claim


def test_what_a_taken_name_means() -> None:
    own, other = root(1, 4), root(1, 9)
    assert c.publisher_meets(own.data, own) is c.Met.OWN
    assert c.publisher_meets(own.data, claim(2)) is c.Met.HELD
    assert c.publisher_meets(own.data, other) is c.Met.FOREIGN
    assert c.claimant_meets(claim(2).data, claim(2)) is c.Met.OWN
    assert c.claimant_meets(claim(2).data, claim(2, job="C")) is c.Met.HELD
    assert c.claimant_meets(claim(2).data, other) is c.Met.OLDER_JOB_FIRST
    assert c.claimant_meets(claim(2).data, c.Standing(b"?")) is c.Met.FOREIGN
    assert c.recorder_meets(claim(2).data, claim(2)) is c.Met.OWN
    assert c.recorder_meets(claim(2).data, claim(2, job="C")) is c.Met.HELD


# ---------------------------------------------------------------- jobs against each other


def jobs(*saves: int, rules: Any = c) -> list[Callable[[World], Job]]:
    def make(name: str, count: int) -> Callable[[World], Job]:
        return lambda world: Job(name, world, count, rules=rules)

    return [make("ABCDEF"[i], count) for i, count in enumerate(saves)]


@pytest.mark.parametrize(
    ("saves", "old", "crashes"),
    [((1, 1), 1, 0), ((1, 1), 3, 1), ((2, 1), 1, 1), ((2, 1), 3, 0), ((2, 2), 1, 2)],
)
def test_two_jobs_under_every_schedule(saves: tuple[int, ...], old: int, crashes: int) -> None:
    assert every_schedule(jobs(*saves), old=old, crashes=crashes) > 100


@pytest.mark.slow
def test_three_jobs_under_every_schedule() -> None:
    assert every_schedule(jobs(1, 1, 1), old=1) > 1000


def random_schedule(saves: list[int], old: int, crashes: int, seed: int, rules: Any = c) -> World:
    generator = random.Random(seed)
    return Schedule(
        jobs(*saves, rules=rules), lambda n, key: generator.randrange(n), old=old, crashes=crashes
    ).run()


@settings(max_examples=1500, derandomize=True, deadline=None)
@given(
    saves=st.lists(st.integers(0, 4), min_size=2, max_size=5),
    old=st.integers(1, 6),
    crashes=st.integers(0, 3),
    seed=st.integers(0, 10**9),
)
def test_up_to_five_jobs_zombies_and_old_listings(
    saves: list[int], old: int, crashes: int, seed: int
) -> None:
    world = random_schedule(saves, old, crashes, seed)
    assert list(world.claimed) == sorted(world.claimed)


# ---------------------------------------------------------------- the model sees broken rules


def broken(**rules: Any) -> Any:
    kept = {
        name: getattr(c, name) for name in ("decide", "publisher_meets", "claimant_meets", "recorder_meets")
    }
    return types.SimpleNamespace(**(kept | rules))


def always(met: c.Met) -> Callable[[bytes, c.Standing], c.Met]:
    return lambda own, found: met


def changed(**fields: Callable[[c.Situation], Any]) -> Callable[[c.Observed], Any]:
    def decide(seen: c.Observed) -> Any:
        decided = c.decide(seen)
        if isinstance(decided, c.Situation):
            return dataclasses.replace(decided, **{k: f(decided) for k, f in fields.items()})
        return decided

    return decide


def overlooking(seen: c.Observed) -> Any:
    last = max(seen.records, default=0)
    entries = {p: s for p, s in seen.entries.items() if s is None or s.claim is None or p[0] != last}
    return c.decide(dataclasses.replace(seen, entries=entries))


BROKEN = {
    "a publisher takes a claim for its own root": broken(publisher_meets=always(c.Met.OWN)),
    "a claimant takes the older job's root for its own claim": broken(claimant_meets=always(c.Met.OWN)),
    "a void claim counts": broken(recorder_meets=always(c.Met.OWN)),
    "a claim that does not compete for the next name": broken(
        decide=changed(next_entry=lambda s: s.next_entry + 1)
    ),
    "the base instead of the epoch's own newest": broken(
        decide=changed(newest=lambda s: s.lineage[-1] if s.lineage else None, root=lambda s: None)
    ),
    "an unrecorded seal is overlooked": broken(decide=overlooking),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_seen(rule: str) -> None:
    with pytest.raises((Violation, KeyError), match=r"ONE-EPOCH|ACKNOWLEDGED-STAYS|fresh job"):
        for seed in range(3000):
            random_schedule([2, 2, 1], 3, 1, seed, rules=BROKEN[rule])
