"""Entries: who takes the next name.

The owner of an epoch publishes under the next entry of its epoch; a continuation takes the same name
with its claim, so that one of the two fails. A claim that stands as an entry counts only if the next
epoch's record has the same bytes; if there is no record yet, whoever finds the claim writes it.
Every name is taken by no-replace, and "already exists" is a question: the bytes may be our own.
"""

from __future__ import annotations

import dataclasses

from ..errors import InDoubt, Refused, Superseded
from ..format.claim import Claim, Mark, encode_mark, root_digest
from . import names
from .durable import Directory, commit_bytes
from .observe import (
    Candidate,
    Found,
    Listing,
    Position,
    candidate,
    entry_file,
    is_removed,
    listing,
    look,
    record,
    record_file,
)
from .signing import signed
from .store import Store

__all__ = [
    "Candidate",
    "Found",
    "Listing",
    "Position",
    "candidate",
    "claim",
    "entry_file",
    "is_removed",
    "listing",
    "look",
    "mark_removed",
    "publish",
    "record",
    "record_file",
    "settle",
    "superseded",
    "superseded_by",
]


def publish(store: Store, epoch: int, number: int, data: bytes) -> str:
    """Publish: give the root `data` the name of entry `number` of `epoch`; return its root digest.

    Called by the root owner of the epoch, once everything the root names is durable. When it
    returns, the generation is published, also after a power cut. Raises `Superseded` if a claim has
    the name (certainly not published), `InDoubt` if the root may be visible but is not known to be
    durable, `Refused` ``entry-taken`` if another root has it, and any other `OSError` with its
    `stage` (certainly not published).
    """
    file = entry_file(epoch, number)
    root = root_digest(data, file)
    data = signed(store, data, "root", epoch, number)
    outcome = _take(store.published, names.entry(epoch, number), data)
    if outcome is None:
        return root
    if outcome.doubt:
        raise InDoubt(
            "the root has its name, but the disk does not say that it will keep it"
            if outcome.visible
            else "the disk does not say whether the root has its name",
            file=file,
            stage=outcome.stage,
            errno=outcome.error.errno,
            visible=outcome.visible,
        ) from outcome.error
    found = look(store, epoch, number)
    if found is None:
        raise outcome.error
    if found.damage is not None:
        raise found.damage
    if found.claim is not None:
        raise superseded_by(store, found) from None
    raise Refused(
        "another root has the next name of this epoch",
        code="entry-taken",
        file=file,
        expected=root,
        found=found.digest,
    )


def superseded_by(store: Store, seal: Found) -> Superseded:
    """Return the error of a job that found its next name taken by a claim.

    Completes the claim's record first, as far as the disk lets it: this job is superseded either way.
    """
    try:
        winner = settle(store, seal, write=True)
    except (OSError, Refused):
        winner = seal
    return superseded(winner)


def superseded(winner: Found) -> Superseded:
    """Return the error that names the job whose claim took over."""
    claim = winner.claim
    assert claim is not None
    job = claim.job or "a job without a name"
    host = f" on {claim.host}" if claim.host else ""
    return Superseded(
        f"{job}{host} continued as epoch {claim.epoch}; this job can add nothing any more",
        file=winner.file,
        found=f"epoch {claim.epoch} of {job}",
    )


def settle(store: Store, seal: Found, write: bool) -> Found:
    """Return the claim that counts where `seal`, a claim, stands as an entry: it, or the record.

    With `write` a missing record is written first. Returns `seal` itself if it counts; otherwise
    the record of its epoch, which has other bytes and makes it void. Raises `Refused` if that
    record is damaged.
    """
    assert seal.claim is not None
    epoch = seal.claim.epoch
    found = record(store, epoch)
    if found is None and write:
        # The seal first: a record must never outlive its seal, or the older epoch is open again.
        store.published.sync()
        outcome = _take(store.epochs, names.claim(epoch), seal.data)
        if outcome is None:
            return seal
        if outcome.doubt:
            raise outcome.error
        found = record(store, epoch)
        if found is None:
            raise outcome.error
    if found is None or found.data == seal.data:
        return seal
    if found.damage is not None:
        raise found.damage
    return found


