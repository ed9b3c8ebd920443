"""HDF5: a generation as datasets (docs/hdf5.md).

A *view* is a small file in which every region is a dataset whose bytes are the published packs. A
*copy* is a file of its own. An *export* is either. A *source* is an HDF5 file that is read to be
imported. What is needed to read any of them without this library is h5py, or any HDF5 tool.
"""

from .copy import Prepared, abandon, commit, fill, prepare, write_copy
from .names import PREFIX, PREFIX_VARIABLE
from .opened import View, open_view
from .source import Dataset, Source, open_source
from .view import Export, check_target, write_view

__all__ = [
    "PREFIX",
    "PREFIX_VARIABLE",
    "Dataset",
    "Export",
    "Prepared",
    "Source",
    "View",
    "abandon",
    "check_target",
    "commit",
    "fill",
    "open_source",
    "open_view",
    "prepare",
    "write_copy",
    "write_view",
]
