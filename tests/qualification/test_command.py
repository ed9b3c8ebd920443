"""alpha-mpi qualify from end to end: what it covers, that it leaves nothing, and that it can be stopped."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import alpha_mpi as am
from alpha_mpi.cli import alpha_mpi
from alpha_mpi.qualification.check import TITLES, Plan, not_tried
from alpha_mpi.qualification.conduct import Conductor
from alpha_mpi.qualification.interrupts import Interrupts
from alpha_mpi.qualification.scratch import Scratch
from alpha_mpi.testing import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEYS = ["probe", "shared", "race", "visibility", "kills", "damage", "equivalence", "speed"]


def start(*words, ranks=0, extra=None):
    """Start the command in a session of its own."""
    command = [sys.executable, "-m", "alpha_mpi.cli", "qualify", *map(str, words)]
    if ranks:
        command = [*launch.mpiexec(ranks), *command]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = launch.environment({"PYTHONPATH": paths, **(extra or {})})
    return subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def answer(*words, **how):
    """Run the command with --json; return (exit code, what it answered)."""
    process = start(*words, "--json", **how)
    out, errors = process.communicate(timeout=280)
    assert out.strip(), errors
    return process.returncode, json.loads(out)


def verdicts(data):
    return {check["key"]: check["verdict"] for check in data["checks"]}


@pytest.fixture
def used(tmp_path):
    """A store in use, with two generations."""
    path = tmp_path / "used"
    state = am.State()
    words = np.zeros(50)
    state.replicate("words", words)
    with am.Checkpointer(path, state) as ckpt:
        ckpt.resume()
        for update in (1, 2):
            words += 1
            ckpt.save(update)
    return path


def contents(path):
    return {str(p.relative_to(path)): p.is_file() and p.read_bytes() for p in sorted(path.rglob("*"))}


def test_alone_without_mpi_in_a_store_in_use(used, tmp_path):
    """Processes that it joins itself; what lies in the store stays as it is."""
    before = contents(used)
    page = tmp_path / "page.html"
    options = ("--quick", "--ranks", 2, "-o", page)
    code, data = answer(used, *options, extra={launch.OVERRIDE: "no-such-program"})
    assert code == 0, data["verdict"]
    assert contents(used) == before
    assert [check["key"] for check in data["checks"]] == KEYS
    found = verdicts(data)
    assert found.pop("equivalence") == found.pop("damage") == "partly"  # one owner
    assert found.pop("shared") == found.pop("visibility") == "not tried"
    assert set(found.values()) == {"held"}
    assert data["facts"]["started"].startswith("alone; no MPI: ALPHA_MPI_MPIEXEC names no-such-program")
    assert data["verdict"].startswith(
        "NOTHING FAILED, in a first look, which qualifies nothing, but not covered"
    )
    assert not data["qualified"] and data["rows"] == []
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and data["verdict"] in text and text.count("<svg") >= 3


@pytest.mark.slow
def test_alone_it_starts_ranks_of_its_own(tmp_path):
    path = tmp_path / "not" / "there"
    code, data = answer(path, "--quick", "--ranks", 3)
    found = verdicts(data)
    assert code == 0, data["verdict"]
    assert found.pop("visibility") == "not tried" and set(found.values()) == {"held"}
    assert not (tmp_path / "not").exists()  # what it made above its scratch is gone too
    assert data["facts"]["started"] == "alone; 3 ranks by mpiexec"
    fresh = data["checks"][KEYS.index("equivalence")]["tables"][1]
    assert (
        fresh["title"] == "in fresh processes"
        and "interrupted after update 3: the same" in fresh["rows"][0][0]
    )


@pytest.mark.slow
def test_under_mpiexec_the_ranks_are_the_team(tmp_path):
    process = start(tmp_path, "--quick", "-o", tmp_path / "page.html", ranks=4)
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, out + errors
    assert out.count("Qualification of") == 1 and "4 ranks on 1 node" in out
    assert "qualifies nothing, but not covered: a fresh name is seen from other nodes (not tried)" in out
    assert f" mpiexec -n 4 alpha-mpi qualify {tmp_path} --quick\n" in out
    assert "QUALIFIED" not in out and "docs/qualification.md" not in out
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_place_where_nothing_can_be_made(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    result = CliRunner().invoke(alpha_mpi(), ["qualify", str(file), "--quick", "--json"])
    data = json.loads(result.stdout)
    found = verdicts(data)
    assert result.exit_code == 1 and found.pop("probe") == "failed" and set(found.values()) == {"not tried"}
    assert data["verdict"] == "NOT QUALIFIED: what the file system gives (failed)"
    assert file.read_text() == "mine"


def test_a_page_that_cannot_be_written_is_said_before_minutes_go_by(tmp_path):
    for page in (tmp_path / "missing" / "page.html", tmp_path):
        result = CliRunner().invoke(alpha_mpi(), ["qualify", str(tmp_path), "-o", str(page)])
        assert result.exit_code == 2 and "-o" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_page_that_could_not_be_written_takes_no_report_with_it(tmp_path, monkeypatch):
    file, page = tmp_path / "file", tmp_path / "page.html"
    file.touch()

    def full(self, text, encoding):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    result = CliRunner().invoke(alpha_mpi(), ["qualify", str(file), "-o", str(page)])
    assert result.exit_code == 1 and "NOT QUALIFIED: what the file system gives" in result.stdout
    assert f"the page could not be written: {page}: No space left on device" in result.stdout


def test_ranks_are_not_started_under_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setattr("alpha_mpi.cli.ranks.size", lambda: 2)
    result = CliRunner().invoke(alpha_mpi(), ["qualify", str(tmp_path), "--ranks", "3"])
    assert result.exit_code == 2 and "--ranks is for" in result.stderr


@pytest.mark.parametrize(
    "free, files, said", [(1 << 20, 10**6, "bytes are free"), (1 << 30, 50, "files can still")]
)
def test_a_full_file_system_is_named_once_and_nothing_is_tried(tmp_path, monkeypatch, free, files, said):
    left = os.statvfs_result((4096, 4096, 10**6, 10**6, 10**6, 10**6, files, files, 0, 255))
    monkeypatch.setattr("alpha_mpi.store.space.available", lambda directory: free)
    monkeypatch.setattr("os.fstatvfs", lambda fd: left)
    report = Conductor(str(tmp_path), Plan(), "qualify").alone()
    assert [check.key for check in report.failed] == ["probe"] and said in report.failed[0].found
    assert len(report.open) == len(KEYS) - 1 and not list(tmp_path.iterdir())
    assert any(line.startswith("  to do:    give rights or room") for line in report.lines())


def test_a_second_signal_does_not_disturb_who_ends_processes(monkeypatch):
    """An interrupt between stopping and killing a job would leave it stopped for ever."""
    monkeypatch.setattr("alpha_mpi.qualification.interrupts.AGAIN", 0.05)
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    with Interrupts() as interrupts:
        interrupts.again = True
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
        interrupts.quiet.set()


def test_a_path_is_needed():
    result = CliRunner().invoke(alpha_mpi(), ["qualify"])
    assert result.exit_code == 2 and "PATH is missing" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_stopped_it_removes_its_scratch(used, number):
    before = contents(used)
    process = start(used, extra={launch.OVERRIDE: "no-such-program"})
    limit = time.monotonic() + 60
    while not list(used.glob("qualify-*/race/race-*")):
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.02)
    below = launch.descendants(process.pid)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and not out and errors.strip() == "alpha-mpi: interrupted"
    assert contents(used) == before
    limit = time.monotonic() + 20
    while below and any(os.path.exists(f"/proc/{pid}") for pid in below):
        assert time.monotonic() < limit, below
        time.sleep(0.02)
    assert below  # the ranks that it had started


@pytest.mark.slow
def test_stopped_under_mpiexec_it_removes_its_scratch(tmp_path):
    process = start(tmp_path, ranks=3)
    limit = time.monotonic() + 60
    while not list(tmp_path.glob("qualify-*/race/race-*")):
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0 and not list(tmp_path.iterdir())


HANGS = """
import sys, time
from alpha_mpi.qualification import conduct, steps
conduct.GRACE = 0.2
conduct.Plan.limit = lambda self, key: 0.3
{broken} = lambda *a, **k: time.sleep(600)
from alpha_mpi.cli import main
main()
"""


@pytest.mark.parametrize("key", ["probe", pytest.param("shared", marks=pytest.mark.slow)])
def test_a_process_that_hangs_says_so_and_ends(tmp_path, key):
    """As on a file system that answers no more: the page names the check, and what it could not remove."""
    ranks, broken = {"probe": (0, "steps.probing.probe"), "shared": (2, "steps.await_name")}[key]
    command = [sys.executable, "-c", HANGS.format(broken=broken), "qualify", str(tmp_path), "--quick"]
    if ranks:
        command = [*launch.mpiexec(ranks), *command]
    env = launch.environment({"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])})
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert told.returncode != 0
    assert f"NOT QUALIFIED: {TITLES[key].lower()} (failed)" in told.stdout, told.stdout + told.stderr
    assert "the first rank hangs: this had not ended after" in told.stdout
    [scratch] = tmp_path.glob("qualify-*")
    assert f"could not be removed: {scratch} (the first rank hangs there)" in told.stdout


def test_what_cannot_be_removed_is_named(tmp_path, monkeypatch):
    scratch = Scratch(tmp_path / "new")
    scratch.make()
    monkeypatch.setattr("shutil.rmtree", lambda path, ignore_errors: None)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    left = scratch.remove()
    assert left[0] == scratch.home and scratch.part("race") in left
    monkeypatch.undo()
    assert scratch.remove() == [] and not (tmp_path / "new").exists()


def test_another_scratch_is_named_and_left_alone(tmp_path):
    other = tmp_path / "qualify-0123456789abcdef"
    other.mkdir()
    (tmp_path / "qualify-mine").mkdir()
    scratch = Scratch(tmp_path)
    scratch.make()
    assert scratch.earlier() == [str(other)]
    scratch.remove()
    assert sorted(os.listdir(tmp_path)) == [other.name, "qualify-mine"]


def test_ranks_that_end_before_their_time_are_a_failed_check(tmp_path, monkeypatch):
    conductor = Conductor(str(tmp_path), Plan.of(1, 1 << 20, True), "qualify", 2)
    program = 'print(\'{"begun": "race"}\', flush=True); raise SystemExit(7)'
    monkeypatch.setattr(Conductor, "_member", lambda self, how, keys: [sys.executable, "-c", program])
    conductor._run([], 1, ("shared", "race", "speed"), None)
    found = {check.key: check for check in conductor.report().checks}
    assert found["race"].verdict == "failed" and found["race"].found == "the ranks ended with code 7"
    assert found["speed"].verdict == found["shared"].verdict == "not tried"


def test_ranks_that_hang_are_killed_and_the_check_named(tmp_path, monkeypatch):
    conductor = Conductor(str(tmp_path), Plan.of(1, 1 << 20, True), "qualify", 2)
    program = """echo '{"begun": "speed"}'; exec sleep 600"""
    monkeypatch.setattr(Conductor, "_member", lambda self, how, keys: ["/bin/sh", "-c", program])
    monkeypatch.setattr(Plan, "limit", lambda self, key: 0.3)
    conductor._run([], 1, ("race", "speed"), None)
    check = conductor.checks["speed"]
    assert check.verdict == "failed" and check.found == "the ranks hung, and were killed"


def test_what_the_ranks_did_not_try_is_not_tried_in_fresh_processes(tmp_path, monkeypatch):
    conductor = Conductor(str(tmp_path), Plan(), "qualify", 2)
    before = conductor.checks["equivalence"] = not_tried("equivalence", "the ranks do not see one directory")
    monkeypatch.setattr("alpha_mpi.qualification.conduct.resume_equivalence", None)
    conductor._fresh()
    assert conductor.checks["equivalence"] is before


def test_a_joined_process_that_hangs_is_killed(tmp_path, monkeypatch):
    conductor = Conductor(str(tmp_path), Plan.of(1, 1 << 20, True), "qualify", 2)
    monkeypatch.setattr(
        Conductor, "_member", lambda self, how, keys: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    monkeypatch.setattr(Plan, "limit", lambda self, key: 0.1)
    conductor._pipes(("race", "visibility"))
    assert conductor.checks["race"].found == "process 0 hung, and was killed"
