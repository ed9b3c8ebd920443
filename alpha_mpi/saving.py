"""Saving: one attempt on this owner, from reading the user's state to its outcome.

Composes the rooms: capture, protocol machine, work on the store, MPI driver. Every refusal of one
owner travels through the protocol, so all owners raise the same error.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Mapping

import msgspec

from . import digest
from .devices.direct import Direct
from .errors import Cause, CheckpointError, Refused, cause_of
from .model.capture import FORMAT_VERSION, Attempt, Moment, Prefix
from .mpi.driver import run
from .mpi.exchange import exchange
from .mpi.ports import Ports
from .opening import Run
from .protocol.events import End, Entered
from .protocol.hierarchy import Star, Tree
from .protocol.publication import StarMember, StarRoot, TreeRole
from .publication.capture import NOTHING, Capture
from .publication.estimate import estimate
from .publication.publish import Known, Work
from .staged import AS_EVER, Asked, Staged
from .store import space
from .store.retention import Named


@dataclasses.dataclass(frozen=True)
class Newest:
    """The newest generation of the lineage: what the next save is compared with.

    `shards` are the digests of the shards this owner's role wrote, None where they are not known.
    `accepted`: it is of another learner, contract or schema than this job, which accepted that.
    """

    name: str
    root: str
    moment: Moment
    shards: Mapping[tuple[int, int, int], str] | None
    accepted: bool = False


@dataclasses.dataclass(frozen=True)
class Saved:
    """The outcome of an attempt on this owner, and the digests of the own shards.

    `interrupt` is what a signal's handler or the user's code raised meanwhile and nobody may
    swallow (`KeyboardInterrupt`, `SystemExit`); it is raised once the books are in order. `notes` say
    what was done otherwise than asked with words on devices. `named` is what the generation published
    names, on owner 0.
    """

    end: End
    shards: Mapping[tuple[int, int, int], str]
    interrupt: BaseException | None = None
    notes: tuple[Warning, ...] = ()
    named: Named | None = None


def attempt(
    run_: Run,
    ports: Ports,
    pool: concurrent.futures.ThreadPoolExecutor,
    number: Attempt,
    entry: int,
    moment: Moment,
    newest: Newest | None,
    unchanged_ok: bool,
    refusal: CheckpointError | None,
    score: float | None = None,
    check_space: bool = False,
    asked: Asked = AS_EVER,
) -> Saved:
    """Try to publish one generation. Called by every owner; every one gets the same outcome.

    `refusal`: what this owner already has against it; nothing is read then. `score` is what the
    root will hold: owner 0's counts. With `check_space` owner 0 asks first whether it will fit. `asked` is
    how words on devices are saved.
    """
    world, store = run_.world, run_.store
    prefix: Prefix | None = None
    capture = NOTHING
    cause: Cause | None = None
    work: Work | None = None
    interrupt: BaseException | None = None
    staged: Staged | None = None
    try:
        if refusal is not None:
            raise refusal
        declared = run_.declared
        staged = Staged(declared.capture(), asked.snapshot)
        held = staged.held
        capture = run_.taking.take(held, store.algorithm, run_.bound.now(held, world.rank))
        prefix = Prefix(
            version=FORMAT_VERSION,
            attempt=number,
            schema=run_.schema_digest,
            learner=run_.learner_digest,
            contract=run_.contract_digest,
            layout=run_.layout_digest,
            cover=run_.layout.root,
            moment=moment,
            replicas=_replicas(capture, store.algorithm),
        )
        if check_space and world.rank == 0:
            roles = 1 if isinstance(run_.hierarchy, Star) else world.size
            space.demand_of(store, estimate(run_.array_nbytes, world.size, roles, capture.shards))
        work = _work(run_, pool, capture, prefix, newest, score, asked.direct)
        inventory = payload = 0
        if isinstance(run_.hierarchy, Star) and world.rank > 0:
            inventory, payload = len(work.inventory()), work.payload_nbytes
        entered = Entered(prefix, capture.replicas, None, inventory, payload)
    except BaseException as error:  # also the user's SystemExit: the peers must learn of it
        cause = cause_of(error, world.rank)
        entered = Entered(None, (), cause)
        if not isinstance(error, Exception):
            interrupt = error
    if work is None:
        empty = Prefix(FORMAT_VERSION, number, "", "", "", "", "", moment, "")
        work = _work(run_, pool, NOTHING, prefix or empty, newest)
    machine = _machine(run_, number, entry, capture, newest, moment, unchanged_ok)
    end: End | None = None
    try:
        end = run(machine, ports, work, entered)
    except BaseException as error:
        end = machine.outcome
        if end is None:
            raise
        interrupt = interrupt or error
    finally:
        work.close()
        if staged is not None:
            staged.close()
    return Saved(end, work.shards, interrupt, asked.notes(staged), work.named)


_DIGESTS = msgspec.msgpack.Decoder(list[tuple[int, int, int, str]] | None)


def digests_now(run_: Run) -> dict[tuple[int, int, int], str] | None:
    """Return the digests of the shards that this owner's role would write of the state as it is.

    Called by every owner after a resume on another placement, whose own shards are others than
    those in the store, so that the next save can tell whether anything changed. One pass over the
    words; None where they cannot be read (the next save then counts as changed).
    """
    algorithm = run_.store.algorithm
    mine: dict[tuple[int, int, int], str] | None = None
    try:
        shards = run_.taking.take(run_.declared.capture(), algorithm).shards
        names = shards.names(shards.tables(algorithm, check=False), algorithm)
        mine = dict(zip(shards.wants.keys, names, strict=True))
    except Exception:
        pass  # the user's code: what it says of its state counts at the next save
    if not isinstance(run_.hierarchy, Star):
        return mine
    told = msgspec.msgpack.encode(None if mine is None else [(*k, d) for k, d in mine.items()])
    outgoing = [told] + [b""] * (run_.world.size - 1)
    told_all = [_DIGESTS.decode(data) for data in exchange(run_.world, outgoing, run_.deadline) if data]
    if run_.world.rank > 0:
        return mine
    if any(one is None for one in told_all):
        return None
    return {(o, owner, at): d for one in told_all if one is not None for o, owner, at, d in one}


def _replicas(capture: Capture, algorithm: str) -> str:
    return digest.replicas((d for _, d in capture.replicas), algorithm)


def _work(
    run_: Run,
    pool: concurrent.futures.ThreadPoolExecutor,
    capture: Capture,
    prefix: Prefix,
    newest: Newest | None,
    score: float | None = None,
    direct: Direct | None = None,
) -> Work:
    place = run_.families.place
    root = None
    if run_.world.rank == 0:
        root = msgspec.structs.replace(
            run_.root,
            continues=newest.root if newest else None,
            replicas=capture.replicas,
            score=None if score is None else score.hex(),
        )
    known = None
    if newest is not None and newest.shards is not None:
        documents = run_.documents
        if len(documents) == len(run_.declared.regions):
            documents = frozenset()
        known = Known(newest.shards, documents, _same(newest.moment, prefix.moment))
    return Work(
        run_.store,
        pool,
        capture,
        prefix,
        place.role,
        place.size,
        run_.layout.cover,
        root,
        known,
        run_.region_names,
        frozenset(ordinal for ordinal, _ in run_.groups),
        direct,
    )


def _same(a: Moment, b: Moment) -> bool:
    return (a.update, a.cursor) == (b.update, b.cursor)


def _machine(
    run_: Run,
    number: Attempt,
    entry: int,
    capture: Capture,
    newest: Newest | None,
    moment: Moment,
    unchanged_ok: bool,
) -> TreeRole | StarRoot | StarMember:
    world = run_.world
    names = run_.region_names
    now = time.monotonic()
    if isinstance(run_.hierarchy, Tree):
        return TreeRole(
            run_.families.place,
            world.size,
            number,
            run_.deadline,
            entry if world.rank == 0 else None,
            run_.groups,
            names.get,
            now,
            fan_out=run_.hierarchy.fan_out,
            nodes=run_.hierarchy.nodes,
            covers=run_.layout.covers,
            verdict=verdict(newest, moment, unchanged_ok),
        )
    if world.rank == 0:
        return StarRoot(
            world.size,
            number,
            run_.deadline,
            entry,
            region_name=names.get,
            now=now,
            verdict=verdict(newest, moment, unchanged_ok),
        )
    return StarMember(world.rank, number, run_.deadline, names.get, now)


def verdict(newest: Newest | None, moment: Moment, unchanged_ok: bool) -> Callable[[bool], Cause | None]:
    """Return what the root decides once it knows whether any word has changed."""

    def decide(changed: bool) -> Cause | None:
        if newest is None:
            return None
        if _same(newest.moment, moment):
            if not changed and not newest.accepted:
                return Refused("published already", code="same-state").cause()
            other = "of what was accepted as different" if newest.accepted else "with other words"
            return Refused(
                f"this update and cursor were published already, {other}",
                code="other-words",
                expected=f"the words of {newest.name}, or a later update",
                found=f"update {moment.update}, cursor {moment.cursor}",
            ).cause()
        if not changed and not unchanged_ok:
            return Refused(
                "the update advanced but no region changed: are the declared arrays the ones that "
                "are trained? (unchanged_ok=True allows it)",
                code="unchanged-state",
                retryable=True,
                expected=f"words that differ from {newest.name}",
                found="the same words",
            ).cause()
        return None

    return decide
