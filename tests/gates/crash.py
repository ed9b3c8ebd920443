"""Crashes and faults on purpose: plans for crash_job.py, launches, and the judgement afterwards.

A *plan* is a list of steps that every rank of one launch carries out. The judge is the library's
own reader, in this process and without MPI.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from alpha_mpi.errors import CheckpointError
from alpha_mpi.restore import choose
from alpha_mpi.restore.verify import verify
from alpha_mpi.store import names
from alpha_mpi.store.store import Store
from alpha_mpi.testing import launch

PROGRAM = pathlib.Path(__file__).with_name("crash_job.py")
#: Longest time of one launch, in seconds; machines under test may be loaded.
LIMIT = 240


def step(do: str, note: str = "", **arguments: Any) -> dict[str, Any]:
    """Return one step: a method of crash_job.Runner and its arguments."""
    return {"do": do, "note": note, "with": arguments}


@dataclasses.dataclass(frozen=True)
class Launched:
    """What a launch left: `lines[rank]` are the steps that this rank finished."""

    status: int
    lines: list[list[dict[str, Any]]]
    output: str

    def on_all(self) -> list[list[dict[str, Any]]]:
        """Return, for every step, what each rank says of it; a launch that failed fails here."""
        assert self.status == 0, self.output[-4000:]
        assert len({len(lines) for lines in self.lines}) == 1, self.output[-4000:]
        return [list(step) for step in zip(*self.lines, strict=True)]


def run(
    ranks: int,
    fan_out: int,
    steps: Sequence[Mapping[str, Any]],
    *,
    ack: pathlib.Path | None = None,
    environment: Mapping[str, str] | None = None,
    rows: int = 33,
    limit: float = LIMIT,
) -> Launched:
    """Start one job (`fan_out` 0: a star) and wait; whatever outlives its limit is killed."""
    with tempfile.TemporaryDirectory(prefix="am-crash-") as folder:
        plan = {"fan_out": fan_out, "steps": list(steps), "out": folder, "rows": rows}
        plan["ack"] = None if ack is None else str(ack)
        file = pathlib.Path(folder) / "plan.json"
        file.write_text(json.dumps(plan))
        job = launch.start(
            ranks,
            [sys.executable, str(PROGRAM), str(file)],
            environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            output, _ = job.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            job.kill()
            output, _ = job.process.communicate()
            output += f"\n(killed after {limit} s)"
        lines = []
        for rank in range(ranks):
            told = pathlib.Path(folder) / f"rank-{rank}.jsonl"
            lines.append([json.loads(t) for t in told.read_text().splitlines()] if told.exists() else [])
        return Launched(job.process.returncode, lines, output)


@dataclasses.dataclass(frozen=True)
class Judged:
    """What the library's own reader says of a store.

    `newest` is the name of the newest generation and `update` its update (None, 0: none);
    `problems` is empty if it and everything it follows is whole.
    """

    newest: str | None
    update: int
    epoch: int
    problems: list[str]


def judge(path: pathlib.Path) -> Judged:
    """Read a store as a command would: every byte of every generation of the lineage."""
    with Store.open(path) as store:
        try:
            seen = choose.survey(store)
        except (CheckpointError, OSError) as error:
            return Judged(None, 0, 0, [str(error)])
        problems = [str(seen.damage)] if seen.damage is not None else []
        problems += [str(error) for _, error in seen.damaged]
        problems += [f"stranger {name}" for name in seen.strangers]
        for position in seen.lineage:
            problems += [str(problem) for problem in verify(store, *position).problems]
        if seen.newest is None:
            return Judged(None, 0, seen.epoch, problems)
        moment = seen.newest.manifest.prefix.moment
        return Judged(seen.newest.name, moment.update, seen.epoch, problems)


def leftovers(path: pathlib.Path, current: int) -> list[str]:
    """Return what nothing names: attempts that no root names, temporary files.

    Those of the epoch `current` are the next continuation's to remove.
    """
    found = []
    with Store.open(path) as store:
        seen = choose.survey(store)
        named, _ = choose.named(store, seen)
        for name in store.data.names():
            attempt = names.parse_attempt(name)
            if attempt is not None and attempt.epoch < current and attempt not in named:
                found.append(f"{names.DATA}/{name}")
    for file in sorted(path.rglob(".*")):
        name = str(file.relative_to(path))
        # A probe's scratch may be that of another job which opens the store just now.
        if not name.startswith(".probe."):
            found.append(name)
    return found


def files(path: pathlib.Path) -> dict[str, bytes]:
    """Return every file below a store."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
