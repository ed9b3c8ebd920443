"""Copy: a file of its own that holds a generation, written with bounded memory."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from ...model import formats
from ...model.schema import Region
from ...restore.generation import Generation
from ...restore.plan import DOCUMENTS
from ...restore.slices import Lattice, shape_of
from ...store import names as store_names
from ...store.durable import Directory, adopt
from . import layout, names, types
from .view import Export, check_target

#: Bytes read and written in one step; of a chunk, where chunks are compressed.
STEP, CHUNK = 16 << 20, 1 << 20


def write_copy(
    generation: Generation, path: str | os.PathLike[str], *, compress: bool = False, replace: bool = False
) -> Export:
    """Write a generation into a file that needs no store, durably; return what it holds.

    Called by one process. Every byte is verified while it is read; memory is bounded by a few
    steps of 16 MiB. With `compress` the datasets are chunked and packed with gzip. Raises `Refused`
    (``file-exists``, and what reading raises), `OSError`.
    """
    target = check_target(path, replace)
    name = os.path.basename(target)
    paths = names.paths_of([r.name for r in generation.regions])
    with Directory.open(os.path.dirname(target)) as directory:
        temporary = store_names.temporary(name)
        try:
            with h5py.File(os.path.join(directory.path, temporary), "w-") as file:
                layout.describe(file, generation, "copy", True)
                for region, at in zip(generation.regions, paths, strict=True):
                    _write(file, generation, region, at, compress)
            if replace:
                directory.unlink(name)
            adopt(directory, temporary, name)
        except BaseException:
            directory.unlink(temporary)
            raise
    shown = {r.name: at for r, at in zip(generation.regions, paths, strict=True)}
    return Export(target, generation.candidate.name, shown)


def _write(file: Any, generation: Generation, region: Region, path: str, compress: bool) -> None:
    if region.kind in DOCUMENTS:
        dataset = layout.write_document(file, generation, region, path)
        layout.label(dataset, generation, region, path, types.WORDS)
        return
    shape = shape_of(region, generation.root.owners)
    words = types.is_expressed(region.format)
    tid = types.type_of(region.format) if words else h5py.h5t.IEEE_F32LE
    more: dict[str, Any] = {}
    step = STEP
    if compress and math.prod(shape) > 1:
        step = CHUNK
        more = {"chunks": block(shape, CHUNK // tid.get_size()), "compression": "gzip", "shuffle": True}
    dataset = file.create_dataset(path, shape, h5py.Datatype(tid), **more)
    layout.label(dataset, generation, region, path, types.WORDS if words else types.FLOAT32)
    for starts, counts in steps(shape, step // tid.get_size()):
        array = generation.words(region.name, Lattice(starts, counts, (1,) * len(shape)))
        if not words:
            array = types.widened(array)
        write_words(dataset.id, tid, array, starts)


def write_words(dataset: Any, tid: Any, array: Any, starts: tuple[int, ...]) -> None:
    """Write words as they are, without a conversion, at `starts`."""
    data = np.frombuffer(formats.payload(array, formats.of_dtype(array.dtype)), np.uint8)
    memory, space = spaces(dataset, starts, array.shape)
    dataset.write(memory, space, data, mtype=tid)


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
