"""View: a small file in which every region is a dataset whose bytes are the published packs.

Where the shards of a region follow each other in the order of its words, its dataset names their
bytes directly (*external storage*). Where they are boxes, each box is a dataset of its own in the
group ``alpha_mpi.pieces``, and the region's is put together from them (*virtual dataset*).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from ...errors import Refused
from ...format.manifest import piece_of
from ...model.cover import check_cover
from ...model.pieces import Box, Interval, Piece, boxes, local_shape, run_starts, size
from ...model.schema import Region
from ...restore.generation import Generation
from ...restore.plan import DOCUMENTS, PER_OWNER
from ...restore.slices import shape_of
from ...store.durable import Directory, commit_bytes
from . import layout, names, types
from .layout import Segment

#: Most files' parts that one dataset can name: HDF5 keeps the list in one message of 64 KiB.
SEGMENTS = 2000
#: Most boxes that a virtual dataset is made of here.
BOXES = 20_000


@dataclasses.dataclass(frozen=True)
class Export:
    """A file that was written.

    Attributes
    ----------
    path : str
    generation : str
        Its name, such as e000001-000003.
    datasets : dict of str to str
        Region to path of its dataset.
    bits : tuple of str
        Regions shown as their bits, since HDF5 has no numbers of their format.
    missing : tuple of str
        Regions that a view cannot show; a copy can.
    """

    path: str
    generation: str
    datasets: dict[str, str]
    bits: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def write_view(
    generation: Generation, path: str | os.PathLike[str], *, verified: bool, replace: bool = False
) -> Export:
    """Write the view of a generation, durably; return what it shows.

    Called by one process. `verified` is written into the file: the caller has just verified every
    byte of the generation, or not. An existing file is replaced only with `replace`. Raises
    `Refused` (``file-exists``, and what reading manifests and packs raises), `OSError`.
    """
    target = check_target(path, replace)
    found = layout.locate(generation)
    folder, above = os.path.realpath(generation.store.path), os.path.dirname(target)
    regions = generation.regions
    paths = names.paths_of([r.name for r in regions])
    missing, bits = [], []
    with h5py.File("view", "w", driver="core", backing_store=False) as file:
        layout.describe(file, generation, "view", verified)
        for region, at in zip(regions, paths, strict=True):
            if region.kind in DOCUMENTS:
                dataset = layout.write_document(file, generation, region, at)
                layout.label(dataset, generation, region, at, types.WORDS)
                continue
            segments = [
                s._replace(file=layout.relative(folder, s.file, above))
                for s in found.segments.get(region.ordinal, [])
            ]
            shape = shape_of(region, generation.root.owners)
            made = _dataset(file, at, region, shape, segments)
            if made is None:
                missing.append(region.name)
                continue
            expressed = types.is_expressed(region.format)
            if not expressed:
                bits.append(region.name)
            stored = types.WORDS if expressed else types.BITS
            layout.label(h5py.Dataset(made), generation, region, at, stored)
        layout.write_tables(file, found, folder, above)
        file.flush()
        image = file.id.get_file_image()
    with Directory.open(above) as directory:
        if replace:
            directory.unlink(os.path.basename(target))
        commit_bytes(directory, os.path.basename(target), image)
    shown = {r.name: at for r, at in zip(regions, paths, strict=True) if r.name not in missing}
    return Export(target, generation.candidate.name, shown, tuple(bits), tuple(missing))


def check_target(path: str | os.PathLike[str], replace: bool) -> str:
    """Return where a file is to be written, as a real path; refuse one that exists already.

    Raises `OSError` where its folder is missing.
    """
    text = os.path.abspath(os.fspath(path))
    target = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
    if os.path.lexists(target) and not (replace and os.path.isfile(target)):
        raise Refused("the file exists already", code="file-exists", file=target)
    os.stat(os.path.join(os.path.dirname(target), "."))  # its folder is there: said before all is verified
    return target


def _dataset(
    file: Any, path: str, region: Region, shape: tuple[int, ...], segments: Sequence[Segment]
) -> Any | None:
    """Make the dataset of an array region; None if HDF5 cannot hold the list of its pieces."""
    tid = types.type_of(region.format)
    pieces = [_piece(s, region) for s in segments]
    check_cover(pieces, shape or (1,), [s.held.record.owner for s in segments], region.name)
    flat = all(len(run_starts(p, shape or (1,))[0]) == 1 for p in pieces)
    if flat and len(segments) <= SEGMENTS:
        return external(file, path, tid, shape, segments)
    parts = list(_boxes(segments, pieces, shape, types.itemsize(region.format)))
    if len(parts) > BOXES:
        return None
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for i, (box, segment) in enumerate(parts):
        at = f"{layout.place_file(region)}/{i}"
        external(file, at, tid, local_shape(box), [segment])
        whole = h5py.h5s.create_simple(shape)
        whole.select_hyperslab(box.starts, local_shape(box))
        plist.set_virtual(whole, b".", f"/{at}".encode(), h5py.h5s.create_simple(local_shape(box)))
    file[layout.place_file(region)].attrs["starts"] = np.array([box.starts for box, _ in parts], np.uint64)
    return create(file, path, tid, shape, plist)


def _piece(segment: Segment, region: Region) -> Piece:
    """Return where a shard lies in the dataset: of each owner's own, in row `owner`."""
    record = segment.held.record
    if region.kind in PER_OWNER:
        start = record.owner
        return Box((start, *(0,) * len(region.shape)), (start + 1, *region.shape))
    piece = piece_of(record.piece)
    assert piece is not None
    return piece


def _boxes(
    segments: Sequence[Segment], pieces: Sequence[Piece], shape: tuple[int, ...], itemsize: int
) -> Iterator[tuple[Box, Segment]]:
    """Yield every piece as boxes, each with its bytes."""
    for segment, piece in zip(segments, pieces, strict=True):
        offset = segment.offset
        for box in boxes(piece, shape) if isinstance(piece, Interval) else [piece]:
            nbytes = size(box) * itemsize
            yield box, segment._replace(offset=offset, nbytes=nbytes)
            offset += nbytes


def external(file: Any, path: str, tid: Any, shape: tuple[int, ...], segments: Sequence[Segment]) -> Any:
    """Make a dataset whose bytes are those segments, one after the other."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for segment in segments:
        plist.set_external(os.fsencode(segment.file), segment.offset, segment.nbytes)
    return create(file, path, tid, shape, plist)


def create(file: Any, path: str, tid: Any, shape: tuple[int, ...], plist: Any) -> Any:
    """Make a dataset, and the groups above it."""
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5py.h5t.CSET_UTF8)
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return h5py.h5d.create(file.id, path.encode(), tid, space, plist, links)
