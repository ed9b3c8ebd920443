"""Continuing: which generation a job goes on from, restored and claimed.

Owner 0 looks at the store and chooses; every owner validates; owner 0 takes the epoch; every owner
writes. A *fork* continues a generation that was asked for by name; a *fallback* passes over
generations whose content is proved to be damaged. Both are recorded in the claim.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

import msgspec

from . import slurm
from .arguments import same_on_all
from .errors import Refused
from .format.manifest import Manifest
from .model.accept import Accept, Accepted
from .model.capture import Moment
from .model.identity import Learner
from .mpi.agreement import bcast
from .opening import Run, everybody
from .restore import choose
from .restore.generation import root_file
from .restore.resume import Checked, Chosen, read
from .saving import digests_now
from .store import leftovers, names
from .store.observe import Candidate, Position
from .store.store import Store

#: What content alone proves; with ``fallback=True`` only these pass a generation over. An I/O
#: error, a deadline or a mismatch is final.
DAMAGE = frozenset(
    {
        "corrupt-document",
        "corrupt-manifest",
        "corrupt-pack",
        "corrupt-replica",
        "corrupt-root",
        "corrupt-shard",
        "cover-differs",
        "misplaced-root",
        "missing-manifest",
        "missing-pack",
        "missing-root",
        "missing-shard",
        "missing-subtree",
        "mixed-moments",
        "non-finite",
        "not-a-file",
        "too-large",
        "truncated",
        "unnamed-shard",
        "wrong-child",
        "wrong-subtree-size",
    }
)

_ENTRY = re.compile(r"e([0-9]{6,15})-([0-9]{6,15})", re.ASCII)
_UPDATE = re.compile(r"u?([0-9]{1,16})", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Resumed:
    """What a resume did.

    Attributes
    ----------
    generation : str or None
        The generation restored (``e000001-000003``); None: a fresh start.
    moment : Moment
        Where the learner stands, in the new epoch.
    skipped : tuple of (str, str)
        Generations passed over by ``fallback=True``, each with the code of its damage.
    forked : bool
        Whether the generation was asked for by name and is not the newest.
    accepted : tuple of (str, str, str)
        What `accept` was needed for: which kind of difference, what differs, the reason given.
    """

    generation: str | None
    moment: Moment
    skipped: tuple[tuple[str, str], ...] = ()
    forked: bool = False
    accepted: Accepted = ()


@dataclasses.dataclass(frozen=True)
class Continued:
    """A restored job: the epoch is taken, the state is written.

    `saved` is the restored generation's own moment, `shards` its digests that this role wrote;
    `seen` is what owner 0 saw in the store (None on the others).
    """

    epoch: int
    resumed: Resumed
    saved: Moment
    root: str | None
    shards: Mapping[tuple[int, int, int], str] | None
    seen: choose.Survey | None


def follow_run(run: Run, visibility: float) -> Continued:
    """Take the next epoch after the newest generation, without restoring it.

    For codes that bring a whole state of their own (`alpha_mpi.save`, ``alpha-mpi import``): schema
    and layout may be others than before. Called by every owner. Raises `Refused` (``other-learner``)
    for a store of another learner.
    """
    while True:
        seen, chosen, _, _ = _choose(run, None, False, (), visibility)
        old = _moment_of(run, seen if chosen is not None else None)
        epoch = _claim(run, seen, chosen, _facts(run.world.size, (), None, False), visibility)
        if epoch is None:
            continue  # the older job published meanwhile
        moment = Moment(old.update, old.cursor, epoch)
        if chosen is None:
            return Continued(epoch, Resumed(None, moment), old, None, None, seen)
        return Continued(epoch, Resumed(_name(chosen), moment), old, chosen.root, None, seen)


def _moment_of(run: Run, seen: choose.Survey | None) -> Moment:
    """Return the newest generation's moment on every owner, if it is of the same learner."""

    def compare() -> bytes:
        newest = None if seen is None else seen.newest
        if newest is None:
            return msgspec.msgpack.encode(Moment())
        root = newest.manifest.root
        assert root is not None
        lines = run.learner.difference(Learner.from_data(root.learner))
        if lines:
            raise Refused(
                f"the store holds the generations of another learner: {'; '.join(lines)}",
                code="other-learner",
                file=root_file(newest.epoch, newest.number),
            )
        return msgspec.msgpack.encode(newest.manifest.prefix.moment)

    data = everybody(run.world, compare, run.deadline)
    data = bcast(run.world, data if run.world.rank == 0 else None, 0, run.deadline)
    return msgspec.msgpack.decode(data, type=Moment)


