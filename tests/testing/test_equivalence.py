"""resume_equivalence: an honest training passes, and each classic fault is found where it shows first."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.testing import NotEquivalent, launch, resume_equivalence
from alpha_mpi.testing.program import Program

HERE = pathlib.Path(__file__).resolve().parent
TRAINING = ["python", str(HERE / "training.py"), "--store", "{store}", "--updates", "{updates}"]


def test_an_honest_training_is_the_same_on_each_count_and_across():
    found = resume_equivalence(TRAINING, updates=4, at=2, owners=(2, 1), across=True)
    assert found.same and found and found.directory is None
    found.check()
    assert len(found.lines) == 5 and all("the same, 4 updates" in line for line in found.lines)
    assert found.lines[0].startswith("2 owners, interrupted after update 2:")
    assert found.lines[3].startswith("2 owners, after update 2 on 1 owner:")
    assert "{store}" in str(found)


@pytest.mark.parametrize(
    ("fault", "region", "update", "index"),
    [
        ("momentum", "w", 4, (2,)),
        ("random", "w", 4, (2,)),
        pytest.param("data", "w", 4, (2,), marks=pytest.mark.slow),
        pytest.param("power", "w", 4, (2,), marks=pytest.mark.slow),
        pytest.param("patience", "rate", 6, (), marks=pytest.mark.slow),
    ],
)
def test_a_classic_fault_is_found(tmp_path, fault, region, update, index):
    found = resume_equivalence([*TRAINING, "--fault", fault], updates=7, owners=(1,), directory=tmp_path)
    assert not found.same and not found
    [finding] = found.findings
    difference = finding.difference
    assert (difference.region, finding.update, difference.first) == (region, update, index)
    assert finding.since == update - 1
    right, wrong = (float(value) for value in difference.values)
    assert right != wrong
    for value, bits in zip((right, wrong), difference.bits, strict=True):
        assert int(bits, 16) == int(np.float64(value).view(np.uint64))
    with pytest.raises(NotEquivalent) as caught:
        found.check()
    error = caught.value
    assert isinstance(error, AssertionError) and isinstance(error, am.CheckpointError)
    assert (error.code, error.region, error.finding) == ("not-equivalent", region, finding)
    for words in (
        f"after update {update}, region '{region}', index {index}",
        *difference.bits,
        str(tmp_path),
    ):
        assert words in str(error)
    # What was kept shows the same with the command.
    a, b = (pathlib.Path(found.directory) / name for name in ("1-straight", "1-interrupted"))
    told = subprocess.run(
        [sys.executable, "-m", "alpha_mpi.cli", "diff", str(a), f"u{update}", f"u{update}", "--in", str(b)],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1 and str(difference) in told.stdout


@pytest.mark.slow
def test_on_the_counts_that_are_tried_by_default(tmp_path):
    assert resume_equivalence(TRAINING, across=True).same
    found = resume_equivalence([*TRAINING, "--fault", "momentum"], directory=tmp_path)
    assert [(f.update, f.difference.region) for f in found.findings] == [(4, "w")] * 3


@pytest.mark.slow
def test_bits_that_depend_on_the_number_of_owners_are_told_as_that(tmp_path):
    owners = [*TRAINING, "--fault", "owners"]
    found = resume_equivalence(owners, owners=(2, 3), across=True, directory=tmp_path)
    assert [finding.update for finding in found.findings] == [1, 4, 1]
    assert found.lines[0].endswith("words") and found.lines[1].endswith("words")
    assert "3 owners, uninterrupted: DIFFERENT after update 1, region 'w', index (2,)" in found.lines[2]
    assert found.lines[2].endswith("its bits depend on the number of owners")


@pytest.mark.slow
def test_who_saves_seldom_learns_between_which_updates(tmp_path):
    seldom = [*TRAINING, "--fault", "seldom"]
    found = resume_equivalence(seldom, updates=4, at=2, owners=(1,), directory=tmp_path)
    [finding] = found.findings
    assert (finding.since, finding.update) == (2, 4)
    assert "of the updates since 2 none was saved by both runs" in str(found)
    with pytest.raises(am.Refused, match="save after every update") as caught:
        resume_equivalence(seldom, updates=4, at=3, owners=(1,), directory=tmp_path)
    assert (caught.value.code, caught.value.found) == ("no-generation", "2")


# Functions


def counting(store, updates, stop):
    """Saves the length of the training that it was told: with `stop` it is always the same."""
    state, length = am.State(), np.zeros(2)
    state.replicate("length", length)
    state.replicate("count", count := np.zeros(2))
    with am.Checkpointer(store, state, keep=2) as ckpt:
        for update in range(ckpt.resume().update + 1, stop + 1):
            length[:] = updates
            count += 1
            ckpt.save(update)


def sleeping(store, updates):
    pathlib.Path(f"{store}.pid").write_text(str(os.getpid()))
    time.sleep(600)


def raising(store, updates):
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        raise RuntimeError("the second rank gives up")
    MPI.COMM_WORLD.barrier()


def starting_afresh(store, updates):
    """Forgets what it has saved, and begins again."""
    import shutil

    shutil.rmtree(store, ignore_errors=True)
    counting(store, updates, updates)


def nowhere(store, updates):
    """Saves nothing."""


@pytest.mark.slow
def test_a_function_is_found_by_its_name_and_told_where_to_stop(tmp_path):
    found = resume_equivalence(counting, updates=4, at=1, owners=(1,), directory=tmp_path)
    assert found.same, found
    assert "the same, 2 updates" in found.lines[0]  # retention has left no more
    with am.open(pathlib.Path(found.directory) / "1-interrupted") as store:
        assert store["u3"]["length"][:].tolist() == store["u4"]["length"][:].tolist() == [4, 4]


def code_of(*args, **options):
    with pytest.raises(am.CheckpointError) as caught:
        resume_equivalence(*args, updates=2, at=1, **options)
    return caught.value


def test_a_run_that_hangs_is_killed_and_fails(tmp_path):
    error = code_of(sleeping, owners=(1,), timeout=4, directory=tmp_path)
    assert error.code == "run-hung" and "killed" in str(error)
    [written] = tmp_path.glob("*/*.pid")
    assert not launch._lives(int(written.read_text()))


def test_a_run_that_fails_shows_the_end_of_its_output(tmp_path):
    error = code_of(raising, owners=(2,), directory=tmp_path)
    assert error.code == "run-failed" and "the second rank gives up" in str(error)
    assert pathlib.Path(error.file).is_relative_to(tmp_path)


@pytest.mark.slow
def test_who_does_not_resume_is_told(tmp_path):
    assert code_of(starting_afresh, owners=(1,), directory=tmp_path).code == "not-resumed"
    assert code_of(nowhere, owners=(1,), directory=tmp_path).code == "no-generation"


@pytest.mark.parametrize(
    "bad",
    [
        [],
        ["python", "train.py"],
        ["python", "train.py", "--store", "{store}"],
        "python train.py",
        "module",
        "module:no function",
        lambda store, updates: None,
        print,
    ],
)
def test_what_is_no_program_is_refused(bad):
    assert code_of(bad).code == "argument"


def test_updates_are_cut_in_two(tmp_path):
    for wrong in ({"at": 5}, {"at": 0}, {"owners": ()}, {"owners": (0,)}):
        with pytest.raises(am.Refused) as caught:
            resume_equivalence(TRAINING, **{"updates": 5, "at": 3, **wrong})
        assert caught.value.code == "argument"


def test_words_of_a_leg():
    line = Program("python 'my train.py' --store={store} --to {stop} --of {updates}")
    assert line.leg(pathlib.Path("/s"), 5, 3) == [
        "python",
        "my train.py",
        "--store=/s",
        "--to",
        "3",
        "--of",
        "5",
    ]
    assert Program(TRAINING).leg(pathlib.Path("/{stop}"), 5, 3)[2:] == [
        "--store",
        "/{stop}",
        "--updates",
        "3",
    ]
    assert Program("package.module:Class.run").words[-4] == "package.module:Class.run"
    assert Program(counting).words[-4] == f"{HERE / 'test_equivalence.py'}:counting"


# The fixture

TESTS = """
import numpy as np
import alpha_mpi as am


