"""alpha-mpi qualify --gpu: what it tries, and that it sees what is wrong. Numbers of a fake mean nothing."""

from __future__ import annotations

import contextlib
import io
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from fake_device import CARD, NEWER, Fake, Math
from fake_kvikio import Kvikio

import alpha_mpi as am
from alpha_mpi.devices import runtime as seam
from alpha_mpi.learning import DataParallel
from alpha_mpi.testing import gpu_leg, launch
from alpha_mpi.testing.qualify import Qualification, Row

ROOT = pathlib.Path(__file__).resolve().parents[2]


def in_process(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a leg here: quick, and without the fresh process."""
    said = io.StringIO()
    with seam.replaced(Fake(CARD, NEWER)), contextlib.redirect_stdout(said):
        gpu_leg.main(words[words.index("leg") + 1 :])
    return subprocess.CompletedProcess(words, 0, said.getvalue(), "")


def qualification(folder: pathlib.Path, **more: Any) -> Qualification:
    given = {"ranks": 1, "nbytes": 2 << 20, "program": ["leg"], "run": in_process}
    return Qualification(folder, [CARD, NEWER], **{**given, **more})


def test_all_holds(tmp_path: pathlib.Path) -> None:
    rows = qualification(tmp_path).rows()
    assert [row.device for row in rows] == [CARD, NEWER] and all(row.fine for row in rows)
    assert set(rows[0].checks) == {"resume", "shadow", "wrong device", "corrupt chunk"}
    assert set(rows[0].speeds) == {"staged_out", "staged_in", "plain", "save", "floor"}
    assert not list(tmp_path.iterdir()), "nothing is left"
    part = (ROOT / "docs/qualification.md").read_text().partition("\n## GPUs\n")[2]
    head = [line for line in part.splitlines() if line[:1] == "|"]
    line = rows[0].line("alpha-mpi qualify --gpu")
    assert line.count("|") == head[0].count("|") and CARD.product in line


@pytest.mark.parametrize("refuses", ["", "no O_DIRECT here"])
def test_direct_writes_are_measured(
    tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any, refuses: str
) -> None:
    """Beside the save by the host's memory, where the store can; else why not is said."""
    kvikio = Kvikio()
    kvikio.install(monkeypatch)
    kvikio.refuses = refuses
    speeds = qualification(tmp_path)._leg("staging", tmp_path, 0, str(2 << 20), ranks=1)
    assert ("direct" in speeds) == (not refuses) == bool(kvikio.writes)
    assert (refuses in capsys.readouterr().err) and speeds["save"]
    row = Row(CARD, "2026-01-01", 1, 1, {}, {**dict.fromkeys(("staged_out", "staged_in", "plain"), 1e9)})
    row.speeds.update(save=2e9, floor=3e9)
    assert "| 2.00, no / 3.00 |" in row.line("x")
    row.speeds["direct"] = 4e9
    assert "| 2.00, 4.00 / 3.00 |" in row.line("x")


@pytest.mark.parametrize("broken", ["resume", "shadow", "wrong device", "corrupt chunk"])
def test_what_does_not_hold_is_seen(tmp_path: pathlib.Path, monkeypatch: Any, broken: str) -> None:
    if broken == "resume":
        monkeypatch.setattr("alpha_mpi.learning.DataParallel.stand_at", lambda self, moment: None)
        monkeypatch.setattr("alpha_mpi.checkpointer.Checkpointer.save", lambda *a, **k: None)
        monkeypatch.setattr("alpha_mpi.testing.qualify.words_of", lambda path: {"w": path})
        monkeypatch.setattr("alpha_mpi.testing.qualify._flip", lambda store: None)
    elif broken == "shadow":
        step = DataParallel.step

        def other_bits(self: DataParallel) -> float:
            loss = step(self)
            if isinstance(self.parameters, Math):
                self.parameters.data[0] += 2.0**-40
            return loss

        monkeypatch.setattr("alpha_mpi.learning.DataParallel.step", other_bits)
    elif broken == "wrong device":
        monkeypatch.setattr("alpha_mpi.restore.resume.agree_on_devices", lambda *a: a[-2])
    else:
        monkeypatch.setattr("alpha_mpi.testing.qualify._flip", lambda store: None)
    found = qualification(tmp_path)._checks(tmp_path, 0)
    assert found[broken] == "no", found


@pytest.mark.parametrize("cards", [1, 2, 3])
def test_every_gpu_is_used_and_one_is_shared(tmp_path: pathlib.Path, monkeypatch: Any, cards: int) -> None:
    """As many ranks as devices, at least two, each on a device of its own where there are enough."""
    there = [CARD, NEWER, CARD._replace(uuid="GPU-dddddddd-0000-0000-0000-000000000009")][:cards]
    launched: list[list[str]] = []

    def run(words: list[str]) -> Any:
        launched.append(words)
        return in_process(words)

    found = Qualification(tmp_path, there, nbytes=1 << 20, program=["leg"], run=run)
    assert found.ranks == max(2, cards)
    words = ["leg", "train", str(tmp_path / "s"), "0", "1"]
    run_by_launcher = found._leg("train", tmp_path / "s", 0, "1")
    assert run_by_launcher["update"] == 1
    assert launched[0][-len(words) :] == words
    assert launched[0][: -len(words)] == launch.mpiexec(max(2, cards))
    used: list[int] = []
    monkeypatch.setattr(gpu_leg, "train", lambda folder, device, stop: used.append(device) or {})
    for device in range(cards):
        for rank in range(found.ranks):
            monkeypatch.setenv("PMI_RANK", str(rank))
            with seam.replaced(Fake(*there)), contextlib.redirect_stdout(io.StringIO()):
                gpu_leg.main(["train", "s", str(device), "1"])
        assert set(used) == set(range(cards)) and len(used) == found.ranks
        assert used[0] == device, "the row's own device is that of rank 0"
        used.clear()


def test_a_leg_that_crashes(tmp_path: pathlib.Path) -> None:
    with pytest.raises(am.Refused, match="boom") as told:
        crash = [sys.executable, "-c", "raise SystemExit('boom')"]
        qualification(tmp_path, program=crash, run=None).rows()
    assert told.value.code == "run-failed" and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_in_fresh_processes_on_two_ranks(tmp_path: pathlib.Path) -> None:
    program = [sys.executable, str(pathlib.Path(__file__).with_name("fake_leg.py"))]
    rows = qualification(tmp_path, ranks=2, program=program, run=None).rows()
    assert all(row.fine for row in rows), rows


@pytest.mark.parametrize("what", ["train", "staging"])
def test_a_leg_that_is_refused(tmp_path: pathlib.Path, what: str) -> None:
    """A full disk, say: the reason is told, and no row is made of it."""

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        if what in words:
            told = '{"refused": "no-space", "message": "no space left"}'
            return subprocess.CompletedProcess(words, 0, told, "")
        return in_process(words)

    with pytest.raises(am.Refused, match="no space left") as told:
        qualification(tmp_path, run=run).rows()
    assert (told.value.code, told.value.found) == ("run-failed", "no-space") and not list(tmp_path.iterdir())


def test_what_lies_there_stays(tmp_path: pathlib.Path) -> None:
    """The folder may hold whatever it likes: only what was made here is removed."""
    for name in ("qualify-0", "qualify-gpu-0", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    assert len(qualification(tmp_path).rows()) == 2 and sorted(tmp_path.rglob("*")) == before


def test_without_a_gpu_nothing_is_qualified(monkeypatch: Any) -> None:
    from click.testing import CliRunner

    from alpha_mpi.cli import alpha_mpi, qualify

    for found, why in ((None, "CuPy is not installed"), ([], "CuPy sees no GPU")):
        monkeypatch.setattr(qualify, "identities", lambda found=found: found)
        told = CliRunner().invoke(alpha_mpi(), ["qualify", "--gpu"])
        assert told.exit_code == 1 and "nothing was qualified" in told.stderr and why in told.stderr
        assert "[no-gpu]" in told.stderr and not told.stdout
    assert CliRunner().invoke(alpha_mpi(), ["qualify"]).exit_code == 2
    for word in (["--quick"], ["--minutes", "1"]):  # no such look at a GPU: not silently a whole one
        told = CliRunner().invoke(alpha_mpi(), ["qualify", "--gpu", *word])
        assert told.exit_code == 2 and "are for stores" in told.output


def test_the_command_prints_rows(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    from click.testing import CliRunner

    from alpha_mpi.cli import alpha_mpi, qualify

    made = [qualification(tmp_path)]
    monkeypatch.setattr(qualify, "identities", lambda: [CARD])
    monkeypatch.setattr("alpha_mpi.testing.qualify.Qualification", lambda folder, *_: made[0])
    told = CliRunner().invoke(alpha_mpi(), ["qualify", "--gpu", "--in", str(tmp_path), "--size", "2"])
    assert told.exit_code == 0 and str(CARD) in told.stdout, told.output
    assert f"`alpha-mpi qualify {tmp_path} --gpu --size 2`" in told.stdout, "what would make it again"


@pytest.mark.gpu
def test_on_the_gpus_of_this_machine(tmp_path: pathlib.Path) -> None:
    """The real thing."""
    from alpha_mpi.devices.presence import identities

    rows = Qualification(tmp_path, identities() or [], nbytes=256 << 20).rows()
    assert rows and all(row.fine for row in rows), rows
