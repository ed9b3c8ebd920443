"""What the commands say of the devices that manifests record."""

from __future__ import annotations

import json
import pathlib
import shutil

from click.testing import CliRunner
from golden import generate

from alpha_mpi.cli import alpha_mpi

GOLDEN = pathlib.Path(generate.__file__).parent / "device"


def test_show_names_the_devices(tmp_path: pathlib.Path) -> None:
    store = shutil.copytree(GOLDEN, tmp_path / "s")
    told = CliRunner().invoke(alpha_mpi(), ["show", str(store), "--tree"])
    assert told.exit_code == 0, told.output
    assert "on NVIDIA H200 (GPU-00010203-0405-0607-0809-0a0b0c0d0e0f)" in told.stdout
    assert "on NVIDIA H200 MIG 1g.18gb (MIG-0f0e0d0c-" in told.stdout
    told = CliRunner().invoke(alpha_mpi(), ["show", str(store), "--tree", "--json"])
    rows = json.loads(told.stdout)["manifests"]
    assert [row["devices"][0]["owner"] for row in rows] == [0, 1] and rows[1]["devices"][0][
        "mig"
    ] == "1g.18gb"
    told = CliRunner().invoke(alpha_mpi(), ["show", str(store)])
    assert "NVIDIA H200 + NVIDIA H200 MIG 1g.18gb" in told.stdout


def test_a_copy_keeps_them(tmp_path: pathlib.Path) -> None:
    store = shutil.copytree(GOLDEN, tmp_path / "s")
    told = CliRunner().invoke(alpha_mpi(), ["cp", str(store), "latest", str(tmp_path / "t")])
    assert told.exit_code == 0, told.output
    both = [
        json.loads(CliRunner().invoke(alpha_mpi(), ["show", str(path), "--tree", "--json"]).stdout)[
            "manifests"
        ]
        for path in (store, tmp_path / "t")
    ]
    assert [row["devices"] for row in both[0]] == [row["devices"] for row in both[1]]
