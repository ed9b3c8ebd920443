"""Discard: what people remove, pin and unpin, under the rules of retention.

Called by commands. No job is asked: what may be removed while one runs are generations of *ended*
epochs, other than the newest. Everything else needs the word that no job runs (`offline`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

from ..errors import Refused
from ..format.claim import Mark, decode_mark, encode_mark
from ..format.envelope import SMALL_LIMIT
from . import names
from .durable import commit_bytes
from .observe import Position, candidate, entry_file, is_removed
from .retention import Retention, Retired
from .store import Store


def check(
    store: Store,
    position: Position,
    epoch: int,
    lineage: Sequence[Position],
    abandoned: Collection[Position],
    offline: bool,
) -> None:
    """Refuse to remove a generation that must stay; `epoch` is the store's current one.

    Raises `Refused`: ``no-generation``, ``newest-generation``, ``open-epoch``, ``pinned``.
    """
    file = entry_file(*position)
    if position not in lineage and position not in abandoned:
        raise Refused("this entry is no generation", code="no-generation", file=file)
    if lineage and position == lineage[0]:
        raise Refused("the newest generation always stays", code="newest-generation", file=file)
    if position.epoch >= epoch and not offline:
        raise Refused(
            "its epoch is open, and the job that owns it may run; --offline says that no job runs",
            code="open-epoch",
            file=file,
            expected=f"an epoch below {epoch}",
            found=position.epoch,
        )
    if store.published.exists(names.pinned(*position)):
        raise Refused("the generation is pinned", code="pinned", file=file)


def discard(
    store: Store,
    epoch: int,
    go: Iterable[Position],
    lineage: Sequence[Position],
    abandoned: Collection[Position],
    offline: bool,
) -> Retired:
    """Remove these generations, each of which `check` has let pass; complete what others began.

    Of an open epoch the names stay occupied. A kill anywhere is completed by the next run.
    """
    # A claim's record must not be lost again once names of the epoch before it are free.
    store.published.sync()
    store.epochs.sync()
    report = Retired()
    if store.epochs.exists(names.claim(epoch + 1)):
        report.stopped = "a continuation took the next epoch meanwhile; look again"
        return report
    wanted = set(go)
    run = Retention(store, epoch, 1, lineage, abandoned)
    run.take_up(epoch if offline else epoch - 1)
    if run.mark([p for p in (*lineage, *abandoned) if p in wanted], report):
        run.complete(report)
    return report


def pin(store: Store, position: Position) -> bool:
    """Pin a generation, durably: retention leaves it alone. False if it was pinned already.

    Raises `Refused` as `observe.candidate`, and ``removed-generation`` where retention was faster.
    """
    found = candidate(store, position)
    if read_pin(store, position) is not None:
        return False
    mark = Mark(kind="pinned", store=store.id, entry=(position[0], position[1]), root=found.root)
    try:
        commit_bytes(store.published, names.pinned(*position), encode_mark(mark, store.algorithm))
    except FileExistsError:
        if read_pin(store, position) is None:
            raise Refused(
                "a file that is no pin of this generation has the pin's name",
                code="corrupt-mark",
                file=pin_file(position),
            ) from None
        return False
    # Retention looks for a pin after its mark, so one of the two sees the other.
    if is_removed(store, position):
        store.published.unlink(names.pinned(*position))
        raise Refused(
            "the generation was removed meanwhile", code="removed-generation", file=entry_file(*position)
        )
    return True


def unpin(store: Store, position: Position) -> bool:
    """Take a pin away, durably. False if there was none.

    Raises `Refused` (``corrupt-mark``, ...) for a file in the pin's name that is none: it stays.
    """
    if not store.published.exists(names.pinned(*position)):
        return False
    if read_pin(store, position) is None:
        raise Refused(
            "a file that is no pin of this generation has the pin's name",
            code="corrupt-mark",
            file=pin_file(position),
        )
    store.published.unlink(names.pinned(*position))
    store.published.sync()
    return True


def read_pin(store: Store, position: Position) -> Mark | None:
    """Return the `pinned` mark of an entry; None if there is none, or a stranger has its name."""
    try:
        data = store.published.read(names.pinned(*position), SMALL_LIMIT)
        mark = decode_mark(data, file=pin_file(position))
    except (FileNotFoundError, Refused):
        return None
    if mark.kind != "pinned" or mark.store != store.id or mark.entry != tuple(position):
        return None
    return mark


def pin_file(position: Position) -> str:
    """Return the name below the store of an entry's pin."""
    return os.path.join(names.PUBLISHED, names.pinned(*position))
