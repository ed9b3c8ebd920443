"""What importing loads: a login node has no MPI, no GPU, and pays for nothing it does not use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from launch import env

HEAVY = {"mpi4py", "h5py", "cupy", "hdf5plugin", "sklearn", "ml_dtypes", "blake3", "click"}


def loaded(code: str) -> set[str]:
    """Return which heavy packages a fresh interpreter has loaded after `code`."""
    code += "\nimport sys, json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    told = subprocess.run([sys.executable, "-c", code], env=env(), capture_output=True, text=True, check=True)
    return HEAVY & set(json.loads(told.stdout))


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded("import alpha_mpi") == set()


def test_declaring_a_state_loads_nothing_heavy() -> None:
    code = "import numpy as np, alpha_mpi as am\nam.State().replicate('w', np.zeros(3)); am.Star(); am.rows()"
    assert loaded(code) == set()


def test_commands_load_no_mpi() -> None:
    code = "from alpha_mpi.cli import alpha_mpi; alpha_mpi()"
    assert loaded(code) <= {"click"}


@pytest.mark.parametrize("name", ["numpy.float32", "bfloat16"])
def test_a_format_loads_only_its_own_package(name: str) -> None:
    code = f"from alpha_mpi.model.formats import by_name; by_name({name.removeprefix('numpy.')!r})"
    assert loaded(code) == ({"ml_dtypes"} if name == "bfloat16" else set())
