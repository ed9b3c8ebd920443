"""Copy: a file of its own that holds a generation, written with bounded memory."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import h5py
import numpy as np

from ...model import formats
from ...model.schema import Region
from ...restore.blocks import strides_of
from ...restore.generation import Generation
from ...restore.plan import DOCUMENTS
from ...restore.slices import Lattice, shape_of
from ...store import names as store_names
from ...store import space
from ...store.durable import Directory, adopt
from . import layout, names, types
from .view import Export, check_target, create

#: Bytes read and written in one step; of a chunk, where chunks are compressed.
STEP, CHUNK = 16 << 20, 1 << 20


#: Told (bytes written, bytes in all).
Progress = Callable[[int, int], None]


class Prepared(NamedTuple):
    """A file with everything but the words of its arrays: where they go.

    `temporary` is its name in the folder of `target`; `arrays` are (ordinal, offset in the file).
    """

    target: str
    temporary: str
    datasets: dict[str, str]
    arrays: list[tuple[int, int]]


def write_copy(
    generation: Generation,
    path: str | os.PathLike[str],
    *,
    compress: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
) -> Export:
    """Write a generation into a file that needs no store, durably; return what it holds.

    Called by one process. Every byte is verified while it is read; memory is bounded by a few
    steps of 16 MiB. With `compress` the datasets are chunked and packed with gzip. Raises `Refused`
    (``file-exists``, and what reading raises), `CommitFailed` ``no-space`` before anything is written,
    `OSError`.
    """
    made = prepare(generation, path, compress=compress, replace=replace, progress=progress)
    try:
        fill(generation, made, progress=progress)
        return commit(generation, made, replace=replace)
    except BaseException:
        abandon(made)
        raise


def prepare(
    generation: Generation,
    path: str | os.PathLike[str],
    *,
    compress: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Begin a copy: make the file, under a temporary name, without the words that `fill` writes.

    With `compress` all words are written here. Raises as `write_copy`; then no file is left.
    """
    target = check_target(path, replace)
    paths = names.paths_of([r.name for r in generation.regions])
    shown = {r.name: at for r, at in zip(generation.regions, paths, strict=True)}
    made = Prepared(target, store_names.temporary(os.path.basename(target)), shown, [])
    if not compress:
        arrays = (r.ordinal for r in generation.regions if r.kind not in DOCUMENTS)
        with Directory.open(os.path.dirname(target)) as directory:
            space.demand(directory, sum(_nbytes(generation, ordinal) for ordinal in arrays))
    try:
        with _named(target), h5py.File(_temporary(made), "w-") as file:
            layout.describe(file, generation, "copy", True)
            for region, at in zip(generation.regions, paths, strict=True):
                offset = _write(file, generation, region, at, compress, progress)
                if offset is not None:
                    made.arrays.append((region.ordinal, offset))
    except BaseException:
        abandon(made)
        raise
    return made