def continue_run(
    run: Run,
    generation: str | int | None,
    fallback: bool,
    staging: int,
    visibility: float,
    accept: Accept | None = None,
    takeover: bool = False,
) -> Continued:
    """Restore a generation and take the next epoch. Called by every owner; ends alike on all."""
    same_on_all(run, generation, fallback, accept, takeover)
    skipped: tuple[tuple[str, str], ...] = ()
    while True:
        seen, chosen, passed, forked = _choose(run, generation, fallback, skipped, visibility, takeover)
        skipped = passed
        checked: Checked | None = None
        if chosen is not None:
            try:
                checked = read(
                    run.store,
                    chosen,
                    run.declared,
                    run.families,
                    run.deadline,
                    staging,
                    learner=run.learner,
                    contract=run.contract,
                    visibility=visibility,
                    accept=accept,
                    devices=run.bound.devices,
                    by=run.bound.by,
                )
            except Refused as error:
                if generation is None and error.code in DAMAGE and _moved_on(run, seen, visibility):
                    skipped = ()
                    continue  # the older job has published, and perhaps retired what was chosen
                if not (fallback and generation is None and error.code in DAMAGE):
                    raise
                skipped = (*skipped, (_name(chosen), error.code))
                continue
        try:
            fork = chosen.root if chosen is not None and forked else None
            accepted = () if checked is None else checked.accepted
            facts = _facts(run.world.size, skipped, fork, generation is not None, accepted)
            epoch = _claim(run, seen, chosen, facts, visibility)
            if epoch is None:
                skipped = ()
                continue  # the older job published meanwhile: choose and validate again
            if checked is not None:
                checked.apply()
        finally:
            if checked is not None:
                checked.close()
        if chosen is None or checked is None:
            resumed = Resumed(None, Moment(0, 0, epoch))
            return Continued(epoch, resumed, Moment(), None, None, seen)
        old = checked.moment
        moment = Moment(old.update, old.cursor, epoch)
        resumed = Resumed(_name(chosen), moment, skipped, forked, accepted)
        # On another placement the own shards are others than those in the store.
        shards = digests_now(run) if checked.shards is None else checked.shards
        return Continued(epoch, resumed, old, chosen.root, shards, seen)


def _look(store: Store, visibility: float) -> choose.Survey:
    """Survey the store; once more where its newest was retired between two looks."""
    seen = choose.survey(store, visibility)
    while seen.damage is not None and seen.damage.code in ("removed-generation", "missing-root"):
        before, seen = seen, choose.survey(store, visibility)
        if before.lineage[:1] == seen.lineage[:1]:
            break
    return seen


def _moved_on(run: Run, seen: choose.Survey | None, visibility: float) -> bool:
    """Return whether the store has another newest generation than owner 0 saw. Called by every owner."""

    def look() -> bytes:
        if seen is None:
            return b""
        try:
            return b"yes" if _look(run.store, visibility).lineage[:1] != seen.lineage[:1] else b""
        except (OSError, Refused):
            return b""  # what was found first is the news

    data = everybody(run.world, look, run.deadline)
    return bool(bcast(run.world, data if run.world.rank == 0 else None, 0, run.deadline))


def clean(run: Run, seen: choose.Survey, epoch: int) -> leftovers.Removal:
    """Remove what older epochs left behind. Called by owner 0 once the claim is durable."""
    named, unknown = choose.named(run.store, seen)
    return leftovers.leftovers(run.store, epoch, named, unknown)


def _name(chosen: Chosen) -> str:
    return names.entry(chosen.epoch, chosen.number).removesuffix(".json")


_Choice = tuple[tuple[int, int, str] | None, tuple[tuple[str, str], ...], bool]


def _choose(
    run: Run,
    generation: str | int | None,
    fallback: bool,
    skipped: tuple[tuple[str, str], ...],
    visibility: float,
    takeover: bool = False,
) -> tuple[choose.Survey | None, Chosen | None, tuple[tuple[str, str], ...], bool]:
    """Let owner 0 look at the store and choose; every owner learns what was chosen."""
    seen: choose.Survey | None = None
    root: Manifest | None = None

    def look() -> bytes:
        nonlocal seen, root
        if run.world.rank != 0:
            return b""
        seen = _look(run.store, visibility)
        if not takeover:
            slurm.check_held(seen.claims.get(seen.epoch))
        found: Candidate | None
        passed, forked = skipped, False
        if generation is not None:
            found, forked = _asked_for(run, seen, generation)
        elif fallback:
            found, passed = _first_whole(run, seen, skipped)
        else:
            if seen.damage is not None:
                raise seen.damage
            found = seen.newest
        if found is None:
            return msgspec.msgpack.encode((None, passed, forked))
        root = found.manifest
        return msgspec.msgpack.encode(((found.epoch, found.number, found.root), passed, forked))

    data = everybody(run.world, look, run.deadline)
    data = bcast(run.world, data if run.world.rank == 0 else None, 0, run.deadline)
    chosen, passed, forked = msgspec.msgpack.decode(data, type=_Choice)
    if chosen is None:
        return seen, None, passed, forked
    # Owner 0 has read the root already: each manifest is opened once.
    return seen, Chosen(*chosen, manifest=root), passed, forked


