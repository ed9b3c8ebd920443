"""Replicas: words that several owners hold, read by one and passed on to the others.

A *share* is a range of such words that one member of a communicator, its *writer*, reads from the
store; a *bundle* is what one transfer carries. Every receiver digests what it gets, and compares it
with what the root (for words all owners hold) or the writer's manifest (for a copied piece) names.
Nothing is written to a destination in the first pass: a bundle is kept in memory, or comes again.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .. import digest
from ..errors import Cause, CheckpointError, PeerFailed, Refused, cause_of, error_of
from ..format.documents import decode_document
from ..format.manifest import Manifest, Root
from ..model import formats
from ..model.layout import share
from ..model.schema import Region, Schema
from ..mpi.agreement import WORDS, spread
from ..mpi.world import World
from .plan import DOCUMENTS, is_replicated
from .staging import Array, RemoteSink, Sink, bytes_of, fresh, sink_of
from .validate import Checked, Part, Target, read_again


class Share(NamedTuple):
    """`nbytes` bytes of a region, from byte `at` of what each receiver holds, read by `writer`
    (a rank of the communicator that carries them). `at` is a multiple of the chunk size."""

    ordinal: int
    writer: int
    at: int
    nbytes: int


class Bundle(NamedTuple):
    """Shares of one writer that travel together; `kept`: in memory until they are applied."""

    writer: int
    shares: tuple[Share, ...]
    kept: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all its shares."""
        return sum(s.nbytes for s in self.shares)


def replicated_shares(manifest: Manifest, schema: Schema, file: str) -> list[Share]:
    """Return who reads which replicated words, as the root's manifest lets every owner know.

    A region is the root's alone, or its chunks are dealt as shares to the root and its children.
    Raises `Refused` ``incomplete-cover`` or ``corrupt-root``.
    """
    root: Root | None = manifest.root
    assert root is not None
    listed = dict(root.replicas)
    records = {record.ordinal: record for record in manifest.shards}
    members = [0, *(child.role for child in manifest.children)]
    found: list[Share] = []
    for region in schema.regions:
        if not is_replicated(region, root.layouts[region.ordinal]):
            continue
        if region.kind == "array" and not region.size:
            continue
        record = records.get(region.ordinal)
        if record is None:
            raise Refused(
                "the root does not hold this replicated region",
                code="incomplete-cover",
                role=0,
                region=region.name,
                file=file,
            )
        if region.ordinal not in listed:
            raise Refused(
                "the root lists no digest of this replicated region",
                code="corrupt-root",
                role=0,
                region=region.name,
                file=file,
            )
        if region.kind == "document":
            found.append(Share(region.ordinal, 0, 0, record.nbytes))
            continue
        nbytes = region.size * formats.by_name(region.format).itemsize
        if record.piece == (0, region.size):
            found.append(Share(region.ordinal, 0, 0, nbytes))
            continue
        for i, member in enumerate(members):
            first, last = share(digest.chunk_count(nbytes), len(members), i)
            at, stop = first * digest.CHUNK, min(last * digest.CHUNK, nbytes)
            if at < stop:
                found.append(Share(region.ordinal, member, at, stop - at))
    return found


def bundles(shares: Sequence[Share], budget: int, documents: frozenset[int]) -> list[Bundle]:
    """Return what travels together, in order: the same on every member for the same arguments.

    Small shares of one writer go together, as many as fit one slice. Documents are always kept;
    arrays as long as their sum is at most `budget` bytes.
    """
    made: list[Bundle] = []
    open_: list[Share] = []
    filled = 0

    def close() -> None:
        nonlocal budget, filled
        filled = 0
        if open_:
            bundle = Bundle(open_[0].writer, tuple(open_), True)
            if open_[0].ordinal not in documents:
                bundle = bundle._replace(kept=bundle.nbytes <= budget)
                budget -= bundle.nbytes if bundle.kept else 0
            made.append(bundle)
            open_.clear()

    for one in sorted(shares, key=lambda s: (s.writer, s.ordinal in documents)):
        alone = one.nbytes > digest.CHUNK
        if open_:
            last = open_[-1]
            alike = (last.writer, last.ordinal in documents) == (one.writer, one.ordinal in documents)
            if alone or not alike or filled + one.nbytes > WORDS:
                close()
        open_.append(one)
        filled += one.nbytes
        if alone:
            close()
    close()
    return made


