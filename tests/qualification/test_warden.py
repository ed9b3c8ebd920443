"""Kills and damage: what holds passes, and each fails when it is broken. In a process without MPI."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from alpha_mpi.qualification import steps, warden
from alpha_mpi.qualification.check import FAILED, HELD, PARTLY, Check, Plan
from tests.qualification.team import plan

BEGIN = """
import json, os, pathlib, signal, sys, time
from alpha_mpi.qualification import warden
warden.alone()
from alpha_mpi import checkpointer
from alpha_mpi.qualification import damage, kills, learners
from alpha_mpi.qualification.check import Plan
"""
# Each request is answered by a process forked for it, so that all of them load the library once.
SERVE = """
for request in sys.stdin:
    told = json.loads(request)
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            plan, store = Plan(**told["plan"]), told["store"]
            exec(told["code"])
            os.write(writing, told["value"] and json.dumps(eval(told["value"])).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        print(pipe.read(), flush=True)
    os.wait()
"""


@pytest.fixture(scope="module")
def server():
    """A process without MPI that does what `asked` asks for."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + SERVE],
        env=warden.environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    yield process
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.fixture
def asked(server):
    """Return the value of an expression in a process that was changed by `code` first."""

    def ask(value, store="-", given=None, code=""):
        request = {"plan": vars(given or Plan()), "store": str(store), "value": value}
        print(json.dumps({**request, "code": textwrap.dedent(code)}), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer.strip(), "its traceback is on standard error"
        return json.loads(answer)

    return ask


@pytest.fixture
def done(asked):
    """Return a check, ``kills`` or ``damage``, done in a process that was changed by `code` first."""

    def do(what, store, given, code=""):
        return Check.from_data(asked(f"{what}.{what}(store, plan).as_data()", store, given, code))

    return do


@pytest.fixture(scope="module")
def trained(tmp_path_factory, server):
    """A store to damage, on one owner."""
    path = tmp_path_factory.mktemp("damage") / "store"
    code = "[damage.live(damage.functools.partial(damage._trained, store, n), 60) for n in (2, 4)]"
    request = {"plan": vars(Plan()), "store": str(path), "value": "1", "code": code}
    print(json.dumps(request), file=server.stdin, flush=True)
    assert server.stdout.readline().strip() == "1"
    return path


@pytest.fixture
def specimen(trained, tmp_path):
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "store")


def test_every_kill_leaves_a_whole_generation(done, tmp_path):
    check = done("kills", tmp_path / "store", plan(minutes=5, kills=2))
    assert check.verdict == HELD, check
    rows = {what: (int(previous), int(new)) for what, previous, new in check.tables[0].rows}
    for kind in ("claim", "seal", "root", "pack"):
        assert rows[f"{kind} closed"] == (1, 0)
    assert rows["root renamed"] == (0, 1)  # the rename is the publication
    assert rows["seal renamed"] == rows["pack renamed"] == rows["claim renamed"] == (1, 0)
    assert check.figures["kills"] == 2 + len(rows) - 1 and len(rows) == 21
    assert sum(rows["by chance"]) == 2
    assert check.figures["whole"] == 3  # what retention keeps


def test_a_lost_generation_fails(done, tmp_path):
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


def test_a_life_that_fails_is_not_said_to_have_ended_well(done, tmp_path):
    code = """
    def full(store, say, **more):
        raise OSError(28, "No space left on device")
    kills.life = full
    """
    check = done("kills", tmp_path / "store", plan(minutes=5, kills=0, quick=True), code)
    assert check.verdict == FAILED and check.found.startswith("after nothing: OSError: ")
    assert any(note.startswith("after one that failed: OSError: ") for note in check.notes)


def test_torn_words_fail(done, tmp_path):
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


def test_a_life_that_was_to_die_and_lives_fails(done, tmp_path):
    code = """
    kills.die_at = lambda *moment: None
    kills._moments = lambda told: [("entry", "closed")]
    """
    check = done("kills", tmp_path / "store", plan(minutes=5, kills=0, quick=True), code)
    assert check.verdict == FAILED and "the process was to die there, and lived" in check.notes[0]


def test_every_flipped_bit_is_refused(done, tmp_path):
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


def test_damage_that_nobody_refuses_fails(done, specimen):
    code = """
    damage.resume = lambda store, say: say({"resumed": 4})
    """
    check = done("damage", specimen, plan(minutes=5), code)
    assert check.verdict == FAILED
    assert "store file, store.json, middle: not refused: update 4 was resumed" in check.notes


def test_a_store_that_cannot_be_made_is_no_damage(done, tmp_path):
    code = """
    def full(store, updates, say):
        raise OSError(28, "No space left on device")
    damage._trained = full
    """
    check = done("damage", tmp_path / "store", plan(minutes=5), code)
    assert check.verdict == FAILED and check.found.startswith(
        "nothing could be damaged; the store to damage: "
    )
    assert "No space left" in check.found and not check.tables


def test_a_refusal_of_another_file_fails(done, specimen):
    code = """
    damage.resume = lambda store, say: say({"refused": "corrupt-root", "file": "published/x"})
    """
    check = done("damage", specimen, plan(minutes=5), code)
    assert check.verdict == FAILED
    assert "store file, store.json, middle: refused (corrupt-root), but named published/x" in check.notes
    assert any(note.startswith(("mended, it is refused too", "and ")) for note in check.notes)


def test_a_refusal_that_changes_the_store_fails(done, specimen):
    code = """
    real = damage.resume
    def resume(store, say):
        pathlib.Path(store, "epochs", f"mine-{os.getpid()}").touch()
        real(store, say)
    damage.resume = resume
    """
    check = done("damage", specimen, plan(minutes=5), code)
    assert check.verdict == FAILED and "the refusal changed the store: epochs/mine-" in check.found


# The warden itself


def test_a_life_is_killed_from_outside_and_hangs_no_longer_than_its_limit(asked):
    code = """
    def sleeps(say):
        say({"begun": 1})
        time.sleep(60)
    a = warden.live(sleeps, 30, warden.Killer(0.05, '"begun"'))
    b = warden.live(sleeps, 0.3)
    c = warden.live(lambda say: 1 / 0, 30)
    """
    told = asked('[a.code, a.said, b.code, c.code, c.last("error")]', code=code)
    assert told == [-9, [{"begun": 1}], -9, 1, "ZeroDivisionError: division by zero"]


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
    script = f"echo $$ > {pid}; exec sleep 600"
    monkeypatch.setattr(steps.warden, "words", lambda *more: ["/bin/sh", "-c", script])
    monkeypatch.setattr(Plan, "limit", lambda self, key: 0.5)
    check = steps.by_warden("kills", str(tmp_path / "store"), Plan())
    assert check.verdict == FAILED and check.found == "it hung, and was killed after 0 s"
    try:
        os.kill(int(pid.read_text()), signal.SIGKILL)
        raise AssertionError("it still lives")
    except ProcessLookupError:
        pass


def test_a_warden_that_crashes_is_a_failed_check(monkeypatch, tmp_path):
    monkeypatch.setattr(steps.warden, "words", lambda *more: [sys.executable, "-c", "raise SystemExit('oh')"])
    check = steps.by_warden("damage", str(tmp_path / "store"), Plan())
    assert check.verdict == FAILED and "ended by 1: oh" in check.found
