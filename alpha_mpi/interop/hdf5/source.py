"""Source: the datasets of an HDF5 file as regions, read piece by piece.

A file that this library wrote says what each dataset is; of any other file, numbers become arrays,
in the order of their paths, and what is no number is refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ...errors import CheckpointError, Refused
from ...format.documents import decode_document
from ...model import formats
from ...model.capture import Moment
from ...model.formats import JSON
from ...model.identity import Contract, Learner
from ...model.layout import Irregular, Replicated, Rule, from_data
from ...model.schema import KINDS
from ...restore.plan import DOCUMENTS, PER_OWNER
from . import names, types
from .copy import spaces
from .opened import View, name_of, open_file, open_view, understood

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One dataset as a region. `shape` is the dataset's: per-owner ones have an axis of owners.

    `rule` is the layout rule the file tells, None where it tells none.
    """

    ordinal: int
    name: str
    kind: str
    format: str
    shape: tuple[int, ...]
    rule: Rule | None
    path: str
    stored: str


class Source:
    """An open HDF5 file: `datasets`, and what else the file says. Closed by `close`."""

    def __init__(self, file: Any, view: View | None) -> None:
        self._file = file
        self._view = view
        self.path: str = file.filename
        #: Told the bytes of each block that was read.
        self.watch: Callable[[int], None] | None = None
        self.datasets = _datasets(file)
        said = file.attrs
        self.ours = names.GENERATION in said
        self.moment: Moment | None = None
        self.learner: Learner | None = None
        self.contract: Contract | None = None
        if self.ours:
            try:
                self.moment = Moment(int(said[names.UPDATE]), int(said[names.CURSOR]), int(said[names.EPOCH]))
                self.learner = Learner.from_data(json.loads(said[names.LEARNER]))
                self.contract = Contract.from_data(json.loads(said[names.CONTRACT]))
            except (KeyError, ValueError, TypeError) as error:
                raise Refused(
                    f"the attributes are not those of an export: {error}", code="not-a-view", file=self.path
                ) from error

    def array(self, dataset: Dataset, starts: tuple[int, ...], counts: tuple[int, ...]) -> Any:
        """Return a block of an array dataset, in its region's format, bit for bit.

        Raises `Refused` ``format`` for numbers that the format does not have.
        """
        format = formats.by_name(dataset.format)
        if 0 in counts:
            return np.empty(counts, format.dtype)
        with understood(self.path):
            found = self._read(dataset, starts, counts, format)
        if self.watch is not None:
            self.watch(found.nbytes)
        return found

    def _read(self, dataset: Dataset, starts: tuple[int, ...], counts: tuple[int, ...], format: Any) -> Any:
        opened = self._open(dataset)
        tid = h5py.h5t.IEEE_F32LE if dataset.stored == types.FLOAT32 else types.type_of(dataset.format)
        if not isinstance(opened, h5py.Dataset):
            return self._stitched(opened, starts, counts, format, tid)
        return _raw(opened.id, starts, counts, tid, dataset.stored, format)

    def _stitched(
        self, opened: Any, starts: tuple[int, ...], counts: tuple[int, ...], format: Any, tid: Any
    ) -> Any:
        array = np.empty(counts, format.dtype)
        for piece, first in opened.boxes():
            low = tuple(max(a, b) for a, b in zip(starts, first, strict=True))
            ends = zip(starts, counts, first, piece.shape, strict=True)
            high = tuple(min(a + n, b + m) for a, n, b, m in ends)
            if all(a < b for a, b in zip(low, high, strict=True)):
                extent = tuple(b - a for a, b in zip(low, high, strict=True))
                inside = tuple(a - b for a, b in zip(low, first, strict=True))
                at = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, starts, strict=True))
                array[at] = _raw(piece.id, inside, extent, tid, types.WORDS, format)
        return array

    def document(self, dataset: Dataset, owner: int = 0) -> Any:
        """Return a document's value; of a per-owner one that of `owner`. Raises `Refused`."""
        with understood(self.path):
            text = self._file[dataset.path].asstr()
            data = text[()] if dataset.kind == "document" else text[owner]
        return decode_document(str(data).encode(), self.path)

    def _open(self, dataset: Dataset) -> Any:
        return self._file[dataset.path] if self._view is None else self._view[dataset.name]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open an HDF5 file to import it. Raises `Refused` (``format``: all datasets that cannot be regions;
    ``not-a-view``, ``not-hdf5``; as `open_view` for a view), `OSError` where it cannot be opened."""
    file = open_file(path)
    view = None
    try:
        if names.GENERATION in file.attrs:
            file.close()
            view = open_view(path)
            file = view.file
        with understood(path):
            return Source(file, view)
    except BaseException:
        file.close()
        raise


def _raw(
    dataset: Any, starts: tuple[int, ...], counts: tuple[int, ...], tid: Any, stored: str, format: Any
) -> Any:
    """Read words as they are stored, without a conversion to another number format."""
    size = int(np.prod(counts, dtype=np.int64)) * tid.get_size()
    data = np.empty(size, np.uint8)
    memory, space = spaces(dataset, starts, counts)
    dataset.read(memory, space, data, mtype=tid)
    if stored == types.FLOAT32:
        return types.narrowed(data.view("<f4").reshape(counts), format)
    return formats.words_of(data.data, format).astype(format.dtype, copy=False).reshape(counts)


def _datasets(file: Any) -> list[Dataset]:
    found: list[Dataset] = []
    wrong: list[CheckpointError] = []

    def take(path: str, item: Any) -> None:
        if path.startswith(names.OURS) or not isinstance(item, h5py.Dataset):
            return
        try:
            found.append(_dataset(path, item))
        except CheckpointError as error:
            error.region = path
            wrong.append(error)

    file.visititems(take)
    if wrong:
        first = wrong[0]
        if len(wrong) > 1:
            rest = ", ".join(str(error.region) for error in wrong[1:6])
            first.message += f"; and {len(wrong) - 1} more: {rest}"
        raise first
    if not found:
        raise Refused("the file holds no dataset", code="empty-state", file=file.filename)
    return sorted(found, key=lambda d: (d.ordinal, d.path))


def _dataset(path: str, item: Any) -> Dataset:
    said = item.attrs
    if names.ORDINAL not in said:
        format, _ = types.format_of(item.id.get_type())
        if item.shape is None:
            raise Refused("a dataset without a shape", code="shape")
        return Dataset(0, path, "array", format, item.shape, None, path, types.WORDS)
    try:
        kind, format = str(said[names.REGION]), str(said[names.FORMAT])
        rule = from_data(json.loads(said[names.LAYOUT]))
        stored = str(said.get(names.STORED, types.WORDS))
        ordinal, name = int(said[names.ORDINAL]), name_of(path, item)
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(f"the attributes are not those of an export: {error}", code="not-a-view") from error
    if kind not in KINDS or (kind in DOCUMENTS) != (format == JSON):
        raise Refused("no kind of region", code="kind", found=f"{kind} of {format}"[:80])
    if kind not in DOCUMENTS:
        expected = (
            h5py.h5t.IEEE_F32LE if stored == types.FLOAT32 else types.type_of(formats.by_name(format).name)
        )
        if not item.id.get_type().equal(expected):
            raise Refused("the dataset is not of the format it says", code="wrong-format", expected=format)
    if kind in PER_OWNER and len(item.shape) == 0:
        raise Refused("no axis of owners", code="shape")
    known = None if isinstance(rule, Irregular) else rule
    return Dataset(ordinal, name, kind, format, item.shape, known, path, stored)


def is_replicated(dataset: Dataset) -> bool:
    """Return whether every owner holds all words."""
    return isinstance(dataset.rule, Replicated) or (dataset.rule is None and not dataset.shape)