class Stored:
    """The validated bytes of one need on the owner that read them: staged, made, or read again."""

    def __init__(self, checked: Checked, need: int, parts: Sequence[Part]) -> None:
        self._checked = checked
        self._parts = sorted(parts, key=lambda p: p.start)
        self._starts = [p.start for p in self._parts]
        made = checked.made.get(need)
        self._made = _bytes(made) if isinstance(made, np.ndarray) else None

    @classmethod
    def of(cls, checked: Checked, needs: Sequence[int]) -> dict[int, Stored]:
        """Return the bytes of some needs; each is one whole shard, or made anew."""
        parts: dict[int, list[Part]] = {need: [] for need in needs}
        for part in checked.parts:
            for copy in checked.plan.reads[part.read].copies:
                if copy.need in parts:
                    parts[copy.need].append(part)
        return {need: cls(checked, need, found) for need, found in parts.items()}

    def read(self, at: int, nbytes: int) -> memoryview:
        """Return bytes [at, at + nbytes). Raises `Refused` ``changed-while-reading``."""
        if self._made is not None:
            return self._made[at : at + nbytes]
        data, done = bytearray(nbytes), 0
        while done < nbytes:
            part = self._parts[bisect.bisect_right(self._starts, at + done) - 1]
            view = part.data if part.data is not None else read_again(self._checked, part)
            piece = view[at + done - part.start :][: nbytes - done]
            if len(piece) == nbytes:
                return piece
            data[done : done + len(piece)] = piece
            done += len(piece)
        return memoryview(data)


def _bytes(array: Array) -> memoryview:
    memory = bytes_of(array)
    return memory if memory is not None else formats.payload(array, formats.of_dtype(array.dtype))


class Incoming:
    """What one owner receives of one region: digested as it comes, and kept or made.

    `made` is the new array or the document's value where the destination is not filled in place.
    """

    def __init__(self, region: Region, target: Target, nbytes: int, algorithm: str) -> None:
        self.region = region
        self.target = target
        self.nbytes = nbytes
        self.algorithm = algorithm
        self.made: object = None
        self._width = digest.SIZES[algorithm]
        self._table = bytearray(self._width * digest.chunk_count(nbytes))
        self._kept: list[tuple[int, bytes]] = []
        self._document = region.kind in DOCUMENTS
        if target.array is not None:
            self._sink: Sink | RemoteSink | None = sink_of(target.array)
        elif self._document:
            self._sink = None
        else:
            self.made = array = fresh(target.shape, region.format)
            self._sink = Sink(array)

    @property
    def in_place(self) -> bool:
        """Whether its words may only be written when everybody agreed."""
        return self.target.array is not None

    def accept(self, at: int, view: memoryview, keep: bool) -> None:
        """First pass: take in whole chunks from byte `at` on; keep them where they must wait."""
        for i in range(0, len(view), digest.CHUNK):
            chunk = (at + i) // digest.CHUNK
            raw = digest.raw(view[i : i + digest.CHUNK], self.algorithm)
            self._table[chunk * self._width : (chunk + 1) * self._width] = raw
        if self._document or (self.in_place and keep):
            self._kept.append((at, bytes(view)))
        elif not self.in_place:
            self._put(at, view)

    def accept_again(self, at: int, view: memoryview) -> None:
        """Second pass: check each chunk against the first pass, then write it in place."""
        for i in range(0, len(view), digest.CHUNK):
            part = view[i : i + digest.CHUNK]
            chunk = (at + i) // digest.CHUNK
            expected = bytes(self._table[chunk * self._width : (chunk + 1) * self._width])
            found = digest.raw(part, self.algorithm)
            if found != expected:
                raise Refused(
                    f"chunk {chunk} came with other bytes than before",
                    code="changed-while-reading",
                    region=self.region.name,
                    expected=digest.text(expected, self.algorithm),
                    found=digest.text(found, self.algorithm),
                )
            if self.in_place:
                self._put(at + i, part)

    def digest(self, named: Callable[[str, int, bytes, str], str]) -> str:
        """Return the digest of what came in the first pass; `named` as for `check`."""
        return named(self.region.format, self.nbytes, bytes(self._table), self.algorithm)

    def check(self, expected: str, named: Callable[[str, int, bytes, str], str]) -> None:
        """Refuse (``corrupt-replica``) what is not the words of digest `expected`; decode a document.

        `named` is `digest.region` or `digest.shard`.
        """
        found = self.digest(named)
        if found != expected:
            raise Refused(
                "the words received are not those the generation names",
                code="corrupt-replica",
                region=self.region.name,
                expected=expected,
                found=found,
            )
        if self._document:
            try:
                self.made = decode_document(b"".join(data for _, data in sorted(self._kept)))
            except Refused as error:
                error.region = self.region.name
                raise
            self._kept.clear()

    def fill(self) -> None:
        """Write what was kept, in place."""
        for at, data in self._kept:
            self._put(at, memoryview(data))
        self._kept.clear()

    def settle(self) -> None:
        """Return when what was written outside of this process's memory is there."""
        array = self.target.array
        if array is not None and not isinstance(array, np.ndarray):
            array.settle()

    def put_own(self, share: Share, stored: Stored) -> None:
        """Write the own share of a kept bundle, which its writer did not keep twice."""
        for at in range(0, share.nbytes, digest.CHUNK):
            self._put(share.at + at, stored.read(at, min(digest.CHUNK, share.nbytes - at)))

    def _put(self, at: int, view: memoryview) -> None:
        assert self._sink is not None
        self._sink.put(view, at, formats.by_name(self.region.format))


