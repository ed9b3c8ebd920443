"""Small stores for the tests of this room: generations of one shard, and operations that die."""

from __future__ import annotations

import contextlib
import os
import types

from alpha_mpi import digest
from alpha_mpi.errors import cause_of
from alpha_mpi.format.manifest import Manifest, Place, RegionDecl, Root, ShardRecord, encode_manifest
from alpha_mpi.model.capture import FORMAT_VERSION, Attempt, Moment, Prefix
from alpha_mpi.restore import choose
from alpha_mpi.store import durable, entries, names
from alpha_mpi.store.entries import Candidate

ANY = digest.of(b"anything")
PAYLOAD = b"x" * 1000
RULE = {"rule": "shares"}
SCHEMA = digest.combine("schema", [["w", "array", "float64", [125]]])
LAYOUT = digest.combine("layout", [[RULE], 1, {"kind": "star"}])


def root_bytes(
    store,
    epoch,
    number,
    *,
    update,
    save=None,
    continues=None,
    places=None,
    entry=None,
    owner=None,
    score=None,
):
    """A root that names one shard; `places` are attempts (the own one by default).

    `continues`: by default what its epoch's claim continues, or the entry before it.
    """
    if continues is None:
        before = entries.look(store, epoch, number - 1) if number > 1 else None
        claimed = entries.record(store, epoch)
        if before is not None:
            continues = before.digest or None
        elif claimed is not None and claimed.claim is not None:
            continues = claimed.claim.continues
    attempt = Attempt(epoch, number if save is None else save)
    at = tuple(Place(a.epoch, a.save, 0) for a in (places or [attempt]))
    return encode_manifest(
        Manifest(
            kind="manifest",
            prefix=Prefix(
                version=FORMAT_VERSION,
                attempt=attempt,
                schema=SCHEMA,
                learner=digest.combine("learner", {}),
                contract=digest.combine("contract", {}),
                layout=LAYOUT,
                cover=ANY,
                moment=Moment(update, update, epoch),
                replicas=digest.replicas([]),
            ),
            role=0,
            size=1,
            shards=(ShardRecord(0, 0, (0, 125), len(PAYLOAD), digest.of(PAYLOAD), at),),
            children=(),
            root=Root(
                store=owner or store.id,
                entry=number if entry is None else entry,
                continues=continues,
                schema=(RegionDecl("w", "array", "float64", (125,)),),
                layouts=(RULE,),
                replicas=(),
                owners=1,
                hierarchy={"kind": "star"},
                learner={},
                contract={},
                score=None if score is None else score.hex(),
            ),
        ),
        store.algorithm,
    )


def write_attempt(store, attempt, roles=(0,)):
    """The files that an attempt makes before its root."""
    for role in roles:
        with store.files_of(attempt, role, create=True) as directory:
            durable.commit_bytes(directory, names.pack(role), PAYLOAD)
            if role:
                durable.commit_bytes(directory, names.manifest(role), b"{}\n")


def publish(store, epoch, number, *, update=None, **options):
    """Write and publish a generation; return it as a candidate."""
    data = root_bytes(store, epoch, number, update=number if update is None else update, **options)
    attempt = Attempt(epoch, options.get("save") or number)
    write_attempt(store, attempt)
    root = entries.publish(store, epoch, number, data)
    found = entries.candidate(store, (epoch, number), root)
    assert isinstance(found, Candidate)
    return found


def resume(store, job="job", chosen="newest", **facts):
    """Continue as a job does; return the epoch taken."""
    seen = choose.survey(store)
    if seen.damage is not None:
        raise seen.damage
    base = seen.newest if chosen == "newest" else chosen
    end = choose.continuation(store, seen, base, choose.Facts(owners=1, job=job, host="host", **facts))
    assert isinstance(end, choose.Claimed), end
    return end.epoch


def data_attempts(store):
    return [name for name in store.data.names() if names.parse_attempt(name)]


def whole(store, candidate):
    """Whether all bytes that a generation names are there."""
    for shard in candidate.manifest.shards:
        place = shard.places[0]
        with store.files_of(Attempt(place.epoch, place.save), place.role) as directory:
            if directory.read(names.pack(place.role), 1 << 20) != PAYLOAD:
                return False
    return True


class Killed(BaseException):
    """The process is dead: nothing of it runs any more."""


#: Calls of the durable room that change the disk.
_NATIVE = ("create", "write", "commit", "make_directory", "sync_directory")
_PYTHON = ("unlink", "rmdir")


@contextlib.contextmanager
def killed_at(monkeypatch, k, after=False):
    """Die at the k-th change of the disk (from 1), before or after it. Yields a counter."""
    count = types.SimpleNamespace(calls=0, dead=False)

    def dying(function):
        def call(*arguments, **options):
            if count.dead:
                raise Killed
            count.calls += 1
            if count.calls == k and not after:
                count.dead = True
                raise Killed
            result = function(*arguments, **options)
            if count.calls == k:
                count.dead = True
                raise Killed
            return result

        return call

    with monkeypatch.context() as patch:
        for name in _NATIVE:
            patch.setattr(durable._durable, name, dying(getattr(durable._durable, name)))
        fake = types.SimpleNamespace(**{name: getattr(os, name) for name in dir(os)})
        for name in _PYTHON:
            setattr(fake, name, dying(getattr(os, name)))
        patch.setattr(durable, "os", fake)
        yield count


def failing_commit(monkeypatch, name, stage, number, done):
    """Let the next commit of `name` fail at `stage` with errno `number`, `done` in truth or not."""
    real = durable._durable.commit
    left = [1]

    def commit(directory, fd, temporary, final, size, by_link, sync, path):
        if final != name or not left:
            return real(directory, fd, temporary, final, size, by_link, sync, path)
        left.pop()
        if done:
            real(directory, fd, temporary, final, size, by_link, False, path)
        else:
            os.close(fd)
        error = OSError(number, os.strerror(number), path)
        error.stage = stage
        assert cause_of(error).stage == stage
        raise error

    monkeypatch.setattr(durable._durable, "commit", commit)
