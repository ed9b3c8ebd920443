"""Choose: which generation a continuation resumes, and how it takes the next epoch.

A *survey* is what one look at a store says: the newest generation, its lineage, what is abandoned,
damaged or strange. A *continuation* takes the next entry of the current epoch with its claim, or
learns that the older job has published there. Rules: docs/design/0005-who-continues.md.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping

from ..errors import Refused
from ..format.claim import Claim, encode_claim
from ..format.manifest import Manifest
from ..model.accept import Accepted
from ..model.capture import Attempt
from ..protocol.continuation import Observed, ReadEntry, Situation, Standing, WriteRecord, decide
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
    signed : bool
        Whether the claims are signed; checked, if the store has a key.
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
    signed: bool = False

    def candidate(self, store: Store, position: Position) -> Candidate:
        """Read one generation of the lineage or an abandoned one; raises `Refused` if it is damaged."""
        if self.newest is not None and self.newest.position == position:
            return self.newest  # each root is opened once
        found = observe.candidate(store, position, self.roots.get(position))
        check_claim_of(found, self.claims)
        return found


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
    accepted: Accepted = ()
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


#: Most times a store is looked at anew because the newest generation went away meanwhile.
LOOKS = 20
_GONE = ("removed-generation", "missing-root")


def survey(store: Store, visibility: float = 0.0) -> Survey:
    """Look at a store: called by the root owner before a restore, and by commands.

    On a writable store a seal without its record gets it (an earlier job's claim is completed). A
    root or a record that must be there is believed to be missing only after `visibility` seconds;
    whether the next names are free is found by taking them. Raises `OSError` where the disk says
    no; damage is recorded. A job that publishes and retires meanwhile is no damage: then the look
    is taken anew.
    """
    shown = observe.listing(store)
    for _ in range(LOOKS):
        found = _survey(store, shown, visibility)
        if found.damage is None or found.damage.code not in _GONE:
            return found
        before, shown = shown, observe.listing(store)
        if shown == before:
            return found
    return found


def _survey(store: Store, shown: observe.Listing, visibility: float) -> Survey:
    looked = _Looked(store, shown, visibility)
    place = looked.place()
    damage = unclear(looked.damaged)
    roots = {Position(*c.base): c.continues for c in looked.claims.values() if c.base and c.continues}
    newest = None
    if damage is None and place.newest is not None:
        position = Position(*place.newest)
        try:
            newest = await_root(store, position, roots.get(position), visibility, looked.last)
            check_claim_of(newest, looked.claims)
        except Refused as error:
            newest, damage = None, looked.damaged.setdefault(position, error)
    return Survey(
        epoch=place.epoch,
        claims=looked.claims,
        next_entry=place.next_entry,
        newest=newest,
        damage=damage,
        lineage=tuple(Position(*p) for p in place.lineage),
        abandoned=tuple(Position(*p) for p in place.abandoned if p not in looked.damaged),
        damaged=tuple(looked.damaged.items()),
        strangers=(*observe.strangers(store), *shown.strangers),
        roots=roots,
        signed=any(claim.signed for claim in looked.claims.values()),
    )


def check_claim_of(found: Candidate, claims: Mapping[int, Claim]) -> None:
    """Refuse a generation that was not made under its epoch's claim (``stale-epoch``).

    The first of an epoch continues what the claim continues; each later one the one before it, which
    `store.check` compares, since a restore does not read it.
    """
    root, claim = found.manifest.root, claims.get(found.epoch)
    if root is None or claim is None or found.number != 1 or root.continues == claim.continues:
        return
    raise Refused(
        "this generation was not made under the claim of its epoch",
        code="stale-epoch",
        file=observe.entry_file(*found.position),
        expected=f"one that continues {claim.continues or 'nothing'}",
        found=root.continues or "nothing",
    )


def await_root(
    store: Store, position: Position, root: str | None, visibility: float, last: Found | None = None
) -> Candidate:
    """Read a generation that must be there; "missing" is believed only after `visibility` seconds.

    `last`: the root read last, which need not be read again if it is this one.
    """
    known = last if last is not None and last.position == position else None

    def read() -> Candidate:
        try:
            return observe.candidate(store, position, root, known)
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
    next entry is damaged and for a signed store without its key, `OSError` where the disk says no.
    """
    while True:
        damage = unclear(dict(seen.damaged))
        if damage is not None:
            raise damage
        if seen.signed and store.key is None:
            raise Refused(
                "the store is signed: whoever writes to it needs the key (key=, --key)",
                code="unsigned",
                file=store.path,
            )
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
            accepted=facts.accepted,
            signed=store.key is not None,
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


def unclear(damaged: Mapping[Position, Refused]) -> Refused | None:
    """Return why the lineage cannot be told, or None: then no epoch may be taken.

    Any epoch's record counts: without it nobody knows what was abandoned and what must stay.
    """
    return next((error for position, error in damaged.items() if position.number == 0), None)


class _Looked:
    """What a survey has looked at so far; asks `protocol.continuation` what to look at next."""

    def __init__(self, store: Store, shown: observe.Listing, visibility: float) -> None:
        self.store = store
        self.claims: dict[int, Claim] = {}
        self.damaged: dict[Position, Refused] = {}
        self.last: Found | None = None  # of the roots that were read
        self._records: dict[int, Standing] = {}
        self._entries: dict[tuple[int, int], Standing | None] = dict.fromkeys(shown.entries)
        self._removed = frozenset(p for p in shown.removed if observe.is_removed(store, p))
        self._read_records(max(shown.epochs, default=0), visibility)

    def place(self) -> Situation:
        """Look on until it is clear where a continuation stands."""
        while True:
            self._extend(max(self._records, default=0))
            step = decide(Observed(self._records, self._entries, self._removed))
            if isinstance(step, ReadEntry):
                self._read_entry(step.position)
            elif isinstance(step, WriteRecord):
                self._settle(step)
            elif unread := [p for p in step.abandoned if self._entries[p] is None]:
                for position in unread:
                    self._read_entry(position)
            else:
                self._find_unclaimed(step.epoch)
                return step

    def _extend(self, epoch: int) -> None:
        """Ask for the names that follow: a listing may be old, and entries have no holes."""
        number = max((n for e, n in self._entries if e == epoch), default=0) + 1
        while epoch and self.store.published.exists(names.entry(epoch, number)):
            self._entries[epoch, number] = None
            number += 1

    def _read_entry(self, position: tuple[int, int]) -> None:
        found = observe.look(self.store, *position)
        if found is None:
            del self._entries[position]  # listed, but removed meanwhile
            return
        if found.damage is not None:
            self.damaged[found.position] = found.damage
        if found.manifest is not None:
            self.last = found
        self._entries[position] = Standing(found.data, found.claim, found.digest or None)

    def _settle(self, step: WriteRecord) -> None:
        """The last entry of the epoch is a claim without record; it gets one, or is read as if it had."""
        last = max(n for e, n in self._entries if e == step.epoch - 1)
        seal = observe.look(self.store, step.epoch - 1, last)
        if seal is None or seal.claim is None:
            raise Refused(
                "the entry has changed while it was looked at",
                code="corrupt-claim",
                file=observe.entry_file(step.epoch - 1, last),
            )
        winner = entries.settle(self.store, seal, write=self.store.writable)
        self._found_record(step.epoch, winner)

    def _found_record(self, epoch: int, found: Found) -> None:
        self._records[epoch] = Standing(found.data, found.claim)
        if found.claim is not None:
            self.claims[epoch] = found.claim
        elif found.damage is not None:
            self.damaged[Position(epoch, 0)] = found.damage

    def _read_records(self, listed: int, visibility: float) -> None:
        """Read the records of all epochs: those listed, and those that follow them."""

        def read(epoch: int) -> Found:
            found = observe.record(self.store, epoch)
            if found is None:
                raise FileNotFoundError(observe.record_file(epoch))
            return found

        for epoch in itertools.count(1):
            # Records are never removed: one below another is there.
            wait = visibility if epoch < listed else 0.0
            try:
                self._found_record(epoch, await_name(functools.partial(read, epoch), wait))
            except FileNotFoundError:
                if epoch > listed:
                    return
                self.damaged[Position(epoch, 0)] = _missing_record(epoch)

    def _find_unclaimed(self, epoch: int) -> None:
        """Look at entries of epochs that nobody claimed: a valid one says that a record is missing."""
        for position in sorted(p for p in self._entries if p[0] > epoch):
            found = observe.look(self.store, *position)
            if found is not None and found.damage is not None:
                self.damaged[found.position] = found.damage
            elif found is not None:
                self.damaged[Position(position[0], 0)] = _missing_record(position[0])


def _missing_record(epoch: int) -> Refused:
    return Refused(
        "the record of this epoch is missing", code="missing-claim", file=observe.record_file(epoch)
    )