def train(store, updates, forget=False):
    w, m = np.zeros(3), np.zeros(3)
    state = am.State()
    state.replicate("w", w)
    if not forget:
        state.replicate("m", m)
    with am.Checkpointer(store, state) as ckpt:
        for update in range(ckpt.resume().update + 1, updates + 1):
            m += update
            w += m
            ckpt.save(update)


def forgetful(store, updates):
    train(store, updates, forget=True)


def test_honest(resume_equivalence):
    assert resume_equivalence(train, updates=2, at=1, owners=(1,)).same


def test_forgetful(resume_equivalence):
    resume_equivalence(forgetful, updates=2, at=1, owners=(1,))
"""


@pytest.mark.slow
def test_the_fixture_passes_and_fails_a_test(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "alpha_mpi.testing.plugin", "-p", "no:cacheprovider"]
    env = launch.environment({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(HERE.parents[1])})
    told = subprocess.run([*words, str(tmp_path)], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert "1 failed, 1 passed" in told.stdout, told.stdout + told.stderr
    assert "DIFFERENT after update 2, region 'w', index (0,): 4.0 and 3.0" in told.stdout


def test_pytest_finds_the_plugin_and_importing_it_loads_no_mpi():
    text = (HERE.parents[1] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nalpha_mpi = "alpha_mpi.testing.plugin"\n' in text
    code = "import sys, alpha_mpi.testing.plugin as plugin\n"
    code += "print(hasattr(plugin, 'resume_equivalence'), 'mpi4py' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert told.stdout.split() == ["True", "False"], told.stderr
