"""Kills and damage: what holds passes, and each fails when it is broken. In a process without MPI."""

import json
import os
import signal
import subprocess
import sys
import textwrap

from alpha_mpi.qualification import steps, warden
from alpha_mpi.qualification.check import FAILED, HELD, PARTLY, Check, Plan
from tests.qualification.team import plan

BEGIN = """
import json, os, pathlib, signal, sys, time
from alpha_mpi.qualification import warden
warden.alone()
from alpha_mpi.qualification import damage, kills, learners
from alpha_mpi.qualification.check import Plan
plan = Plan(**json.loads(sys.argv[1]))
store = sys.argv[2]
"""


def done(what, store, given, code=""):
    """Do a check in a process that was changed by `code` first."""
    script = BEGIN + textwrap.dedent(code) + f"\nprint(json.dumps({what}.{what}(store, plan).as_data()))"
    told = subprocess.run(
        [sys.executable, "-c", script, json.dumps(vars(given)), str(store)],
        env=warden.environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert told.returncode == 0, told.stderr
    return Check.from_data(json.loads(told.stdout))


def test_every_kill_leaves_a_whole_generation(tmp_path):
    check = done("kills", tmp_path / "store", plan(minutes=5, kills=6))
    assert check.verdict == HELD, check
    rows = {what: (int(previous), int(new)) for what, previous, new in check.tables[0].rows}
    for kind in ("claim", "seal", "root", "pack"):
        assert rows[f"{kind} closed"] == (1, 0)
    assert rows["root renamed"] == (0, 1)  # the rename is the publication
    assert rows["seal renamed"] == rows["pack renamed"] == rows["claim renamed"] == (1, 0)
    assert check.figures["kills"] == 6 + len(rows) - 1 and len(rows) == 21
    assert sum(rows["by chance"]) == 6
    assert check.figures["whole"] == 3  # what retention keeps


def test_a_lost_generation_fails(tmp_path):
    code = """
    real = kills.life
    def life(store, say, **more):
        real(store, say, **more)
        max(pathlib.Path(store, "published").glob("*.json")).unlink()
    kills.life = life
    kills._moments = lambda told: []
    """
    check = done("kills", tmp_path / "store", plan(minutes=5, kills=0, quick=True), code)
    assert check.verdict == FAILED
    assert "after a life that ended well: update 2 was resumed; saved was 3, under way 3" in check.notes


def test_torn_words_fail(tmp_path):
    code = """
    real = kills.Words.at
    def at(self, update):
        real(self, update)
        self.mean[5] = os.getpid()
    kills.Words.at = at
    kills._moments = lambda told: [("entry", "closed")]
    """
    check = done("kills", tmp_path / "store", plan(minutes=5, kills=0, quick=True), code)
    assert check.verdict == FAILED and "with other words in ['mean']" in check.found


def test_a_life_that_was_to_die_and_lives_fails(tmp_path):
    code = """
    kills.die_at = lambda *moment: None
    kills._moments = lambda told: [("entry", "closed")]
    """
    check = done("kills", tmp_path / "store", plan(minutes=5, kills=0, quick=True), code)
    assert check.verdict == FAILED and "the process was to die there, and lived" in check.notes[0]


def test_every_flipped_bit_is_refused(tmp_path):
    store = tmp_path / "store"
    check = done("damage", store, plan(minutes=5))
    # One owner has no manifest of another role, and the check says so.
    assert check.verdict == PARTLY and check.found.endswith("not tried: manifest"), check
    assert check.figures == {
        "tried": 15,
        "faults": 0,
        "kinds": ["store file", "claim", "root", "seal", "pack"],
    }
    assert all(row[3].startswith("refused: ") for row in check.tables[0].rows)


def test_damage_that_nobody_refuses_fails(tmp_path):
    code = """
    damage.resume = lambda store, say: say({"resumed": 4})
    """
    check = done("damage", tmp_path / "store", plan(minutes=5), code)
    assert check.verdict == FAILED
    assert "store file, store.json, middle: not refused: update 4 was resumed" in check.notes


def test_a_refusal_of_another_file_fails(tmp_path):
    code = """
    damage.resume = lambda store, say: say({"refused": "corrupt-root", "file": "published/x"})
    """
    check = done("damage", tmp_path / "store", plan(minutes=5), code)
    assert check.verdict == FAILED
    assert "store file, store.json, middle: refused (corrupt-root), but named published/x" in check.notes
    assert any(note.startswith(("mended, it is refused too", "and ")) for note in check.notes)


def test_a_refusal_that_changes_the_store_fails(tmp_path):
    code = """
    real = damage.resume
    def resume(store, say):
        pathlib.Path(store, "epochs", f"mine-{os.getpid()}").touch()
        real(store, say)
    damage.resume = resume
    """
    check = done("damage", tmp_path / "store", plan(minutes=5), code)
    assert check.verdict == FAILED and "the refusal changed the store: epochs/mine-" in check.found


# The warden itself


def test_a_life_is_killed_from_outside_and_hangs_no_longer_than_its_limit():
    code = """
    def sleeps(say):
        say({"begun": 1})
        time.sleep(60)
    a = warden.live(sleeps, 30, warden.Killer(0.05, '"begun"'))
    b = warden.live(sleeps, 0.3)
    c = warden.live(lambda say: 1 / 0, 30)
    print(json.dumps([a.code, a.said, b.code, c.code, c.last("error")]))
    """
    script = BEGIN + textwrap.dedent(code)
    told = subprocess.run(
        [sys.executable, "-c", script, json.dumps(vars(Plan())), "-"],
        env=warden.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(told.stdout) == [-9, [{"begun": 1}], -9, 1, "ZeroDivisionError: division by zero"], told


def test_the_environment_of_a_warden_is_no_rank():
    given = {"PMI_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "4", "HOME": "/home/a"}
    kept = warden.environment(given)
    assert (
        kept["HOME"] == "/home/a"
        and kept["OMP_NUM_THREADS"] == "1"
        and not given.keys() & kept.keys() - {"HOME"}
    )


def test_a_warden_that_hangs_is_a_failed_check(monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    script = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(steps.warden, "words", lambda *more: [sys.executable, "-c", script])
    monkeypatch.setattr(Plan, "limit", lambda self, key: 2.0)
    check = steps.by_warden("kills", str(tmp_path / "store"), Plan())
    assert check.verdict == FAILED and check.found == "it hung, and was killed after 2 s"
    try:
        os.kill(int(pid.read_text()), signal.SIGKILL)
        raise AssertionError("it still lives")
    except ProcessLookupError:
        pass


def test_a_warden_that_crashes_is_a_failed_check(monkeypatch, tmp_path):
    monkeypatch.setattr(steps.warden, "words", lambda *more: [sys.executable, "-c", "raise SystemExit('oh')"])
    check = steps.by_warden("damage", str(tmp_path / "store"), Plan())
    assert check.verdict == FAILED and "ended by 1: oh" in check.found
