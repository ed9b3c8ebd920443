"""Observations: what stands in the names of a store, looked at one by one.

An *entry* is a name in published/ taken by a root or by a claim. The *record* of an epoch is its
claim in epochs/. A *mark* says that an entry is no generation any more. Nothing is changed here, and
nothing decided: damage is recorded, and what follows from it is the reader's question.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import Refused
from ..format.claim import Claim, Mark, decode_claim, decode_entry, decode_mark, root_digest
from ..format.envelope import MANIFEST_LIMIT, SMALL_LIMIT
from ..format.manifest import Manifest
from ..model.capture import Attempt
from . import names
from .signing import Place, check_signed, unsigned
from .store import Store


class Position(NamedTuple):
    """Where an entry stands: entry `number` of `epoch`."""

    epoch: int
    number: int


@dataclasses.dataclass(frozen=True)
class Found:
    """What stands in one name: a root or a claim, or `damage` that says why it is neither.

    `file` is the name below the store, `data` the whole file, `digest` the root digest of a root;
    `signed`: it has a signature, which was checked if the store has a key.
    """

    position: Position
    file: str
    data: bytes = b""
    digest: str = ""
    manifest: Manifest | None = None
    claim: Claim | None = None
    damage: Refused | None = None
    signed: bool = False


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A generation that may be restored: its root, decoded and checked by itself."""

    epoch: int
    number: int
    root: str
    manifest: Manifest

    @property
    def position(self) -> Position:
        """Where its root stands."""
        return Position(self.epoch, self.number)

    @property
    def attempt(self) -> Attempt:
        """The attempt that published it."""
        return self.manifest.prefix.attempt

    @property
    def name(self) -> str:
        """What people call it: e000002-000001."""
        return names.entry(self.epoch, self.number).removesuffix(".json")


@dataclasses.dataclass(frozen=True)
class Listing:
    """The names in epochs/ and published/ that a directory listing showed; it may be old."""

    epochs: frozenset[int]
    entries: frozenset[Position]
    removed: frozenset[Position]
    pinned: frozenset[Position]
    strangers: tuple[str, ...]

    def last(self, epoch: int) -> int:
        """Return the highest entry number listed for an epoch, 0 if there is none."""
        return max((p.number for p in self.entries if p.epoch == epoch), default=0)


def entry_file(epoch: int, number: int) -> str:
    """Return the name below the store of an entry."""
    return os.path.join(names.PUBLISHED, names.entry(epoch, number))


def record_file(epoch: int) -> str:
    """Return the name below the store of an epoch's record."""
    return os.path.join(names.EPOCHS, names.claim(epoch))


def listing(store: Store) -> Listing:
    """List the store. Nothing may be decided from a name that is missing here."""
    epochs: set[int] = set()
    found: dict[str, set[Position]] = {"entry": set(), "removed": set(), "pinned": set()}
    strangers: list[str] = []
    for name in store.epochs.names():
        epoch = names.parse_claim(name)
        if epoch is not None:
            epochs.add(epoch)
        elif names.parse_temporary(name) is None:
            strangers.append(os.path.join(names.EPOCHS, name))
    for name in store.published.names():
        parsed = names.parse_published(name)
        if parsed is not None:
            found[parsed[2]].add(Position(parsed[0], parsed[1]))
        elif names.parse_temporary(name) is None:
            strangers.append(os.path.join(names.PUBLISHED, name))
    return Listing(
        frozenset(epochs),
        frozenset(found["entry"]),
        frozenset(found["removed"]),
        frozenset(found["pinned"]),
        tuple(strangers),
    )


def strangers(store: Store) -> Iterator[str]:
    """Name what we did not make: in the store's root (views of ours left out) and in data/."""
    known = {names.STORE_FILE, names.EPOCHS, names.PUBLISHED, names.DATA, names.DIAG}
    for name in store.root.names():
        ours = name in known or names.parse_temporary(name) is not None or names.parse_view(name) is not None
        if not ours:
            yield name
    for name in store.data.names():
        if names.parse_attempt(name) is None:
            yield os.path.join(names.DATA, name)


