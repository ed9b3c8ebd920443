"""The checks of all ranks, with threads for ranks: what holds passes, and each fails when it is broken."""

import errno
import os
import threading
import time

import numpy as np
import pytest

from alpha_mpi.qualification import learners, race, speed, steps, visibility
from alpha_mpi.qualification.check import FAILED, HELD, NOT_TRIED, PARTLY
from alpha_mpi.qualification.team import Team, TeamFailed
from alpha_mpi.store import durable
from alpha_mpi.store.durable import Directory
from tests.qualification.team import PLAN, plan, run


def all_say(results):
    """Return the one check that every rank has."""
    said = {(check.verdict, check.found) for check in results}
    assert len(said) == 1, said
    return results[0]


class Broken:
    """The C module with another commit."""

    def __init__(self, inner, commit):
        self._inner, self.commit = inner, commit

    def __getattr__(self, name):
        return getattr(self._inner, name)


def broken(monkeypatch, take):
    """Let each commit take its name by ``take(directory, temporary, name)``."""

    def commit(directory, fd, temporary, name, size, by_link, sync, path):
        os.close(fd)
        take(directory, temporary, name)
        return False

    monkeypatch.setattr(durable, "_durable", Broken(durable._durable, commit))


# The race


def test_each_name_has_one_winner(tmp_path):
    check = all_say(run(4, lambda team: race.race(team, str(tmp_path), PLAN, False)))
    assert check.verdict == HELD and check.figures["names"] == 60, check
    wins = [int(count) for _, count in check.tables[0].rows]
    assert sum(wins) == 60 and len(wins) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == [race.name_of(n) for n in range(60)]


def test_a_race_that_one_rank_won_shows_little(tmp_path, monkeypatch):
    def take(directory, temporary, name):
        if threading.current_thread().name != "0":
            raise FileExistsError(errno.EEXIST, "File exists")
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)

    broken(monkeypatch, take)
    check = all_say(run(2, lambda team: race.race(team, str(tmp_path), PLAN, False)))
    assert check.verdict == PARTLY and check.found.endswith("1 rank won some: perhaps no two ranks ever met")


def test_who_wins_too_much_begins_later():
    assert race.later(0.0, 11, 20) == race.LAG[0] and race.later(race.LAG[0], 20, 20) == 2 * race.LAG[0]
    assert race.later(race.LAG[1], 20, 20) == race.LAG[1]
    assert race.later(0.004, 10, 20) == 0.004 and race.later(0.004, 0, 20) == 0.002


def test_a_race_by_link(tmp_path):
    check = all_say(run(3, lambda team: race.race(team, str(tmp_path), PLAN, True)))
    assert check.verdict == HELD and len(list(tmp_path.iterdir())) == 60


def test_a_rename_that_replaces_has_many_winners(tmp_path, monkeypatch):
    def take(directory, temporary, name):
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)

    broken(monkeypatch, take)
    check = all_say(run(4, lambda team: race.race(team, str(tmp_path), PLAN, False)))
    assert check.verdict == FAILED
    assert "race-000000: 4 winners (0, 1, 2, 3)" in check.notes


def test_a_rename_that_is_done_and_denied_has_no_winner(tmp_path, monkeypatch):
    def take(directory, temporary, name):
        if not os.path.exists(tmp_path / name):
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        raise FileExistsError(errno.EEXIST, "File exists")

    broken(monkeypatch, take)
    check = all_say(run(2, lambda team: race.race(team, str(tmp_path), PLAN, False)))
    assert check.verdict == FAILED and "race-000000: 0 winners (nobody)" in check.notes


def test_words_under_a_name_are_its_winners(tmp_path, monkeypatch):
    def take(directory, temporary, name):
        try:
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except FileExistsError:
            (tmp_path / name).write_text("torn\n")
            raise

    broken(monkeypatch, take)
    check = all_say(run(2, lambda team: race.race(team, str(tmp_path), PLAN, False)))
    assert check.verdict == FAILED and any("its words are 'torn'" in note for note in check.notes)


