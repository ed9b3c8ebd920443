"""Retention: keep some generations of the lineage, and let the others go.

To *retire* a generation is to create its mark durably: from then on it is no generation, and only
then its data go. A *mark* of an ended epoch goes in its turn, after the root it speaks of. A kill
anywhere in between is completed by the next run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

from ..format.manifest import Manifest
from ..model.capture import Attempt
from . import names
from .entries import mark_removed
from .keep import Keep, Scored
from .leftovers import Removal, named_by_root, remove_attempt
from .observe import Candidate, Position, is_removed, listing, look, read_mark
from .store import Store


@dataclasses.dataclass
class Retired:
    """What one run did.

    Attributes
    ----------
    marked : list of Position
        Generations that this run made no generations.
    dropped : list of Position
        Entries of ended epochs whose root and mark are gone now.
    removal : Removal
        Files and bytes removed, and those that are left, with the reason.
    failed : list of str
        What the disk refused; the next run tries again.
    stopped : str or None
        Why the run did nothing: a newer continuation took over, or it is not safe.
    """

    marked: list[Position] = dataclasses.field(default_factory=list)
    dropped: list[Position] = dataclasses.field(default_factory=list)
    removal: Removal = dataclasses.field(default_factory=Removal)
    failed: list[str] = dataclasses.field(default_factory=list)
    stopped: str | None = None


@dataclasses.dataclass(frozen=True)
class Named:
    """What retention remembers of a generation: its root digest, all it names, update and score."""

    root: str
    attempt: Attempt
    refers: frozenset[Attempt]
    update: int
    score: float | None

    @classmethod
    def of(cls, root: str, manifest: Manifest, refers: Iterable[Attempt]) -> Named:
        """Return it of a root manifest, whose shard records `refers` to these attempts."""
        assert manifest.root is not None
        text, prefix = manifest.root.score, manifest.prefix
        score = None if text is None else float.fromhex(text)
        return cls(root, prefix.attempt, frozenset(refers), prefix.moment.update, score)


class Retention:
    """Keeps generations of one job's lineage: the last `keep`, or those that a `Keep` asks for.

    Made by the root owner after it took `epoch`, with the `lineage` it resumes (newest first) and
    the `abandoned` generations, which do not count and stay. `refers` tells which attempts a
    generation's records refer to; it is asked once for each generation.
    """

    def __init__(
        self,
        store: Store,
        epoch: int,
        keep: int | Keep,
        lineage: Sequence[Position] = (),
        abandoned: Collection[Position] = (),
        refers: Callable[[Manifest], Iterable[Attempt]] = named_by_root,
    ) -> None:
        self.store = store
        self.epoch = epoch
        self.keep = keep if isinstance(keep, Keep) else Keep(last=keep)
        self.lineage = [Position(*p) for p in lineage]
        self.abandoned = [Position(*p) for p in abandoned]
        self._refers = refers
        self._named: dict[Position, Named] = {}
        self._pending: set[Position] | None = None  # marked, with something left to do; None: not listed yet
        self._unread: set[Position] = set()
        self._closed: str | None = None

    def published(self, generation: Candidate | Position, named: Named | None = None) -> Retired:
        """Take note of the own publication, just made durable; then `run`. Raises nothing either.

        A position is enough: its root is read, unless `named` says what it names, only once something
        older goes.
        """
        if isinstance(generation, Candidate):
            position = generation.position
            named = self._of(generation.root, generation.manifest)
        else:
            position = Position(*generation)
        if named is not None:
            self._named[position] = named
        if not self.lineage or self.lineage[0] != position:
            self.lineage.insert(0, position)
        return self.run()

    def run(self) -> Retired:
        """Retire what is beyond `keep`, complete what an earlier run began; report, never raise.

        The newest generation (before the first own publication: the one continued) is never touched.
        """
        report = Retired(stopped=self._closed or self._overtaken())
        if report.stopped is not None:
            return report
        try:
            if self._pending is None:
                self.take_up(self.epoch)
            if self._retire(report):
                self.complete(report)
        except OSError as error:
            report.failed.append(str(error))
        return report

    def take_up(self, last: int) -> None:
        """Take up what earlier runs marked, in epochs up to `last`, and may not have ended."""
        marked = [p for p in listing(self.store).removed if p.epoch <= last]
        self._pending = {p for p in marked if read_mark(self.store, p) is not None}

    def _overtaken(self) -> str | None:
        """Why this job may not remove anything: what it would retire may be what another continued."""
        following = self.lineage[0].number + 1 if self.lineage and self.lineage[0].epoch == self.epoch else 1
        try:
            if self.store.epochs.exists(names.claim(self.epoch + 1)) or self.store.published.exists(
                names.entry(self.epoch, following)
            ):
                return "a newer continuation took over"
        except OSError as error:
            return str(error)
        return None

    def _retire(self, report: Retired) -> bool:
        """Mark what is beyond `keep`; return whether the marks are durable."""
        assert self._pending is not None
        self.lineage = [p for p in self.lineage if p not in self._pending]
        if self.keep.by_position:
            go = self.lineage[self.keep.last :]
        else:
            scored = []
            for position in self.lineage:
                named = self._read(position, report)
                if named is not None:
                    scored.append(Scored(position, named.update, named.score))
            stay = self.keep.stays(scored) | set(self.lineage[: self.keep.last])
            go = [p for p in self.lineage if p not in stay]
        pinned = {p for p in go if self.store.published.exists(names.pinned(*p))}
        return self.mark([p for p in go if p not in pinned], report)

    def mark(self, go: Sequence[Position], report: Retired) -> bool:
        """Mark these generations, newest first; return whether the marks are durable.

        One whose root cannot be read stays.
        """
        store, kept, new = self.store, set[Position](), []
        # Oldest first: a kill in between must not leave a hole in the lineage.
        for position in reversed(go):
            named = self._read(position, report)
            if named is None:
                if position in self._unread:
                    kept.add(position)
                continue
            try:
                mark_removed(store, position, named.root)
                # Who pins looks for the mark afterwards, so one of the two sees the other.
                if store.published.exists(names.pinned(*position)):
                    store.published.unlink(names.removed(*position))
                    kept.add(position)
                    continue
            except OSError as error:
                report.failed.append(str(error))
                kept.add(position)
            else:
                new.append(position)
        if new:
            try:
                store.published.sync()
            except OSError as error:
                # A later sync may succeed without having kept these names: remove nothing any more.
                self._closed = f"marks are not known to be durable: {error}"
                report.failed.append(self._closed)
                return False
        report.marked += new
        self._pending = (self._pending or set()) | set(new)
        gone = set(go) - kept
        self.lineage = [p for p in self.lineage if p not in gone]
        self.abandoned = [p for p in self.abandoned if p not in gone]
        return True

    def complete(self, report: Retired) -> None:
        """Remove the data of marked generations, then roots and marks of ended epochs."""
        assert self._pending is not None
        if not self._pending:
            return
        needed: set[Attempt] = set()
        for position in (*self.lineage, *self.abandoned):
            if is_removed(self.store, position):
                continue
            named = self._read(position, report)
            if position in self._unread:
                report.stopped = "a generation that stays cannot be read: nobody knows what it refers to"
                return
            if named is not None:
                needed |= {named.attempt, *named.refers}
        # A marked generation of an ended epoch is read only if data of its epoch may still be there.
        present = {names.parse_attempt(name) for name in self.store.data.names()} - needed
        there = {attempt.epoch for attempt in present if attempt is not None}
        gone = [
            position
            for position in sorted(self._pending)
            if (position.epoch < self.epoch and position.epoch not in there)
            or self._remove_data(position, needed, report)
        ]
        ended = [p for p in gone if p.epoch < self.epoch]
        for position in ended:
            self.store.published.unlink(names.entry(*position))
        if ended:
            # The roots first: a mark that goes before its root makes it a generation again, empty.
            self.store.published.sync()
        for position in ended:
            self.store.published.unlink(names.removed(*position))
        report.dropped += ended
        self._pending.difference_update(gone)
        for position in gone:
            self._named.pop(position, None)

    def _remove_data(self, position: Position, needed: set[Attempt], report: Retired) -> bool:
        """Remove what a marked generation alone names; return whether nothing of it is left to do."""
        named = self._read(position, report)
        if named is None:
            return True  # its root is gone or unreadable: its data are a leftover of its epoch
        left = len(report.removal.left)
        for attempt in sorted({named.attempt, *named.refers} - needed):
            remove_attempt(self.store, attempt, report.removal)
        return len(report.removal.left) == left

    def _read(self, position: Position, report: Retired) -> Named | None:
        """Return what a generation names; None if its root is gone or damaged (then reported)."""
        named = self._named.get(position)
        if named is None:
            found = look(self.store, *position)
            if found is None or found.claim is not None:
                return None  # gone; a claim that comes too late may have taken the free name
            if found.manifest is None:
                self._unread.add(position)
                report.failed.append(str(found.damage))
                return None
            named = self._named[position] = self._of(found.digest, found.manifest)
        return named

    def _of(self, root: str, manifest: Manifest) -> Named:
        return Named.of(root, manifest, self._refers(manifest))


def keep_last(
    store: Store,
    epoch: int,
    keep: int,
    lineage: Sequence[Position],
    abandoned: Collection[Position] = (),
    refers: Callable[[Manifest], Iterable[Attempt]] = named_by_root,
) -> Retired:
    """Keep the last `keep` of `lineage` (newest first) in one run. Called by the owner of `epoch`."""
    return Retention(store, epoch, keep, lineage, abandoned, refers).run()
