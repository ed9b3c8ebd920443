"""What travels together, and what a receiver believes."""

import numpy as np
import pytest
from growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st
from restore.build_store import build, replica, values_of

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format import encode_document
from alpha_mpi.model import Schema
from alpha_mpi.model.layout import replicated, rows
from alpha_mpi.mpi.agreement import WORDS
from alpha_mpi.protocol.hierarchy import Star, Tree
from alpha_mpi.restore.replicas import Bundle, Incoming, Share, bundles, replicated_shares
from alpha_mpi.restore.validate import Target

sizes = st.one_of(st.integers(1, 1 << 20), st.integers(1, 100 << 20))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(sizes, st.integers(0, 3), st.booleans()), max_size=60), st.integers(0, 1 << 28))
def test_everything_travels_once_and_what_is_kept_fits(given_, budget):
    shares = [Share(i, writer, 0, n) for i, (n, writer, _) in enumerate(given_)]
    documents = frozenset(i for i, (_, _, document) in enumerate(given_) if document)
    made = bundles(shares, budget, documents)
    carried = [s for b in made for s in b.shares]
    assert sorted(carried) == sorted(shares)
    for bundle in made:
        assert {s.writer for s in bundle.shares} == {bundle.writer}
        assert len(bundle.shares) == 1 or bundle.nbytes <= WORDS
        # No chunk is cut by a slice: small shares lie in one slice, large ones travel alone.
        assert len(bundle.shares) == 1 or all(s.nbytes <= digest.CHUNK for s in bundle.shares)
        document = {s.ordinal in documents for s in bundle.shares}
        assert len(document) == 1 and (bundle.kept or document == {False})
    arrays = [b for b in made if b.shares[0].ordinal not in documents]
    assert sum(b.nbytes for b in arrays if b.kept) <= budget
    assert made == bundles(shares, budget, documents)


def test_bundling_is_linear_in_the_number_of_small_regions():
    """A hundred thousand numbers fit one bundle: to sum it up for each of them would take minutes."""

    def through(count):
        shares = [Share(i, 0, 0, 8) for i in range(count)]
        return lambda: bundles(shares, 1 << 30, frozenset())

    assert growth(through, 1_000, 10) < 3


def test_two_thousand_small_regions_travel_in_few_bundles():
    assert len(bundles([Share(i, 0, 0, 16384) for i in range(2000)], 1 << 30, frozenset())) == 2


def test_shares_follow_from_the_root_alone(tmp_path):
    regions = [
        ("w", "array", "float32", (40, 3)),
        ("small", "array", "float32", (40,)),
        ("large", "array", "float32", (1_000_000,)),
        ("none", "array", "float32", (0,)),
        ("d", "document", "json", ()),
    ]
    rules = [rows(), *(replicated(),) * 4]
    values = values_of(regions, 7)
    for hierarchy, members in ((Star(), [0]), (Tree(2), [0, 1, 4])):
        built = build(
            tmp_path / str(hierarchy), regions, rules, values, owners=7, hierarchy=hierarchy, dealt=1 << 20
        )
        shares = replicated_shares(built.manifests[0], built.schema, "root")
        assert [s.writer for s in shares if s.ordinal == 2] == members
        assert sum(s.nbytes for s in shares if s.ordinal == 2) == 4_000_000
        assert all(s.at % digest.CHUNK == 0 for s in shares)
        assert {s.ordinal for s in shares} == {1, 2, 4}
        for share in shares:
            assert any(r.ordinal == share.ordinal for r in built.manifests[share.writer].shards)


def incoming(format="float32", shape=(600_000,), array=None):
    region = Schema.of([("r", "array", format, shape)]).regions[0]
    return Incoming(region, Target(array, shape), 2_400_000, "xxh3-128")


def test_words_are_written_only_after_the_first_pass():
    data = memoryview(np.random.default_rng(0).random(600_000, dtype=np.float32)).cast("B")
    named = replica("float32", bytes(data), "xxh3-128")
    for keep in (True, False):
        array = np.zeros(600_000, np.float32)
        one = incoming(array=array)
        for at in range(0, len(data), digest.CHUNK):
            one.accept(at, data[at : at + digest.CHUNK], keep)
        one.check(named, digest.region)
        assert not array.any()
        if keep:
            one.fill()
        else:
            changed = bytearray(data[: digest.CHUNK])
            changed[7] ^= 1
            with pytest.raises(Refused) as caught:
                one.accept_again(0, memoryview(changed))
            assert caught.value.code == "changed-while-reading" and not array.any()
            one.accept_again(0, data)
        assert array.tobytes() == bytes(data)
    one = incoming()
    one.accept(0, data, True)
    one.check(named, digest.region)
    assert one.made.tobytes() == bytes(data)
    with pytest.raises(Refused) as caught:
        one.check(replica("float32", bytes(len(data)), "xxh3-128"), digest.region)
    assert (caught.value.code, caught.value.region) == ("corrupt-replica", "r")


def test_a_document_is_decoded_once_it_is_believed():
    region = Schema.of([("d", "document", "json", ())]).regions[0]
    data = encode_document({"a": [1, 2.5]})
    one = Incoming(region, Target(), len(data), "xxh3-128")
    one.accept(0, memoryview(data), True)
    one.check(replica("json", data, "xxh3-128"), digest.region)
    assert one.made == {"a": [1, 2.5]}


def test_a_bundle_knows_its_bytes():
    assert Bundle(0, (Share(0, 0, 0, 3), Share(1, 0, 0, 4)), True).nbytes == 7