def test_a_race_whose_time_is_over_says_so(tmp_path):
    check = all_say(run(2, lambda team: race.race(team, str(tmp_path), plan(minutes=0, names=10**6), False)))
    assert check.verdict == PARTLY and "of 1,000,000 names" in check.found
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_disk_that_says_no_is_named_with_the_rank(tmp_path, monkeypatch):
    def take(directory, temporary, name):
        raise OSError(errno.ENOSPC, "No space left on device")

    broken(monkeypatch, take)
    check = all_say(run(2, lambda team: race.race(team, str(tmp_path), PLAN, False)))
    assert check.verdict == FAILED and "No space left on device" in check.notes[0]


# What is seen


def test_two_nodes_see_a_fresh_name(tmp_path):
    nodes = ["a", "b", "a", "b"]
    check = all_say(run(4, lambda team: visibility.visibility(team, str(tmp_path), PLAN, False), nodes))
    assert check.verdict == HELD and check.found.startswith("from 2 nodes, 4 rounds"), check
    assert {row[0] for row in check.tables[0].rows} == set(visibility.WAYS.values())
    assert {row[1] for row in check.tables[0].rows} == {"0 on host-a", "1 on host-b"}
    assert 0 < check.figures["median"] <= check.figures["most"]


def test_one_node_is_not_a_pass(tmp_path):
    check = all_say(run(3, lambda team: visibility.visibility(team, str(tmp_path), PLAN, False)))
    assert check.verdict == NOT_TRIED and "on one node" in check.found and check.figures["most"] > 0


class Late(Directory):
    """A client that learns of a name when it is `delay` seconds old."""

    delay = 0.1

    def _old(self, name):
        made = os.stat(name, dir_fd=self.fd).st_mtime
        return time.time() - made > self.delay

    def names(self):
        return [name for name in super().names() if self._old(name)]

    def read(self, name, limit):
        if not self._old(name):
            raise FileNotFoundError(errno.ENOENT, "not yet", name)
        return super().read(name, limit)


def test_a_late_name_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(visibility, "Directory", Late)
    look = plan(rounds=1)
    check = all_say(run(2, lambda team: visibility.visibility(team, str(tmp_path), look, False), ["a", "b"]))
    assert check.verdict == HELD
    assert all(check.figures[way] > 0.05 for way in visibility.WAYS), check.figures


def test_a_name_that_is_never_seen_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(visibility, "Directory", Late)
    monkeypatch.setattr(Late, "delay", 3600)
    look = plan(rounds=1, visibility=0.1)
    check = all_say(run(2, lambda team: visibility.visibility(team, str(tmp_path), look, False), ["a", "b"]))
    assert check.verdict == FAILED
    assert "rank 1 on host-b, in a listing, listed before: not seen within 0.1 s" in check.notes


def test_other_words_fail(tmp_path, monkeypatch):
    class Torn(Directory):
        def read(self, name, limit):
            return super().read(name, limit)[:3]

    monkeypatch.setattr(visibility, "Directory", Torn)
    check = all_say(run(2, lambda team: visibility.visibility(team, str(tmp_path), PLAN, False), ["a", "b"]))
    assert check.verdict == FAILED and "seen with other words: b'mad'" in check.found


# One directory, and ranks that fail


