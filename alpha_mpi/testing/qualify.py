"""Qualify: whether saves and resumes hold on the GPUs of this machine, and how fast they are.

A *qualification* runs small jobs in fresh processes on every device, and makes one *row* for each,
as docs/qualification.md keeps them. What it cannot do, it says.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from ..devices.identity import Identity
from ..errors import Refused
from . import launch
from .gpu_leg import words_of

#: Bytes that are staged and saved to measure with.
NBYTES = 1 << 30
#: Longest time of one leg, in seconds.
TIMEOUT = 600.0


@dataclasses.dataclass(frozen=True)
class Row:
    """What was found on one device. `speeds` are bytes per second, by name."""

    device: Identity
    date: str
    ranks: int
    cards: int
    checks: dict[str, str]
    speeds: dict[str, float]

    @property
    def fine(self) -> bool:
        """Whether every check held."""
        return all(found == "yes" for found in self.checks.values())

    def line(self, command: str) -> str:
        """Return the row of docs/qualification.md."""
        speed = {name: f"{value / 1e9:.2f}" for name, value in self.speeds.items()}
        where = f"{self.device.product}, {self.ranks} ranks on {self.cards} devices"
        cells = [self.date, where, *self.checks.values()]
        cells += [f"{speed['staged_out']} / {speed['staged_in']}", speed["plain"]]
        saves = f"{speed['save']}, {speed.get('direct', 'no')}"
        cells += [f"{saves} / {speed['floor']}", f"`{command}`"]
        return f"| {' | '.join(cells)} |"


class Qualification:
    """Runs the legs on devices of these identities, in a folder that is left clean.

    `program` are the words that start a leg; `ranks` how many of them train together (more than one
    are started by the launcher; rank k uses device k modulo the number of devices). `run` runs words
    in a fresh process.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        devices: Sequence[Identity],
        ranks: int | None = None,
        nbytes: int = NBYTES,
        program: Sequence[str] = (sys.executable, "-m", "alpha_mpi.testing.gpu_leg"),
        run: Callable[[list[str]], subprocess.CompletedProcess[str]] | None = None,
    ) -> None:
        self.folder = folder
        self.devices = list(devices)
        self.ranks = max(2, len(devices)) if ranks is None else ranks
        self.nbytes = nbytes
        self.program = list(program)
        self._run = run or _fresh

    def rows(self) -> list[Row]:
        """Return one row for each device.

        Raises `Refused` (``run-failed``) for a leg that crashed, or that was refused where no refusal
        is tried: there is nothing to compare then.
        """
        today = datetime.date.today().isoformat()
        found = []
        for number, device in enumerate(self.devices):
            self.folder.mkdir(parents=True, exist_ok=True)
            home = pathlib.Path(tempfile.mkdtemp(prefix=f"qualify-gpu-{number}-", dir=self.folder))
            try:
                checks = self._checks(home, number)
                speeds = _done(self._leg("staging", home, number, str(self.nbytes), ranks=1))
                values = {name: float(str(value)) for name, value in speeds.items()}
            finally:
                shutil.rmtree(home, ignore_errors=True)
            found.append(Row(device, today, self.ranks, len(self.devices), checks, values))
        return found

    def _checks(self, home: pathlib.Path, number: int) -> dict[str, str]:
        whole, cut = home / "whole", home / "cut"
        through = _done(self._leg("train", whole, number, "5"))
        _done(self._leg("train", cut, number, "3"))
        resumed = self._leg("train", cut, number, "5")
        same = resumed.get("begun") == 3 and words_of(str(whole)) == words_of(str(cut))
        checks = {
            "resume": "yes" if same else "no",
            "shadow": "yes" if through.get("shadow") and resumed.get("shadow") else "no",
        }
        refused = [self._leg("train", cut, number, "6", other) for other in ("product", "uuid")]
        if len(self.devices) > 1:  # really on another card, not only said so
            refused.append(self._leg("train", cut, number + 1, "6"))
        wrong = all(one.get("refused") == "wrong-device" for one in refused)
        checks["wrong device"] = "yes" if wrong else "no"
        _flip(cut)
        damaged = self._leg("train", cut, number, "6")
        checks["corrupt chunk"] = "yes" if damaged.get("refused") == "corrupt-shard" else "no"
        return checks

    def _leg(
        self, what: str, folder: pathlib.Path, device: int, *more: str, ranks: int | None = None
    ) -> dict[str, object]:
        """Run one leg in processes of its own; return what it found."""
        count = ranks or self.ranks
        words = [*self.program, what, str(folder), str(device), *more]
        if count > 1:
            words = [*launch.mpiexec(count), *words]
        told = self._run(words)
        lines = [line for line in told.stdout.splitlines() if line.startswith("{")]
        if told.returncode or not lines:
            raise Refused(
                f"a job of the qualification ended by {told.returncode}: {told.stderr[-800:]}",
                code="run-failed",
                found=" ".join(words)[-200:],
            )
        found: dict[str, object] = json.loads(lines[-1])
        return found


def _done(found: dict[str, object]) -> dict[str, object]:
    """Return what a leg found, if it came to its end."""
    if "refused" in found:
        raise Refused(
            f"a job of the qualification was refused: {found.get('message')}",
            code="run-failed",
            found=str(found["refused"]),
        )
    return found


def _fresh(words: list[str]) -> subprocess.CompletedProcess[str]:
    env = launch.environment()
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, env=env)


def _flip(store: pathlib.Path) -> None:
    """Change one bit of a payload in the newest pack that holds one."""
    newest = max(store.rglob("[0-9]*.pack"), key=lambda pack: pack.parent.parent.name)
    data = bytearray(newest.read_bytes())
    data[128] ^= 1  # the first payload begins right behind the header
    newest.write_bytes(data)
