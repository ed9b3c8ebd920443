"""Opened: a view read through h5py, from whatever folder the program runs in."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from ...errors import CheckpointError, Refused
from ...restore.slices import Lattice, select
from . import names

if TYPE_CHECKING:
    from typing_extensions import Self


class View(Mapping[str, Any]):
    """An open view or copy: region to dataset. Closed by `close`, or at the end of a ``with`` block.

    A dataset is an `h5py.Dataset`, or, where a view is made of boxes, a `Stitched` one that is sliced
    alike. `file` is the `h5py.File`.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self._access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        self._access.set_efile_prefix(names.PREFIX.encode())
        self._paths: dict[str, str] = {}
        file.visititems(self._take)

    def _take(self, path: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and names.ORDINAL in item.attrs:
            self._paths[name_of(path, item)] = path

    @property
    def attrs(self) -> Any:
        """The attributes of the file."""
        return self.file.attrs

    def __getitem__(self, name: str) -> Any:
        dataset = h5py.Dataset(h5py.h5d.open(self.file.id, self._paths[name].encode(), self._access))
        if not dataset.is_virtual:
            return dataset
        group = self.file[f"{names.PIECES}/{dataset.attrs[names.ORDINAL]}"]
        pieces = [
            h5py.Dataset(h5py.h5d.open(group.id, str(i).encode(), self._access)) for i in range(len(group))
        ]
        return Stitched(dataset, pieces, group.attrs["starts"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<view of {self.attrs.get(names.GENERATION)}: {len(self)} dataset{'s' * (len(self) != 1)}>"


class Stitched:
    """A virtual dataset, put together here: HDF5 looks for the files of its parts in the current
    folder only. `dataset` is the `h5py.Dataset`, for everything but its words."""

    def __init__(self, dataset: Any, pieces: list[Any], starts: Any) -> None:
        self.dataset = dataset
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype = dataset.dtype
        self.attrs = dataset.attrs
        self._pieces = pieces
        self._starts = [tuple(map(int, one)) for one in starts]

    def boxes(self) -> Iterator[tuple[Any, tuple[int, ...]]]:
        """Yield each box: its dataset, and where it starts."""
        yield from zip(self._pieces, self._starts, strict=True)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """Read a slice by NumPy's basic indexing."""
        chosen = select(key, self.shape)
        if chosen.lattice is None:
            return np.empty(chosen.shape, self.dtype)
        words = np.empty(chosen.lattice.counts, self.dtype)
        for piece, starts in self.boxes():
            cut = _cut(chosen.lattice, starts, piece.shape)
            if cut is not None:
                words[cut[1]] = piece[cut[0]]
        if chosen.flipped:
            words = np.flip(words, chosen.flipped)
        array = words.reshape(chosen.shape)
        return array if chosen.shape else array[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self[...]
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"<dataset of {len(self._pieces)} boxes: shape {self.shape}, type {self.dtype}>"


def _cut(
    lattice: Lattice, starts: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Return what a box gives of a lattice: the index in the box, and in the answer."""
    source, to = [], []
    for first, n, step, start, extent in zip(*lattice, starts, shape, strict=True):
        low = max(0, -((first - start) // step))
        high = min(n, -((first - start - extent) // step))
        if low >= high:
            return None
        begin = first + low * step - start
        source.append(slice(begin, begin + (high - low - 1) * step + 1, step))
        to.append(slice(low, high))
    return tuple(source), tuple(to)


def open_view(path: str | os.PathLike[str]) -> View:
    """Open a view, or a copy, for reading, from whatever folder the program runs in.

    Looks at the size of every pack first: HDF5 reads what a file lacks as zeros. Raises `Refused`:
    ``not-a-view``, ``missing-pack`` (the generation was removed, or the view moved away from its
    store), ``truncated``, ``not-hdf5``; `OSError` where the file cannot be opened.
    """
    file = open_file(path)
    try:
        with understood(path):
            if names.GENERATION not in file.attrs:
                raise Refused("no view or copy of a generation", code="not-a-view", file=os.fspath(path))
            above = os.path.dirname(os.path.realpath(path))
            for name, size in file[names.FILES][...].tolist() if names.FILES in file else ():
                _check_file(os.path.join(above, os.fsdecode(name)), size)
            return View(file)
    except BaseException:
        file.close()
        raise


def open_file(path: str | os.PathLike[str]) -> Any:
    """Open an HDF5 file for reading. Raises `Refused` ``not-hdf5``, `OSError` as `open` does."""
    os.stat(path)  # a missing file is told as such
    with understood(path):
        return h5py.File(path, "r")


@contextlib.contextmanager
def understood(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make what HDF5 cannot read of a file a `Refused` ``not-hdf5``."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, CheckpointError):
            raise
        raise Refused(f"HDF5 cannot read this: {error}", code="not-hdf5", file=os.fspath(path)) from error


def _check_file(path: str, size: int) -> None:
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise Refused(
            "a file that the view shows is gone: the generation was removed, or the view was moved "
            "without its store",
            code="missing-pack",
            file=path,
        ) from None
    if found != size:
        raise Refused(
            "a file that the view shows has another size",
            code="truncated",
            file=path,
            expected=f"{size} bytes",
            found=f"{found} bytes",
        )


def name_of(path: str, dataset: Any) -> str:
    """Return the region that a dataset holds."""
    said = dataset.attrs.get(names.NAME)
    return path if said is None else str(json.loads(said))
