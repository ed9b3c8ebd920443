"""Continuation: who takes the next entry, decided from what was seen, without any I/O.

An *entry* is a numbered name of an epoch, taken by a root or by a claim. The *record* of an epoch is
its claim in epochs/. A claim that stands as an entry *counts*, and is the epoch's seal, only if the
next epoch's record has the same bytes; while there is no record it is *unrecorded* and whoever sees
it writes the record; beside another record it is *void* and says nothing.

Names are taken by no-replace. A listing may be old: it never decides, since a name that it does not
show may be taken, and taking it tells.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from ..format.claim import Claim

#: (epoch, number) of an entry.
Position = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Standing:
    """What stands in a name: `data`, the whole file, and the claim or the root digest in it."""

    data: bytes
    claim: Claim | None = None
    root: str | None = None


@dataclasses.dataclass(frozen=True)
class Observed:
    """What was seen of a store: records by epoch; entries by position, None where not read.

    `removed` are the entries with a mark that says they are no generation any more.
    """

    records: Mapping[int, Standing]
    entries: Mapping[Position, Standing | None]
    removed: frozenset[Position] = frozenset()


@dataclasses.dataclass(frozen=True)
class ReadEntry:
    """To be read before anything is decided; then ask again."""

    position: Position


@dataclasses.dataclass(frozen=True)
class WriteRecord:
    """An unrecorded claim: give the record of `epoch` these bytes, no-replace, then look again."""

    epoch: int
    claim: Standing


@dataclasses.dataclass(frozen=True)
class Situation:
    """Where a continuation stands.

    Attributes
    ----------
    epoch : int
        The highest claimed epoch, 0 in an unused store.
    next_entry : int
        The entry of `epoch` that the next root or claim takes, as far as seen.
    newest : Position or None
        What is resumed by default; None: a fresh start.
    root : str or None
        The root digest that `newest` must have, where a claim or its own reading tells.
    lineage : tuple of Position
        The newest generation and those that led to it, newest first.
    abandoned : tuple of Position
        Roots of ended epochs outside the lineage: resumed only when asked for by name.
    """

    epoch: int
    next_entry: int
    newest: Position | None
    root: str | None
    lineage: tuple[Position, ...]
    abandoned: tuple[Position, ...]


class Met(enum.Enum):
    """What it means that a name was taken."""

    OWN = "own"  # the same bytes: an earlier rename of ours arrived
    OLDER_JOB_FIRST = "older job first"  # a root: choose and validate again; nothing was written
    HELD = "held"  # a claim: another job has taken over
    FOREIGN = "foreign"  # neither ours nor a claim: nothing of ours is there


def claim_state(seal: Standing, record: Standing | None) -> str:
    """Return "counts", "unrecorded" or "void" for a claim that stands as an entry."""
    if record is None:
        return "unrecorded"
    return "counts" if record.data == seal.data else "void"


def decide(seen: Observed) -> ReadEntry | WriteRecord | Situation:
    """Return what must be done first, or where a continuation stands.

    Called again with what was learned until it returns a `Situation`.
    """
    epoch = max(seen.records, default=0)
    numbers = sorted((number for e, number in seen.entries if e == epoch), reverse=True)
    last = numbers[0] if numbers else 0
    if last:
        top = seen.entries[epoch, last]
        if top is None:
            return ReadEntry((epoch, last))
        if top.claim is not None and top.claim.epoch == epoch + 1:
            return WriteRecord(epoch + 1, top)
    lineage, root = _lineage(seen, epoch)
    newest = lineage[0] if lineage else None
    if newest is not None and root is None:
        standing = seen.entries.get(newest)
        root = None if standing is None else standing.root
    ended = {p for p, s in seen.entries.items() if p[0] < epoch and (s is None or s.claim is None)}
    return Situation(
        epoch=epoch,
        next_entry=last + 1,
        newest=newest,
        root=root,
        lineage=lineage,
        abandoned=tuple(sorted(ended - set(lineage) - seen.removed, reverse=True)),
    )


def _lineage(seen: Observed, epoch: int) -> tuple[tuple[Position, ...], str | None]:
    """Follow the claims back. The second value: what a claim says of the newest's root digest."""
    lineage: list[Position] = []
    newest_root: str | None = None
    end, root = (epoch, max((n for e, n in seen.entries if e == epoch), default=0)), None
    while end[0] > 0:
        here = {p for p in seen.entries if p[0] == end[0] and p[1] <= end[1]}
        here = {p for p in here if not _is_claim(seen.entries[p])}
        if root is not None and not lineage:
            here.add(end)  # continued by a claim: it must be there, whatever an old listing shows
            newest_root = root
        continued = root is not None and not lineage
        lineage += sorted(
            (p for p in here if p not in seen.removed or (continued and p == end)), reverse=True
        )
        record = seen.records.get(end[0])
        if record is None or record.claim is None or record.claim.base is None:
            break
        base = record.claim.base
        end, root = (base[0], base[1]), record.claim.continues
    return tuple(lineage), newest_root


def _is_claim(standing: Standing | None) -> bool:
    return standing is not None and standing.claim is not None


def publisher_meets(own: bytes, found: Standing) -> Met:
    """Return what it means that a publisher's next name is taken.

    `HELD`: superseded, and certainly nothing was published, also where the claim is void, since a
    void claim stands beside the record of another. Who meets an unrecorded claim writes its record.
    `FOREIGN`: certainly not published; no entry of this epoch can be taken any more.
    """
    if found.data == own:
        return Met.OWN
    return Met.FOREIGN if found.claim is None else Met.HELD


def claimant_meets(own: bytes, found: Standing) -> Met:
    """Return what it means that the entry a claim was to take is taken.

    `HELD`: refuse, naming the job of the claim that counts (`holder`).
    """
    if found.data == own:
        return Met.OWN
    if found.claim is not None:
        return Met.HELD
    return Met.OLDER_JOB_FIRST if found.root is not None else Met.FOREIGN


def recorder_meets(own: bytes, record: Standing) -> Met:
    """Return what it means that the epoch's record is there already: `HELD` makes the own claim void."""
    return Met.OWN if record.data == own else Met.HELD


def holder(seal: Standing, record: Standing | None) -> Claim | None:
    """Return the claim that counts where `seal` was met: its own, or that of another record."""
    if record is None or record.data == seal.data:
        return seal.claim
    return record.claim