class Spreading:
    """The transfers of one communicator. Every member calls the same methods in the same order.

    `owners` says which owner each rank is; `sources` holds the own shares' bytes, `incoming` every
    region of the bundles, by ordinal.
    """

    def __init__(
        self,
        comm: World,
        owners: Sequence[int],
        carried: Sequence[Bundle],
        sources: Mapping[Share, Stored],
        incoming: Mapping[int, Incoming],
        deadline: float,
    ) -> None:
        self.comm = comm
        self.incoming = incoming
        self._owners = owners
        self._bundles = carried
        self._sources = sources
        self._deadline = deadline

    def receive(self) -> Cause | None:
        """First pass: everything travels once; return the agreed cause of a failure, or None."""
        for bundle in self._bundles:
            # The writer has its own words in its pack's staging already.
            keep = bundle.kept and bundle.writer != self.comm.rank
            cause = self._carry(bundle, functools.partial(self._first, keep=keep))
            if cause is not None:
                return cause
        return None

    def again(self) -> Cause | None:
        """Second pass: what was not kept travels again, and is written where it is still what it was."""
        for bundle in self._bundles:
            cause = None if bundle.kept else self._carry(bundle, self._second)
            if cause is not None:
                return cause
        return None

    def fill(self) -> None:
        """Write what was kept. Local; only a writer that must read again can fail."""
        for bundle in self._bundles:
            if bundle.kept and bundle.writer == self.comm.rank:
                for share in bundle.shares:
                    own = self.incoming.get(share.ordinal)
                    if own is not None and own.in_place:
                        own.put_own(share, self._sources[share])
        for incoming in self.incoming.values():
            if incoming.in_place:
                incoming.fill()

    def _first(self, share: Share, at: int, view: memoryview, keep: bool) -> None:
        incoming = self.incoming.get(share.ordinal)  # none where a writer has the piece as its own
        if incoming is not None:
            incoming.accept(share.at + at, view, keep)

    def _second(self, share: Share, at: int, view: memoryview) -> None:
        incoming = self.incoming.get(share.ordinal)
        if incoming is not None:
            incoming.accept_again(share.at + at, view)

    def _carry(self, bundle: Bundle, take: Callable[[Share, int, memoryview], None]) -> Cause | None:
        me = self._owners[self.comm.rank]

        def read(at: int, nbytes: int) -> memoryview:
            with _Blamed(me):
                parts = [
                    self._sources[share].read(low, high - low)
                    for share, low, high in _cut(bundle, at, nbytes)
                ]
                return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

        def sink(at: int, view: memoryview) -> None:
            with _Blamed(me):
                done = 0
                for share, low, high in _cut(bundle, at, len(view)):
                    take(share, low, view[done : done + high - low])
                    done += high - low

        source = read if bundle.writer == self.comm.rank else None
        try:
            return spread(self.comm, bundle.writer, source, bundle.nbytes, sink, self._deadline, WORDS)
        except PeerFailed as error:
            if error.role is not None and error.role < len(self._owners):
                error.role = self._owners[error.role]
            raise


def _cut(bundle: Bundle, at: int, nbytes: int) -> list[tuple[Share, int, int]]:
    """The shares in bytes [at, at + nbytes) of a bundle, each with its own range."""
    found, begin = [], 0
    for one in bundle.shares:
        low, high = max(at, begin), min(at + nbytes, begin + one.nbytes)
        if low < high:
            found.append((one, low - begin, high - begin))
        begin += one.nbytes
    return found


class _Blamed:
    """Makes a failure inside name this owner: in a sub-communicator ranks are not owners."""

    def __init__(self, owner: int) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not (isinstance(error, CheckpointError) and error.role is not None):
            raise error_of(cause_of(error, self._owner)) from error
