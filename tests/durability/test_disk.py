"""The model of a disk by itself: what it lets happen, and what it does not."""

from __future__ import annotations

import pytest
from durability.disk import MODELS
from durability.recording import Op
from durability.sweep import cut_points


def ops(*lines: str) -> list[Op]:
    """Return operations one after the other: ``rename a b``, ``write a text``."""
    made = []
    for i, line in enumerate(lines):
        what, path, *rest = line.split()
        other, data = (rest[0], b"") if what in ("rename", "link") else ("", "".join(rest).encode())
        path = "" if path == "/" else path
        made.append(Op(float(2 * i + 1), 2 * i + 1.5, what, path, other, 0, data))
    return made


def at_the_end(*lines: str, model: str = "posix") -> set[frozenset[tuple[str, bytes | None]]]:
    """Return what a power cut after the operations may leave."""
    *_, (disk, _, _) = cut_points(ops(*lines), model)
    choices = disk.choices()
    return {
        frozenset(disk.state(choices, taken).items()) for taken in disk.cuts(choices, bound=10_000, seed=1)
    }


def files(*pairs: tuple[str, bytes | None]) -> frozenset[tuple[str, bytes | None]]:
    return frozenset(pairs)


NEW = ("create a", "write a 12345678")
NAMED = (*NEW, "sync a", "rename a b")


def test_unsynced_data_may_be_there_in_part_or_not() -> None:
    assert at_the_end(*NEW, "sync /") == {
        files(("a", data)) for data in (b"", b"1234", bytes(8), b"12345678")
    }
    assert at_the_end(*NEW, "sync /", model="ordered") == {
        files(("a", data)) for data in (b"", b"1234", b"12345678")
    }


def test_a_synced_file_may_have_no_name() -> None:
    whole = b"12345678"
    assert at_the_end(*NEW, "sync a") == {files(), files(("a", whole))}
    assert at_the_end(*NEW, "sync a", "sync /") == {files(("a", whole))}
    for model in ("ordered", "writeback", "syncmeta"):
        assert at_the_end(*NEW, "sync a", model=model) == {files(("a", whole))}


def test_both_names_of_a_rename_are_independent() -> None:
    a, b = ("a", b"12345678"), ("b", b"12345678")
    assert at_the_end(*NAMED) == {files(), files(a), files(b), files(a, b)}
    assert at_the_end(*NAMED, model="ordered") == {files(a), files(b)}
    assert at_the_end(*NAMED, "sync /") == {files(b)}
    linked = (*NEW, "sync a", "link a b", "sync /", "unlink a")
    assert at_the_end(*linked) == {files(a, b), files(b)}


def test_a_directory_whose_name_is_lost_takes_all_with_it() -> None:
    inside = ("mkdir d", "create d/a", "sync d/a", "sync d")
    assert at_the_end(*inside) == {files(), files(("d", None), ("d/a", b""))}
    assert at_the_end(*inside, "sync /") == {files(("d", None), ("d/a", b""))}


def test_what_was_removed_may_come_back() -> None:
    a = ("a", b"12345678")
    assert at_the_end(*NEW, "sync a", "sync /", "unlink a") == {files(), files(a)}
    assert at_the_end(*NEW, "sync a", "sync /", "unlink a", "sync /") == {files()}


def test_a_sync_covers_only_what_had_ended_before_it_began() -> None:
    made, wrote, synced = ops(*NEW, "sync a")
    late = [made, wrote, Op(wrote.begin + 0.1, wrote.end + 1, "sync", "a"), *ops("sync /")]
    late[-1] = Op(100.0, 101.0, "sync", "")
    *_, (disk, _, _) = cut_points(late, "posix")
    assert len(disk.choices()) == 1  # the data are still pending
    *_, (disk, _, _) = cut_points([made, wrote, synced, late[-1]], "posix")
    assert disk.choices() == []


def test_a_cut_before_the_end_of_a_sync_finds_everything_pending() -> None:
    found = [
        (where, len(disk.choices())) for disk, _, where in cut_points(ops(*NEW, "sync a", "sync /"), "posix")
    ]
    assert found == [("before the end of sync a", 2), ("before the end of sync ", 1), ("at the end", 0)]


@pytest.mark.parametrize("model", MODELS)
def test_bounded_cuts_are_cuts_and_the_same_each_time(model: str) -> None:
    many = [line for i in range(8) for line in (f"create f{i}", f"write f{i} {i:08}")]
    *_, (disk, _, _) = cut_points(ops(*many), model)
    choices = disk.choices()
    some = list(disk.cuts(choices, bound=16, seed=3))
    assert some == list(disk.cuts(choices, bound=16, seed=3))
    assert len(some) == len(set(some)) and all(
        0 <= i < len(choice.states) for taken in some for i, choice in zip(taken, choices, strict=True)
    )
    assert tuple(len(choice.states) - 1 for choice in choices) in some  # nothing is lost
