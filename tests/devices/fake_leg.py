"""A leg of a qualification on devices that are not there: `gpu_leg` with the fake in a fresh process."""

from __future__ import annotations

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[2])]

from fake_device import CARD, NEWER, Fake  # noqa: E402

from alpha_mpi.devices import runtime as seam  # noqa: E402
from alpha_mpi.testing import gpu_leg  # noqa: E402

if __name__ == "__main__":
    with seam.replaced(Fake(CARD, NEWER)):
        gpu_leg.main(sys.argv[1:])
