"""Gate: trees of many roles. What each role is sent, receives and opens is bounded by fan-out and depth."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

import shim
from alpha_mpi.cli import alpha_mpi
from alpha_mpi.testing import launch

JOB = str(pathlib.Path(__file__).with_name("tree_job.py"))
FAN_OUT = 4
#: Most bytes of one message of a save; an owner's words are 128 KiB and more.
MESSAGE = 4096


def job(
    work: str,
    store: pathlib.Path,
    ranks: int,
    fan_out: int,
    limit: float,
    extra: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Run tree_job.py; return what each role observed."""
    out = store.with_suffix(f".{work}.json")
    command = [*launch.mpiexec(ranks), sys.executable, JOB, str(store), work, str(fan_out), str(out)]
    told = subprocess.run(
        command, env=launch.environment(extra), capture_output=True, text=True, timeout=limit, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def opened(trace: pathlib.Path, pattern: str) -> list[tuple[int, str]]:
    """Return (rank, name) of every opening, to read, of a file whose name matches."""
    calls = [c for c in shim.read_trace(trace) if c.op == "openat" and c.result >= 0]
    reads = [c for c in calls if not c.extra & (os.O_CREAT | os.O_DIRECTORY)]
    return [
        (c.rank, os.path.basename(c.path)) for c in reads if re.fullmatch(pattern, os.path.basename(c.path))
    ]


@pytest.mark.parametrize(
    ("ranks", "limit"),
    [
        pytest.param(32, 240, marks=pytest.mark.timeout(500)),
        pytest.param(64, 600, marks=[pytest.mark.timeout(1200), pytest.mark.slow]),
    ],
)
def test_a_tree_of_many_roles(tmp_path: pathlib.Path, ranks: int, limit: float) -> None:
    store, trace = tmp_path / "s", tmp_path / "trace"
    roles = job("publish", store, ranks, FAN_OUT, limit)
    assert max(role["depth"] for role in roles) >= 2
    for role in roles:
        # One commitment of each child in each of the two saves, and of nobody else.
        assert role["commitments"] == {str(child): 2 for child in role["children"]}
        assert len(role["commitments"]) <= FAN_OUT
        assert role["largest"] <= MESSAGE and not role["words"], role
        assert role["bytes"] <= 2 * 16 * MESSAGE, role
    largest = max(role["largest"] for role in roles)
    print(f"{ranks} ranks, two saves: {roles[0]['seconds']} s, largest message {largest} bytes")

    roles = job("resume", store, ranks, FAN_OUT, limit, shim.env(store, trace=trace))
    for role in roles:
        assert role["update"] == 2 and role["exact"], role
        # The manifests from the root to itself: depth + 1 of them, and no other.
        assert role["manifests"] == [role["path"]] and len(role["path"]) == role["depth"] + 1
        # One window for its children, one Get from its parent's; never a broadcast.
        assert role["windows"] == (1 if role["children"] else 0)
        assert role["gets"] == ([1] if role["role"] else [])
    manifests = opened(trace, r"\d+\.manifest\.json")
    assert sorted(manifests) == [(r, f"{r:06d}.manifest.json") for r in range(1, ranks)]
    assert opened(trace, r"e000001-000002\.json") == [(0, "e000001-000002.json")]
    assert sorted(set(opened(trace, r"\d+\.pack"))) == [(r, f"{r:06d}.pack") for r in range(ranks)]
    assert max(collections.Counter(opened(trace, r"\d+\.pack")).values()) == 1
    print(f"{ranks} ranks, resume: {roles[0]['seconds']} s")
    found = CliRunner().invoke(alpha_mpi(), ["verify", str(store)])
    assert found.exit_code == 0, found.output


@pytest.mark.timeout(400)
def test_a_mesh_and_a_large_replicated_region(tmp_path: pathlib.Path) -> None:
    store = tmp_path / "s"
    for role in job("mesh", store, 4, 2, 180):
        assert role["update"] == 1 and role["exact"], role
    # Dealt to the root (owner 0) and its children (1 and 3): 22 of 66 chunks each, and none to 2.
    # Of the mesh owners 0 and 1 write; 2 and 3 hold the same, so that 2 has no pack at all.
    sizes = {int(p.stem): p.stat().st_size for p in store.rglob("*.pack")}
    assert sorted(sizes) == [0, 1, 3]
    assert all(size > 21 << 20 for size in sizes.values()), sizes
    assert sum(sizes.values()) < (65 << 20) + (1 << 20)
