"""Check: judge every small file of a store by itself, whatever generation it belongs to.

Roots, claims, seals, marks and pins are all covered by a digest, and each says where it stands. What
they name, packs and group manifests, is judged one generation at a time (`restore.verify`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ..errors import CheckpointError, Refused, cause_of, error_of
from ..format.claim import Claim, Mark, decode_mark
from ..format.envelope import SMALL_LIMIT
from . import names, observe
from .observe import Found, Listing, Position
from .store import Store

T = TypeVar("T")


def faults(store: Store) -> list[CheckpointError]:
    """Return what is wrong with the files of epochs/ and published/, each named by its file.

    Called by commands. A missing record or seal is a fault too; a name that retention took
    meanwhile is none. Nothing is changed, and nothing raised.
    """
    found: list[CheckpointError] = []
    try:
        shown = observe.listing(store)
        records = _records(store, shown, found)
        claims = {e: r.claim for e, r in records.items() if r.claim is not None}
        seals = _entries(store, shown, claims, found)
        for epoch in claims:
            if epoch > 1 and records[epoch].data not in seals.get(epoch - 1, ()):
                _seal_is_missing(store, shown, epoch, found)
        for kind, positions in (("removed", shown.removed), ("pinned", shown.pinned)):
            for position in sorted(positions):
                _try(functools.partial(_mark, store, position, kind), _mark_file(position, kind), found)
    except OSError as error:
        found.append(error_of(cause_of(error)))
    return found


def _records(store: Store, shown: Listing, found: list[CheckpointError]) -> dict[int, Found]:
    """Look at every epoch's record; return those that are there."""
    seen: dict[int, Found] = {}
    last = max((*shown.epochs, *(p.epoch for p in shown.entries)), default=0)
    for epoch in range(1, last + 1):
        file = observe.record_file(epoch)
        record = _try(functools.partial(observe.record, store, epoch), file, found)
        if record is not None:
            seen[epoch] = record
            if record.damage is not None:
                found.append(record.damage)
        elif not any(error.file == file for error in found):
            found.append(Refused("the record of this epoch is missing", code="missing-claim", file=file))
    return seen


def _entries(
    store: Store, shown: Listing, claims: dict[int, Claim], found: list[CheckpointError]
) -> dict[int, set[bytes]]:
    """Look at every entry; return the bytes of those that may be seals, by epoch."""
    seals: dict[int, set[bytes]] = {}
    roots: dict[Position, _Root] = {}
    for position in sorted(shown.entries):
        file = observe.entry_file(*position)
        entry = _try(functools.partial(observe.look, store, *position), file, found)
        if entry is not None and entry.damage is not None:
            found.append(entry.damage)
        elif entry is not None and entry.claim is not None:
            seals.setdefault(position.epoch, set()).add(entry.data)
        elif entry is not None and entry.manifest is not None and entry.manifest.root is not None:
            moment, root = entry.manifest.prefix.moment, entry.manifest.root
            roots[position] = _Root(entry.digest, moment.update, moment.cursor, root.continues)
    for position, mine in roots.items():
        claim = claims.get(position.epoch)
        before: Position | None = Position(position.epoch, position.number - 1)
        if position.number == 1:
            before = None if claim is None or claim.base is None else Position(*claim.base)
        if before is None or before not in roots:
            continue
        error = _line(mine, roots[before], position, before)
        if error is not None:
            found.append(error)
    return seals


class _Root(NamedTuple):
    """What a root says of its place in the lineage."""

    digest: str
    update: int
    cursor: int
    continues: str | None


def _line(root: _Root, old: _Root, position: Position, before: Position) -> Refused | None:
    """Return what is wrong with a root that follows another one, or None."""
    file, name = observe.entry_file(*position), names.entry(*before).removesuffix(".json")
    if root.continues != old.digest:
        message = f"it does not continue {name}, the generation before it"
        return Refused(
            message, code="stale-epoch", file=file, expected=old.digest, found=root.continues or "nothing"
        )
    if root.update <= old.update:
        message = f"the update did not grow since {name}"
        return Refused(
            message, code="stale-update", file=file, expected=f"above {old.update}", found=root.update
        )
    if root.cursor < old.cursor:
        message = f"the cursor fell since {name}"
        return Refused(
            message, code="reset-cursor", file=file, expected=f"at least {old.cursor}", found=root.cursor
        )
    return None


def _seal_is_missing(store: Store, shown: Listing, epoch: int, found: list[CheckpointError]) -> None:
    """The record of `epoch` stands and its seal was not listed: say so, unless it came since."""
    number = shown.last(epoch - 1)
    if any(error.file == observe.entry_file(epoch - 1, number) for error in found):
        return  # it is there, and damaged
    while True:
        number += 1
        file = observe.entry_file(epoch - 1, number)
        later = _try(functools.partial(observe.look, store, epoch - 1, number), file, found)
        if later is None:
            break
        if later.claim is not None:
            return
    if not any(error.file == file for error in found):
        found.append(Refused("the seal of this ended epoch is missing", code="missing-claim", file=file))


def _mark(store: Store, position: Position, kind: str) -> Mark:
    """Return a mark or pin. Raises `Refused` where the file in its name is none."""
    file = _mark_file(position, kind)
    mark = decode_mark(store.published.read(os.path.basename(file), SMALL_LIMIT), file=file)
    expected = f"{kind}, store {store.id}, entry {names.entry(*position)}"
    told = f"{mark.kind}, store {mark.store}, entry {names.entry(*mark.entry)}"
    if told != expected:
        raise Refused(
            "this mark belongs elsewhere", code="corrupt-mark", file=file, expected=expected, found=told
        )
    return mark


def _mark_file(position: Position, kind: str) -> str:
    name = names.removed(*position) if kind == "removed" else names.pinned(*position)
    return os.path.join(names.PUBLISHED, name)


def _try(look: Callable[[], T], file: str, found: list[CheckpointError]) -> T | None:
    """Look at one file; what is wrong with it is noted under its name below the store."""
    try:
        return look()
    except FileNotFoundError:
        return None
    except (OSError, CheckpointError) as error:
        found.append(error_of(dataclasses.replace(cause_of(error), file=file)))
        return None
