"""Names: what is made parses back, and nothing else parses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpha_mpi.model.capture import Attempt
from alpha_mpi.store import names

positive = st.integers(1, 10**9)


@given(positive, positive)
def test_what_is_made_parses_back(a, b):
    assert names.parse_claim(names.claim(a)) == a
    assert names.parse_published(names.entry(a, b)) == (a, b, "entry")
    assert names.parse_published(names.removed(a, b)) == (a, b, "removed")
    assert names.parse_published(names.pinned(a, b)) == (a, b, "pinned")
    assert names.parse_attempt(names.attempt(Attempt(a, b))) == Attempt(a, b)


@given(st.integers(0, 10**9))
def test_the_files_of_a_role_parse_back(role):
    assert names.parse_data(names.pack(role)) == (role, "pack")
    assert names.parse_data(names.manifest(role)) == (role, "manifest")
    assert names.parse_group(names.group(role)) == role // 256


def test_the_names_of_the_format_page():
    assert names.claim(2) == "e000002.json"
    assert names.entry(2, 1) == "e000002-000001.json"
    assert names.removed(1, 2) == "e000001-000002.removed"
    assert names.attempt(Attempt(2, 17)) == "e000002-000017"
    assert names.group(255) == "000"
    assert names.group(256) == "001"
    assert names.pack(3) == "000003.pack"
    assert names.manifest(3) == "000003.manifest.json"


@given(st.one_of(st.sampled_from(["000003.pack", "e000001.json", "x"]), st.text(min_size=1, max_size=60)))
def test_a_temporary_name_is_hidden_fresh_and_parses_back(name):
    made = names.temporary(name)
    assert made.startswith(".")
    assert made != names.temporary(name)
    assert names.parse_temporary(made) == name
    assert names.parse_published(made) is None
    assert names.parse_data(made) is None


STRANGERS = [
    "",
    "e000000.json",
    "e1.json",
    "e0000001.json",
    "e000001.json ",
    "e000001.json\n",
    "E000001.json",
    "e000001",
    "e-00001.json",
    "e٠٠٠٠٠١.json",  # digits, but not ASCII
    "e000001-000000.json",
    "e000001-1.json",
    "e000001-000001.txt",
    "e000001-000001.json.bak",
    "e000001-000001-000001",
    "../e000001.json",
    "000003.pack.tmp",
    "3.pack",
    "0000003.pack",
    "000003.manifest",
    ".nfs0000000000000001",
    ".000003.pack.tmp",
    ".000003.pack.0123456789ABCDEF.tmp",
    ".000003.pack.0123456789abcde.tmp",
    "..0123456789abcdef.tmp",
    "00",
    "0000",
    "lost+found",
]


@pytest.mark.parametrize("name", STRANGERS)
def test_anything_else_is_a_stranger(name):
    parsers = [
        *(names.parse_claim, names.parse_published, names.parse_attempt),
        *(names.parse_group, names.parse_data, names.parse_temporary),
    ]
    assert [parse(name) for parse in parsers] == [None] * 6


@given(st.text(max_size=40))
def test_a_name_has_one_spelling(name):
    epoch = names.parse_claim(name)
    assert epoch is None or names.claim(epoch) == name
    attempt = names.parse_attempt(name)
    assert attempt is None or names.attempt(attempt) == name
