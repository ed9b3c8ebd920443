"""README's lines for a cluster, in a new environment: what the site gives is replaced, nothing else.

The module system is left out, MPI and mpi4py come as wheels (README says so below its block), and mpiexec
stands for srun; the Slurm tests start jobs with srun itself. Needs a package index.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def block():
    """The commands of the block, without their comments."""
    part = (ROOT / "README.md").read_text().partition("## On a cluster")[2]
    text = re.search(r"^```\n(.*?)^```", part, re.M | re.S).group(1)
    return [re.split(r"\s{2,}#", line)[0].strip() for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_lines_for_a_cluster_run(tmp_path):
    module, make, mpi, install, count = block()
    assert module.startswith("module load ")
    assert mpi == "MPICC=mpicc pip install --no-binary=mpi4py mpi4py"
    assert "`pip install mpich mpi4py` gives one" in (ROOT / "README.md").read_text()
    assert install == "pip install ." and count.startswith("srun python -c ")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    script = [
        "set -euo pipefail",
        make.replace("python -m venv", f"{sys.executable} -m venv"),
        "pip install mpich mpi4py",
        install,
        count.replace("srun ", "mpiexec -n 3 "),
        "cd /",
        "mpiexec -n 2 python -m alpha_mpi.cli doctor >/dev/null",
        "alpha-mpi --version",
    ]
    kept = ("PATH", "SSL_CERT_FILE")
    environment = {k: v for k, v in os.environ.items() if k in kept or k.startswith("PIP_")}
    told = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=clone,
        env={**environment, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    lines = told.stdout.splitlines()
    assert lines.count("3") == 3  # each process sees all three
    assert lines[-1].startswith("alpha-mpi")
