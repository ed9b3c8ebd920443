"""A store of two continuations, made by the library on one owner, and a way to run commands on it."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import alpha_mpi as am


def _job(path, updates, scores=None):
    """One job on one owner: resume, then save each of `updates`, some with a score."""
    weights = np.zeros((40, 30), np.float32)
    schedule = {"rate": 0.5}
    state = am.State()
    state.partition("weights", weights, shape=weights.shape, layout=am.rows())
    state.replicate("scale", np.ones(3))
    state.document("schedule", lambda: dict(schedule), schedule.update)
    learner = am.Learner("cli-test", rate=0.25, inputs="none")
    with am.Checkpointer(path, state, learner=learner, visibility=0.0) as ckpt:
        ckpt.resume()
        for update in updates:
            weights += update
            ckpt.save(update=update, cursor=3 * update, score=(scores or {}).get(update))


@pytest.fixture(scope="session")
def _made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "ckpt"
    _job(path, (10, 20))
    _job(path, (30,))
    return path


@pytest.fixture
def store(_made, tmp_path):
    """A fresh copy of the store: e000001-000001, e000001-000002 and the newest, e000002-000001."""
    return pathlib.Path(shutil.copytree(_made, tmp_path / "ckpt"))


@pytest.fixture
def job():
    return _job


@pytest.fixture
def command():
    """Run a command; return (exit code, standard output, standard error). A crash fails the test."""
    from alpha_mpi.cli import alpha_mpi

    def run(*words):
        result = CliRunner().invoke(alpha_mpi(), [str(word) for word in words])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        assert "internal error" not in result.output + result.stderr
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.fixture
def answer(command):
    """Run a command with --json; return (exit code, what it answered)."""

    def run(*words):
        code, out, _ = command(*words, "--json")
        return code, json.loads(out)

    return run