def test_ranks_that_do_not_see_one_directory(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    told = [[], []]

    def work(team):
        scratch = str(tmp_path / ("other" if team.rank else "one"))
        keys = ("shared", "race")
        look = plan(visibility=0.1)
        steps.together(team, scratch, look, False, keys, lambda key: None, told[team.rank].append)

    run(2, work, ["a", "b"])
    shared, raced = told[0]
    assert shared.verdict == FAILED and shared.notes[0].startswith(
        "rank 1 on host-b: the directory is not there"
    )
    assert raced.verdict == NOT_TRIED and "do not see one directory" in raced.found


def test_the_first_name_is_taken_as_the_probe_found_best(tmp_path, monkeypatch):
    ways = []

    def commit(directory, fd, temporary, name, size, by_link, sync, path):
        ways.append(by_link)
        return real(directory, fd, temporary, name, size, by_link, sync, path)

    real = durable._durable.commit
    monkeypatch.setattr(durable, "_durable", Broken(durable._durable, commit))
    steps.together(Team(0, 1), str(tmp_path), PLAN, True, ("shared",), lambda key: None, lambda check: None)
    assert ways == [True]


def test_what_raises_on_one_rank_ends_a_check_on_all():
    def work(team):
        def part():
            if team.rank == 1:
                raise OSError(errno.EIO, "broken", "/some/file")
            team.barrier()
            team.barrier()

        with pytest.raises(TeamFailed, match=r"rank 1 on .*broken.*/some/file"):
            team.together(part)
        team.barrier()  # still in step
        return True

    assert all(run(3, work))


# Learners and speed, on one rank: under mpiexec they are tried by tests/mpi/test_qualification.py


def test_a_resumed_training_is_the_same(tmp_path):
    check = learners.equivalence(Team(0, 1), str(tmp_path), PLAN)
    assert check.verdict == PARTLY and "one owner alone" in check.found  # several owners were not tried
    assert [row[2] for row in check.tables[0].rows] == ["the same"] * 3


def test_a_training_that_resumes_wrongly_fails(tmp_path, monkeypatch):
    real = learners.DataParallel.stand_at

    def wrong(self, moment):
        real(self, moment)
        if moment.update:
            self.parameters[0] = np.nextafter(self.parameters[0], 9)

    monkeypatch.setattr(learners.DataParallel, "stand_at", wrong)
    check = learners.equivalence(Team(0, 1), str(tmp_path), plan(quick=True))
    assert check.verdict == FAILED and "different after update 4, region 'parameters'" in check.found


def test_speed_is_measured_beside_plain_writes(tmp_path):
    check = speed.speed(Team(0, 1), str(tmp_path), PLAN)
    assert check.verdict == HELD, check
    figures = check.figures
    assert figures["bytes"] == 1 << 16 and figures["save_ratio"] > 0 and figures["small_save_seconds"] > 0
    ratio = figures["save_bytes_per_second"] / figures["write_bytes_per_second"]
    assert figures["save_ratio"] == pytest.approx(ratio)
    assert [row[0] for row in check.tables[0].rows] == list(speed.RUNS.values())
    assert {p.name for p in tmp_path.iterdir()} == {"small"}  # each round is cleared away


def test_a_short_write_of_plain_words_is_gone_on_with(tmp_path, monkeypatch):
    bench = speed.Bench(Team(0, 1), str(tmp_path), 1 << 16)
    plain = open

    class Short:
        def __init__(self, *how, **more):
            self.file = plain(*how, **more)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        def write(self, data):
            return self.file.write(data[:1000])

        def readinto(self, data):
            return self.file.readinto(data[:1000])

    monkeypatch.setattr(speed, "open", Short, raising=False)
    expected = bench.words.copy()
    bench.write()
    bench.words[:] = 0
    bench.read()
    assert np.array_equal(bench.words, expected)
    os.truncate(bench.file, 5000)
    with pytest.raises(OSError, match="short read"):
        bench.read()


def test_other_words_that_come_back_fail(tmp_path, monkeypatch):
    real = speed.Bench.read

    def read(self):
        real(self)
        self.words[0] += 1

    monkeypatch.setattr(speed.Bench, "read", read)
    told = []
    (tmp_path / "speed").mkdir()
    steps.together(Team(0, 1), str(tmp_path), PLAN, False, ("speed",), lambda key: None, told.append)
    assert told[0].verdict == FAILED and "other words came back than were written" in told[0].found


def test_too_little_room_fails_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(speed.space, "available", lambda directory: 1000)
    check = speed.speed(Team(0, 1), str(tmp_path), PLAN)
    assert check.verdict == FAILED and "1,000 are free" in check.found and not list(tmp_path.iterdir())
