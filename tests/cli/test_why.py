"""alpha-mpi why: what a job would resume, and why not the others."""

import json
import shutil

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.restore import choose


def others(found):
    return {row["name"]: row["state"] for row in found["others"]}


def test_the_newest(store, answer):
    code, found = answer("why", store)
    assert code == 0 and found["takes"] == "e000002-000001"
    assert others(found) == {"e000001-000001": "lineage", "e000001-000002": "lineage"}
    assert [claim["continues"] for claim in found["claims"]] == [None, "e000001-000002"]


def test_an_epoch_that_published_nothing(store, answer, job):
    job(store, ())
    found = answer("why", store)[1]
    assert found["takes"] == "e000002-000001" and "continues it, and has published nothing" in found["reason"]


def test_a_new_store(tmp_path, answer, job):
    job(tmp_path / "new", ())
    code, found = answer("why", tmp_path / "new")
    assert code == 0 and found["takes"] is None and "fresh start" in found["reason"]


@pytest.mark.parametrize("name", ["published/e000002-000001.json", "epochs/e000002.json"])
def test_a_job_would_be_refused(store, answer, name):
    (store / name).write_bytes(b"{}")
    code, found = answer("why", store)
    assert code == 1 and found["takes"] is None
    assert found["error"]["file"] == name and "a job is refused" in found["reason"]


def test_removed_and_damaged_ones(store, answer, job):
    job(store, (40, 50))
    answer("rm", store, "u40", "--offline")
    (store / "published" / "e000001-000001.json").write_bytes(b"{}")
    shutil.rmtree(store / "data" / "e000001-000001")
    found = answer("why", store)[1]
    assert others(found) == {
        "e000001-000001": "damaged",
        "e000001-000002": "lineage",
        "e000002-000001": "lineage",
        "e000003-000001": "removed",
    }


def test_lines_for_people(store, command):
    lines = command("why", store)[1].splitlines()
    assert lines[0] == "e000002-000001: it is the last generation of the newest epoch, 2"
    assert lines[2].startswith("epoch 2 continues e000001-000002; job ")
    assert lines[3].split()[:5] == ["not", "e000001-000001", "update", "10", "lineage"]
    assert json.loads(command("why", store, "--json")[1])["epoch"] == 2


def test_the_newest_is_retired_while_it_is_looked_for(tmp_path, answer, monkeypatch):
    """R09: another job publishes and retires between the look at the names and the look at the root."""
    words = np.zeros(4)
    state = am.State()
    state.partition("w", words, shape=(4,), layout=am.rows())
    real, left = choose.await_root, [2]
    with am.Checkpointer(tmp_path / "s", state, None, keep=1) as ckpt:
        ckpt.resume()

        def save():
            words[...] += 1
            ckpt.save(int(words[0]))

        def await_root(*arguments):
            if left[0]:
                left[0] -= 1
                save()
            return real(*arguments)

        save()
        monkeypatch.setattr(choose, "await_root", await_root)
        code, found = answer("why", tmp_path / "s")
    assert (code, found["takes"], left) == (0, "e000001-000003", [0]), found
