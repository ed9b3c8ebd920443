"""Choose: which generation a continuation resumes, and how it takes the next epoch.

A *survey* is what one look at a store says: the newest generation, its lineage, what is abandoned,
damaged or strange. A *continuation* takes the next entry of the current epoch with its claim, or
learns that the older job has published there. Rules: docs/design, "Who continues".
"""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Callable, Container, Iterable

from ..errors import Refused
from ..format.claim import Claim, encode_claim
from ..format.manifest import Manifest
from ..model.capture import Attempt
from ..store import entries, leftovers, names, observe
from ..store.entries import Candidate, Found, Position
from ..store.store import Store, await_name


@dataclasses.dataclass(frozen=True)
class Survey:
    """What stands in a store, as far as one look can tell.

    Attributes
    ----------
    epoch : int
        The highest claimed epoch, 0 in a store that nobody used.
    claims : dict of int to Claim
        The claims that count, by epoch.
    next_entry : int
        The entry of `epoch` that the next root or claim will take.
    newest : Candidate or None
        What a continuation resumes by default; None: a fresh start.
    damage : Refused or None
        Why `newest` cannot be told or read; to be raised by whoever wants the newest.
    lineage : tuple of Position
        The newest generation and those before it, newest first, not read yet (but for the newest).
    abandoned : tuple of Position
        Generations of ended epochs after the one continued.
    damaged : tuple of (Position, Refused)
        Entries (number 0: an epoch's record) that were looked at and are unreadable.
    strangers : tuple of str
        Files that we did not make, as names below the store.
    roots : dict of Position to str
        Root digests that claims give to generations of the lineage.
    """

    epoch: int
    claims: dict[int, Claim]
    next_entry: int
    newest: Candidate | None
    damage: Refused | None
    lineage: tuple[Position, ...]
    abandoned: tuple[Position, ...]
    damaged: tuple[tuple[Position, Refused], ...]
    strangers: tuple[str, ...]
    roots: dict[Position, str]

    def candidate(self, store: Store, position: Position) -> Candidate:
        """Read one generation of the lineage or an abandoned one; raises `Refused` if it is damaged."""
        return observe.candidate(store, position, self.roots.get(position))


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a claim says of the continuation that writes it.

    `explicit`: the generation was asked for by name, so a newer one does not replace it.
    """

    owners: int
    job: str = ""
    restart: int = 0
    host: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    fork: tuple[str, str] | None = None
    explicit: bool = False


@dataclasses.dataclass(frozen=True)
class Claimed:
    """The epoch is taken, durably."""

    epoch: int
    claim: Claim


@dataclasses.dataclass(frozen=True)
class Newer:
    """The older job published before the claim: nothing was written; choose and validate again."""

    survey: Survey

    @property
    def candidate(self) -> Candidate:
        """The newest generation now. Raises `Refused` if it is damaged."""
        if self.survey.damage is not None:
            raise self.survey.damage
        assert self.survey.newest is not None
        return self.survey.newest


def survey(store: Store, visibility: float = 0.0) -> Survey:
    """Look at a store: called by the root owner before a restore, and by commands.

    On a writable store a seal without its record gets it (an earlier job's claim is completed). A
    root or a record that must be there is believed to be missing only after `visibility` seconds;
    whether the next names are free is found by taking them. Raises `OSError` where the disk says
    no; damage is recorded.
    """
    shown = observe.listing(store)
    numbers: dict[int, set[int]] = {}
    for position in shown.entries:
        numbers.setdefault(position.epoch, set()).add(position.number)
    claims, damaged = _records(store, max(shown.epochs, default=0), visibility)
    epoch = max((*claims, *(position.epoch for position, _ in damaged)), default=0)
    last = 0
    while epoch > 0:
        last = _last(store, epoch, numbers.setdefault(epoch, set()))
        top = observe.look(store, epoch, last) if last else None
        if top is None or top.claim is None:
            break
        # The last entry is a claim: whoever wrote it, the epoch has ended.
        winner = entries.settle(store, top, write=store.writable)
        assert winner.claim is not None
        epoch = winner.claim.epoch
        claims[epoch] = winner.claim
    damaged += _unclaimed(store, numbers, epoch)
    damage = unclear(damaged, epoch)
    lineage, roots = _lineage(numbers, shown.removed, claims, Position(epoch, last))
    newest = None
    if damage is None and lineage:
        try:
            newest = await_root(store, lineage[0], roots.get(lineage[0]), visibility)
        except Refused as error:
            damage = error
            damaged.append((lineage[0], error))
    ended = {p for p in shown.entries if p.epoch < epoch}
    return Survey(
        epoch=epoch,
        claims=claims,
        next_entry=last + 1,
        newest=newest,
        damage=damage,
        lineage=tuple(lineage),
        abandoned=tuple(_abandoned(store, ended.difference(lineage), damaged)),
        damaged=tuple(damaged),
        strangers=(*observe.strangers(store), *shown.strangers),
        roots=roots,
    )


def await_root(store: Store, position: Position, root: str | None, visibility: float) -> Candidate:
    """Read a generation that must be there; "missing" is believed only after `visibility` seconds."""

    def read() -> Candidate:
        try:
            return observe.candidate(store, position, root)
        except Refused as error:
            if error.code != "missing-root":
                raise
            raise FileNotFoundError(error.message) from error

    try:
        return await_name(read, visibility)
    except FileNotFoundError as error:
        assert isinstance(error.__cause__, Refused)
        raise error.__cause__ from None


def continuation(
    store: Store, seen: Survey, chosen: Candidate | None, facts: Facts, visibility: float = 0.0
) -> Claimed | Newer:
    """Take the next epoch, continuing `chosen` (None: a fresh start).

    Called by the root owner after all owners have validated `chosen`; `seen` is the survey it was
    chosen from. Raises `Superseded` naming the job that took the epoch first, `Refused` where the
    next entry is damaged, `OSError` where the disk says no.
    """
    while True:
        damage = unclear(seen.damaged, seen.epoch)
        if damage is not None:
            raise damage
        claim = Claim(
            store=store.id,
            epoch=seen.epoch + 1,
            continues=None if chosen is None else chosen.root,
            base=None if chosen is None else (chosen.epoch, chosen.number),
            nonce=secrets.token_hex(16),
            owners=facts.owners,
            job=facts.job,
            restart=facts.restart,
            host=facts.host,
            skipped=facts.skipped,
            fork=facts.fork,
        )
        first = entries.claim(store, claim, encode_claim(claim, store.algorithm), seen.next_entry)
        if first is None:
            return Claimed(claim.epoch, claim)
        if first.claim is not None:
            raise entries.superseded(first)
        seen = survey(store, visibility)
        if not facts.explicit:
            return Newer(seen)


def named(
    store: Store,
    seen: Survey,
    refers: Callable[[Manifest], Iterable[Attempt]] = leftovers.named_by_root,
) -> tuple[frozenset[Attempt], int]:
    """Return the attempts that generations name, and up to which epoch that is not known.

    Called by the root owner before `leftovers.leftovers`, after its claim. Reads every root.
    """
    attempts: set[Attempt] = set()
    unknown = max((position.epoch for position, _ in seen.damaged), default=0)
    for position in (*seen.lineage, *seen.abandoned):
        try:
            found = seen.candidate(store, position)
        except Refused as error:
            if error.code not in ("removed-generation", "missing-root", "not-a-generation"):
                unknown = max(unknown, position.epoch)
            continue
        attempts.add(found.attempt)
        attempts.update(refers(found.manifest))
    return frozenset(attempts), unknown


def unclear(damaged: Iterable[tuple[Position, Refused]], epoch: int) -> Refused | None:
    """Return why the current epoch itself cannot be told, or None: then no epoch may be taken."""
    for position, error in damaged:
        if position.number == 0 and position.epoch >= epoch:
            return error
    return None


def _records(
    store: Store, listed: int, visibility: float
) -> tuple[dict[int, Claim], list[tuple[Position, Refused]]]:
    """Read the records of all epochs: those listed, and those that follow them."""
    claims: dict[int, Claim] = {}
    damaged: list[tuple[Position, Refused]] = []

    def read(epoch: int) -> Found:
        found = observe.record(store, epoch)
        if found is None:
            raise FileNotFoundError(observe.record_file(epoch))
        return found

    for epoch in itertools.count(1):
        try:
            # Records are never removed: one below another is there.
            found = await_name(lambda epoch=epoch: read(epoch), visibility if epoch < listed else 0.0)  # type: ignore[misc]
        except FileNotFoundError:
            if epoch > listed:
                return claims, damaged
            damaged.append((Position(epoch, 0), _missing_record(epoch)))
            continue
        if found.claim is not None:
            claims[epoch] = found.claim
        elif found.damage is not None:
            damaged.append((found.position, found.damage))
    raise AssertionError("unreachable")


def _missing_record(epoch: int) -> Refused:
    return Refused(
        "the record of this epoch is missing", code="missing-claim", file=observe.record_file(epoch)
    )


def _last(store: Store, epoch: int, numbers: set[int]) -> int:
    """Return the last entry of an epoch: the listing may be old, so ask for the following names."""
    last = max(numbers, default=0)
    while store.published.exists(names.entry(epoch, last + 1)):
        last += 1
        numbers.add(last)
    return last


def _unclaimed(store: Store, numbers: dict[int, set[int]], epoch: int) -> list[tuple[Position, Refused]]:
    """Look at entries of epochs that nobody claimed: a valid one says that a record is missing."""
    damaged: list[tuple[Position, Refused]] = []
    for later in sorted(e for e in numbers if e > epoch):
        for number in sorted(numbers[later]):
            found = observe.look(store, later, number)
            if found is None:
                continue
            if found.damage is not None:
                damaged.append((found.position, found.damage))
            else:
                damaged.append((Position(later, 0), _missing_record(later)))
                break
    return damaged


def _lineage(
    numbers: dict[int, set[int]], removed: Container[Position], claims: dict[int, Claim], end: Position
) -> tuple[list[Position], dict[Position, str]]:
    """Follow the claims back: every generation that led to the newest one, newest first."""
    lineage: list[Position] = []
    roots: dict[Position, str] = {}
    while end.epoch > 0:
        below = {n for n in numbers.get(end.epoch, ()) if n <= end.number}
        if end in roots and not lineage:
            below.add(end.number)  # the newest: it must be there, whatever an old listing says
        positions = [Position(end.epoch, n) for n in sorted(below, reverse=True)]
        lineage += [p for p in positions if p not in removed or (p in roots and not lineage)]
        claim = claims.get(end.epoch)
        if claim is None or claim.base is None or claim.continues is None:
            break
        end = Position(*claim.base)
        roots[end] = claim.continues
    return lineage, roots


def _abandoned(
    store: Store, others: Iterable[Position], damaged: list[tuple[Position, Refused]]
) -> list[Position]:
    """Find the generations among the entries of ended epochs outside the lineage; add the damaged."""
    generations: list[Position] = []
    for position in sorted(others, reverse=True):
        found = observe.look(store, *position)
        if found is None or found.claim is not None or observe.is_removed(store, position, found):
            continue
        if found.damage is not None:
            damaged.append((position, found.damage))
        else:
            generations.append(position)
    return generations
