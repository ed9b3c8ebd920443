"""alpha-mpi interval: advice, and what it follows from."""

import pytest

from alpha_mpi.timing import daly, lost_share, young


def test_the_advice_and_its_inputs(answer, command):
    words = ("interval", "--save", "40s", "--mtbf", "1825d", "--nodes", "64", "--update", "2")
    code, found = answer(*words)
    mtbf = 1825 * 86400 / 64
    assert code == 0
    assert found == {
        "save": 40.0,
        "mtbf": 1825 * 86400.0,
        "nodes": 64,
        "job_mtbf": mtbf,
        "young": young(40, mtbf),
        "daly": daly(40, mtbf),
        "lost_share": lost_share(40, daly(40, mtbf), mtbf),
        "update": 2.0,
        "updates": round(daly(40, mtbf) / 2),
    }
    code, out, _ = command(*words)
    assert code == 0 and "40 s" in out and "28.5 d" in out and "64 nodes" in out
    assert f"every={found['updates']}" in out and "Young" in out and "Daly" in out
    code, out, _ = command("interval", "--save", "0.5", "--mtbf", "1d")
    assert code == 0 and "one update" not in out and 'every="294s"' in out


def test_saves_longer_than_what_is_between_failures(command):
    code, out, _ = command("interval", "--save", "2h", "--mtbf", "1h")
    assert code == 0 and "no interval will do" in out


@pytest.mark.parametrize(
    "words",
    [
        ("--save", "40s"),
        ("--mtbf", "1d"),
        ("--save", "soon", "--mtbf", "1d"),
        ("--save", "-1", "--mtbf", "1d"),
    ],
)
def test_wrong_usage(command, words):
    code, _, err = command("interval", *words)
    assert code == 2 and "alpha-mpi:" in err