def fill(
    generation: Generation, made: Prepared, part: int = 0, parts: int = 1, progress: Progress | None = None
) -> None:
    """Write one of `parts` shares of the words into a file that was prepared, and make them durable.

    Called by each process that helps; HDF5 has no part in it: the datasets are contiguous.
    `progress` is told as if all of them were as far as this one.
    """
    total, done = sum(_nbytes(generation, ordinal) for ordinal, _ in made.arrays), 0
    fd = os.open(_temporary(made), os.O_WRONLY | os.O_CLOEXEC)
    try:
        number = 0
        for ordinal, offset in made.arrays:
            region = generation.regions[ordinal]
            shape, tid = shape_of(region, generation.root.owners), _type(region)
            strides = strides_of(shape)
            for starts, counts in steps(shape, STEP // tid.get_size()):
                done += math.prod(counts) * tid.get_size()
                if number % parts == part:
                    array = _words(generation, region, starts, counts)
                    word = sum(a * s for a, s in zip(starts, strides, strict=True))
                    with _named(made.target):
                        _pwrite(fd, payload(array), offset + word * tid.get_size())
                    if progress is not None:
                        progress(done, total)
                number += 1
        with _named(made.target):
            os.fsync(fd)
    finally:
        os.close(fd)


def commit(generation: Generation, made: Prepared, *, replace: bool = False) -> Export:
    """Give a copy its name, durably, once every share is written. Called by who prepared it."""
    name = os.path.basename(made.target)
    with Directory.open(os.path.dirname(made.target)) as directory:
        if replace:
            directory.unlink(name)
        adopt(directory, made.temporary, name)
    return Export(made.target, generation.candidate.name, made.datasets)


def abandon(made: Prepared) -> None:
    """Remove a copy that was not committed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_temporary(made))


def _temporary(made: Prepared) -> str:
    return os.path.join(os.path.dirname(made.target), made.temporary)


@contextlib.contextmanager
def _named(target: str) -> Iterator[None]:
    """Give what the disk refuses the name of the file it is about."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), target) from error
        raise


def _pwrite(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _nbytes(generation: Generation, ordinal: int) -> int:
    region = generation.regions[ordinal]
    size: int = _type(region).get_size()
    return math.prod(shape_of(region, generation.root.owners)) * size


def _type(region: Region) -> Any:
    return types.type_of(region.format) if types.is_expressed(region.format) else h5py.h5t.IEEE_F32LE


def _words(generation: Generation, region: Region, starts: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    array = generation.words(region.name, Lattice(starts, counts, (1,) * len(starts)))
    return array if types.is_expressed(region.format) else types.widened(array)


def payload(array: Any) -> memoryview:
    """Return the little-endian bytes of words."""
    return formats.payload(array, formats.of_dtype(array.dtype))


def _write(
    file: Any,
    generation: Generation,
    region: Region,
    path: str,
    compress: bool,
    progress: Progress | None,
) -> int | None:
    """Write one region; return where in the file its words are to be written, None if there are none."""
    if region.kind in DOCUMENTS:
        dataset = layout.write_document(file, generation, region, path)
        layout.label(dataset, generation, region, path, types.WORDS)
        return None
    shape, tid = shape_of(region, generation.root.owners), _type(region)
    stored = types.WORDS if types.is_expressed(region.format) else types.FLOAT32
    if not compress or math.prod(shape) <= 1:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        dataset = h5py.Dataset(create(file, path, tid, shape, plist))
        layout.label(dataset, generation, region, path, stored)
        offset: int | None = dataset.id.get_offset()
        return offset
    chunks = block(shape, CHUNK // tid.get_size())
    dataset = file.create_dataset(
        path, shape, h5py.Datatype(tid), chunks=chunks, compression="gzip", shuffle=True
    )
    layout.label(dataset, generation, region, path, stored)
    arrays = [r.ordinal for r in generation.regions if r.kind not in DOCUMENTS]
    total = sum(_nbytes(generation, o) for o in arrays)
    done = sum(_nbytes(generation, o) for o in arrays if o < region.ordinal)
    for starts, counts in steps(shape, CHUNK // tid.get_size()):
        data = np.frombuffer(payload(_words(generation, region, starts, counts)), np.uint8)
        memory, space = spaces(dataset.id, starts, counts)
        dataset.id.write(memory, space, data, mtype=tid)
        done += len(data)
        if progress is not None:
            progress(done, total)
    return None


def spaces(dataset: Any, starts: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the selections of a block: in memory and in the dataset."""
    space = dataset.get_space()
    if not starts:
        return h5py.h5s.create(h5py.h5s.SCALAR), space
    space.select_hyperslab(starts, counts)
    return h5py.h5s.create_simple(counts), space


def block(shape: tuple[int, ...], words: int) -> tuple[int, ...]:
    """Return the largest block of at most `words` words (at least one) that is whole in its last axes."""
    found: list[int] = []
    room = max(1, words)
    for extent in reversed(shape):
        found.append(max(1, min(extent, room)))
        room = max(1, room // max(1, extent))
    return tuple(reversed(found))


def steps(shape: tuple[int, ...], words: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (starts, counts) of the blocks that make up an array, in C order."""
    each = block(shape, words)
    axes = [range(0, extent, n) for extent, n in zip(shape, each, strict=True)]
    for starts in itertools.product(*axes):
        yield starts, tuple(min(n, e - s) for n, e, s in zip(each, shape, starts, strict=True))