def claim(store: Store, claimed: Claim, data: bytes, number: int) -> Found | None:
    """Take the epoch of `claimed` (`data` are its bytes) by taking entry `number` of the one before.

    Called by the root owner of a continuation after everybody has validated. The first epoch of an
    empty store has its record alone (`number` 0). Returns None if the epoch is taken, durably, with
    seal and record. Otherwise returns what was there first: a root (the older job published), or the
    claim that counts. Raises `Refused` if that is damaged, `OSError` if the disk says no; then the
    next continuation completes or ignores what was begun.
    """
    epoch = claimed.epoch
    data = signed(store, data, "claim", epoch, 0)
    if epoch > 1:
        # Whoever made what was found may have been killed before its sync: a disk that kept this claim,
        # and not the root or the record that it continues, would hold a lineage with a hole.
        store.epochs.sync()
        store.published.sync()
        taken = _taken_by(store, epoch - 1, number, data)
        if taken is not None:
            return taken
    outcome = _take(store.epochs, names.claim(epoch), data)
    if outcome is None:
        return None
    if outcome.doubt:
        raise outcome.error
    found = record(store, epoch)
    if found is None:
        raise outcome.error
    if found.damage is not None:
        raise found.damage
    return found


def _taken_by(store: Store, epoch: int, number: int, data: bytes) -> Found | None:
    """Take an entry with a claim; return what has the name instead, None if the claim has it."""
    outcome = _take(store.published, names.entry(epoch, number), data)
    if outcome is None:
        return None
    if outcome.doubt:
        raise outcome.error
    found = look(store, epoch, number)
    if found is None:
        raise outcome.error
    if found.damage is not None:
        raise found.damage
    return found if found.claim is None else settle(store, found, write=True)


def mark_removed(store: Store, position: Position, root: str) -> None:
    """Create the mark that an entry is removed; durable after `store.published.sync()`.

    A mark that says the same already is success. Raises `FileExistsError` if a stranger has its name.
    """
    mark = Mark(kind="removed", store=store.id, entry=(position[0], position[1]), root=root)
    try:
        commit_bytes(
            store.published,
            names.removed(*position),
            encode_mark(mark, store.algorithm),
            sync_directory=False,
        )
    except OSError:
        if not is_removed(store, position):
            raise


@dataclasses.dataclass(frozen=True)
class _NotTaken:
    """Why a name was not taken for certain. `doubt`: it may have been, or is not durable."""

    error: OSError
    doubt: bool = False
    visible: bool | None = False

    @property
    def stage(self) -> str | None:
        return getattr(self.error, "stage", None)


def _take(directory: Directory, name: str, data: bytes) -> _NotTaken | None:
    """Give `data` a name that nobody has; None if it has it, durably.

    "Already exists" is a question: an earlier rename of the same bytes may have arrived late, or its
    answer got lost. Raises `OSError` where nothing was renamed, for certain.
    """
    try:
        commit_bytes(directory, name, data)
        return None
    except OSError as error:
        stage = getattr(error, "stage", None)
        if stage == "sync-directory":
            return _NotTaken(error, doubt=True, visible=_is_here(directory, name, data))
        if stage != "rename":
            raise
        failed = error
    try:
        if not _is_here(directory, name, data):
            # A rename that a server still holds cannot arrive once its temporary name is gone.
            gone = all(names.parse_temporary(n) != name for n in directory.names())
            certain = isinstance(failed, FileExistsError) or gone
            return _NotTaken(failed, doubt=not certain, visible=False)
    except OSError:
        return _NotTaken(failed, doubt=True, visible=None)
    try:
        directory.sync()
    except OSError as error:
        return _NotTaken(error, doubt=True, visible=True)
    return None


def _is_here(directory: Directory, name: str, data: bytes) -> bool:
    """Return whether the name holds exactly these bytes."""
    try:
        return directory.read(name, len(data)) == data
    except (FileNotFoundError, Refused):
        return False