def look(store: Store, epoch: int, number: int) -> Found | None:
    """Return what stands at an entry, None if the name is free.

    Damage (of any kind that the content proves) is recorded, not raised; an `OSError` passes.
    """
    file = entry_file(epoch, number)
    position = Position(epoch, number)
    try:
        data = store.published.read(names.entry(epoch, number), MANIFEST_LIMIT)
    except FileNotFoundError:
        return None
    except Refused as error:
        return Found(position, file, damage=_named(error, file))
    places = [Place("root", store.id, epoch, number), Place("claim", store.id, epoch + 1, 0)]
    try:
        plain, signed = unsigned(store, data, places, file=file, code="corrupt-root")
        value = decode_entry(plain, file)
        if isinstance(value, Manifest):
            _check_root(store, value, epoch, number, file)
            assert value.root is not None
            check_signed(value.root.signed, signed, file=file, code="corrupt-root")
            return Found(position, file, data, root_digest(plain, file), manifest=value, signed=signed)
        _check_claim(store, value, epoch + 1, file)
        check_signed(value.signed, signed, file=file, code="corrupt-claim")
        return Found(position, file, data, claim=value, signed=signed)
    except Refused as error:
        return Found(position, file, data, damage=error)


def record(store: Store, epoch: int) -> Found | None:
    """Return the record of an epoch (its `position` has number 0), None if the name is free."""
    file = record_file(epoch)
    position = Position(epoch, 0)
    try:
        data = store.epochs.read(names.claim(epoch), SMALL_LIMIT)
    except FileNotFoundError:
        return None
    except Refused as error:
        return Found(position, file, damage=_named(error, file))
    place = Place("claim", store.id, epoch, 0)
    try:
        plain, signed = unsigned(store, data, [place], file=file, code="corrupt-claim")
        claim = decode_claim(plain, file=file)
        _check_claim(store, claim, epoch, file)
        check_signed(claim.signed, signed, file=file, code="corrupt-claim")
    except Refused as error:
        return Found(position, file, data, damage=error)
    return Found(position, file, data, claim=claim, signed=signed)


def candidate(
    store: Store, position: Position, root: str | None = None, found: Found | None = None
) -> Candidate:
    """Return the generation at a position, checked by itself and against `root`, its digest if known.

    `found`: what stands there, if it was read already; an entry never changes.

    Raises `Refused`: ``missing-root``, ``removed-generation``, ``corrupt-root`` and what decoding raises.
    """
    epoch, number = position
    file = entry_file(epoch, number)
    if found is None:
        found = look(store, epoch, number)
    if is_removed(store, position):
        raise Refused("the generation was removed", code="removed-generation", file=file)
    if found is None:
        raise Refused("the root of this generation is missing", code="missing-root", file=file)
    if found.damage is not None:
        raise found.damage
    if found.manifest is None:
        raise Refused(
            "this entry holds a claim, not a generation",
            code="not-a-generation",
            file=file,
            expected="root",
            found="claim",
        )
    if root is not None and found.digest != root:
        raise Refused(
            "not the generation that was continued",
            code="corrupt-root",
            file=file,
            expected=root,
            found=found.digest,
        )
    return Candidate(epoch, number, found.digest, found.manifest)


def is_removed(store: Store, position: Position) -> bool:
    """Return whether a mark says that this entry is no generation any more."""
    return read_mark(store, position) is not None


def read_mark(store: Store, position: Position) -> Mark | None:
    """Return the `removed` mark of an entry; None if there is none, or a stranger has its name."""
    name = names.removed(*position)
    try:
        data = store.published.read(name, SMALL_LIMIT)
        mark = decode_mark(data, file=os.path.join(names.PUBLISHED, name))
    except (FileNotFoundError, Refused):
        return None
    if mark.kind != "removed" or mark.store != store.id or mark.entry != tuple(position):
        return None
    return mark


def _check_root(store: Store, manifest: Manifest, epoch: int, number: int, file: str) -> None:
    root = manifest.root
    assert root is not None
    expected = f"store {store.id}, epoch {epoch}, entry {number}"
    found = f"store {root.store}, epoch {manifest.prefix.attempt.epoch}, entry {root.entry}"
    if found != expected:
        raise Refused(
            "this root belongs elsewhere", code="misplaced-root", file=file, expected=expected, found=found
        )
    if manifest.prefix.moment.epoch != epoch:
        raise Refused(
            "this root is of another epoch than the one it was published in",
            code="stale-epoch",
            file=file,
            expected=f"a moment of epoch {epoch}",
            found=f"epoch {manifest.prefix.moment.epoch}",
        )


def _check_claim(store: Store, value: Claim, epoch: int, file: str) -> None:
    expected = f"store {store.id}, epoch {epoch}"
    found = f"store {value.store}, epoch {value.epoch}"
    if found != expected:
        raise Refused(
            "this claim belongs elsewhere", code="misplaced-claim", file=file, expected=expected, found=found
        )


def _named(error: Refused, file: str) -> Refused:
    """Return the same refusal with the file's name below the store, as all others have it."""
    return Refused(error.message, code=error.code, file=file, expected=error.expected, found=error.found)