def _first_whole(
    run: Run, seen: choose.Survey, skipped: tuple[tuple[str, str], ...]
) -> tuple[Candidate | None, tuple[tuple[str, str], ...]]:
    """Return the newest generation of the lineage that is not known to be damaged."""
    known = {name for name, _ in skipped}
    last: Refused | None = seen.damage
    if not seen.lineage:
        if last is not None:
            raise last  # it cannot even be told what the newest is
        return None, skipped
    for position in seen.lineage:
        name = names.entry(*position).removesuffix(".json")
        if name in known:
            continue
        try:
            return seen.candidate(run.store, position), skipped
        except Refused as error:
            if error.code == "removed-generation":
                continue
            if error.code not in DAMAGE:
                raise
            last = error
            skipped = (*skipped, (name, error.code))
    raise Refused(
        f"every generation is damaged: {', '.join(f'{n} ({c})' for n, c in skipped)}",
        code="all-damaged",
        file=run.store.path,
    ) from last


def _asked_for(run: Run, seen: choose.Survey, generation: str | int) -> tuple[Candidate | None, bool]:
    """Return the generation asked for, and whether continuing it forks.

    A requeued job continues its own fork: where this job has forked from that generation before,
    its newest generation is meant.
    """
    word = str(generation)
    entry, update = _ENTRY.fullmatch(word), _UPDATE.fullmatch(word)
    found: Candidate | None = None
    if entry is not None:
        found = seen.candidate(run.store, Position(int(entry[1]), int(entry[2])))
    elif update is not None:
        for position in (*seen.lineage, *seen.abandoned):
            candidate = seen.candidate(run.store, position)
            if candidate.manifest.prefix.moment.update == int(update[1]):
                found = candidate
                break
    if found is None:
        raise Refused(
            "there is no such generation",
            code="no-generation",
            file=run.store.path,
            expected="an entry (e000001-000003) or an update (u120)",
            found=word,
        )
    if seen.newest is not None and seen.newest.root == found.root:
        return found, False
    if seen.newest is not None and _own_fork(seen, found.root):
        return seen.newest, False
    return found, True


def _own_fork(seen: choose.Survey, root: str) -> bool:
    """Return whether the current line stems from a fork of `root` by this very job."""
    epoch: int | None = seen.epoch if slurm.job() else None
    while epoch:
        claim = seen.claims.get(epoch)
        if claim is None:
            return False
        if claim.fork == (root, slurm.job()):
            return True
        epoch = claim.base[0] if claim.base is not None and claim.base[0] < epoch else None
    return False


def _claim(
    run: Run,
    seen: choose.Survey | None,
    chosen: Chosen | None,
    facts: choose.Facts,
    visibility: float,
) -> int | None:
    """Let owner 0 take the next epoch; None if the older job published first."""

    def claim() -> bytes:
        if seen is None:
            return b""
        candidate = None
        if chosen is not None:
            candidate = seen.candidate(run.store, Position(chosen.epoch, chosen.number))
        taken = choose.continuation(run.store, seen, candidate, facts, visibility)
        return msgspec.msgpack.encode(taken.epoch if isinstance(taken, choose.Claimed) else None)

    data = everybody(run.world, claim, run.deadline)
    data = bcast(run.world, data if run.world.rank == 0 else None, 0, run.deadline)
    epoch: int | None = msgspec.msgpack.decode(data)
    return epoch


def _facts(
    owners: int,
    skipped: tuple[tuple[str, str], ...],
    fork: str | None,
    explicit: bool,
    accepted: Accepted = (),
) -> choose.Facts:
    """Return what a claim says of this job; names for people, nothing is decided by them here."""
    return choose.Facts(
        owners=owners,
        job=slurm.job() or f"pid {os.getpid()}",
        restart=slurm.restart(),
        host=slurm.host(),
        skipped=skipped,
        fork=None if fork is None else (fork, slurm.job()),
        accepted=accepted,
        explicit=explicit,
    )
