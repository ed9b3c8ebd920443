"""Entries: who takes the next name, and what is the newest."""

import errno
import multiprocessing
import os
import threading

import pytest
from store.small_store import (
    Killed,
    failing_commit,
    killed_at,
    publish,
    resume,
    root_bytes,
    whole,
    write_attempt,
)

from alpha_mpi.errors import CheckpointError, InDoubt, Refused, Superseded
from alpha_mpi.format.claim import Claim, encode_claim
from alpha_mpi.model.capture import Attempt
from alpha_mpi.restore import choose
from alpha_mpi.store import durable, entries, names, observe
from alpha_mpi.store.store import Store


@pytest.fixture
def store(tmp_path):
    with Store.create_or_open(tmp_path / "ckpt", probe=False) as opened:
        yield opened


def claim_of(store, epoch, base=None, job="other"):
    value = Claim(
        store=store.id,
        epoch=epoch,
        continues=None if base is None else base.root,
        base=None if base is None else (base.epoch, base.number),
        nonce=f"nonce-{job}",
        owners=1,
        job=job,
        host="h1",
    )
    return value, encode_claim(value, store.algorithm)


def put(store, where, name, data):
    durable.commit_bytes(where, name, data)


def files(store):
    return sorted(os.path.join(where, name) for where, _, found in os.walk(store.path) for name in found)


# ---------------------------------------------------------------- newest, lineage, abandoned


def test_empty_store(store):
    seen = choose.survey(store)
    assert (seen.epoch, seen.next_entry, seen.newest, seen.lineage) == (0, 1, None, ())
    assert resume(store) == 1
    assert os.listdir(store.published.path) == []
    seen = choose.survey(store)
    assert (seen.epoch, seen.next_entry, seen.newest, seen.damage) == (1, 1, None, None)
    assert seen.claims[1].continues is None


def test_an_epoch_that_published_nothing_is_a_fresh_start_again(store):
    assert resume(store) == 1
    assert resume(store) == 2
    assert choose.survey(store).newest is None
    assert os.listdir(store.published.path) == ["e000001-000001.json"]
    assert resume(store) == 3
    publish(store, 3, 1)
    assert choose.survey(store).newest.name == "e000003-000001"


def test_newest_and_lineage_over_epochs(store):
    resume(store)
    first, second = publish(store, 1, 1, update=9), publish(store, 1, 2, update=10)
    assert choose.survey(store).newest == second
    assert resume(store) == 2
    seen = choose.survey(store)
    assert seen.newest == second and seen.next_entry == 1 and seen.epoch == 2
    assert resume(store) == 3  # epoch 2 published nothing
    third = publish(store, 3, 1, update=100)
    seen = choose.survey(store)
    assert seen.newest == third
    assert seen.lineage == (third.position, second.position, first.position)
    assert seen.roots[second.position] == second.root
    assert [seen.candidate(store, p).root for p in seen.lineage] == [third.root, second.root, first.root]
    assert seen.abandoned == () and seen.damaged == ()
    claims = [seen.claims[e] for e in (1, 2, 3)]
    assert [c.base for c in claims] == [None, (1, 2), (1, 2)]


def test_r10_newest_by_entry_never_by_file_time(store):
    resume(store)
    generations = [publish(store, 1, n, update=u) for n, u in ((1, 9), (2, 10), (3, 100))]
    for times in ((3, 2, 1), (5, 5, 5)):
        for generation, time in zip(generations, times, strict=True):
            name = os.path.join(store.published.path, names.entry(1, generation.number))
            os.utime(name, (time, time))
        newest = choose.survey(store).newest
        assert newest.manifest.prefix.moment.update == 100
    publish(store, 1, 4, update=101)
    assert choose.survey(store).newest.manifest.prefix.moment.update == 101


def test_an_explicit_generation_abandons_the_later_ones(store):
    resume(store)
    old = publish(store, 1, 1)
    publish(store, 1, 2)
    publish(store, 1, 3)
    assert resume(store, chosen=old, explicit=True, fork=(old.root, "job")) == 2
    seen = choose.survey(store)
    assert seen.newest == old and seen.lineage == ((1, 1),)
    assert seen.abandoned == ((1, 3), (1, 2))
    assert seen.claims[2].fork == (old.root, "job")
    new = publish(store, 2, 1)
    assert choose.survey(store).lineage == (new.position, old.position)
    assert seen.candidate(store, (1, 3)).number == 3


def test_an_old_listing_only_means_one_more_exists(store, monkeypatch):
    resume(store)
    publish(store, 1, 1)
    old = store.published.names(), store.epochs.names()
    publish(store, 1, 2)
    monkeypatch.setattr(durable.Directory, "names", lambda self: old[self.path.endswith("epochs")])
    seen = choose.survey(store)
    assert seen.newest.number == 2 and seen.next_entry == 3
    assert resume(store) == 2
    new = publish(store, 2, 1)
    seen = choose.survey(store)
    assert seen.newest == new and seen.epoch == 2
    assert seen.lineage[0] == (2, 1)


# ---------------------------------------------------------------- a claim and a publication compete


def test_a_publisher_that_finds_a_claim_is_superseded(store):
    resume(store, job="first")
    publish(store, 1, 1)
    assert resume(store, job="second", restart=2) == 2
    before = files(store)
    with pytest.raises(Superseded) as caught:
        entries.publish(store, 1, 2, root_bytes(store, 1, 2, update=2))
    assert "second on host continued as epoch 2" in str(caught.value)
    assert caught.value.code == "superseded" and not caught.value.retryable
    assert files(store) == before
    assert choose.survey(store).newest.position == (1, 1)


def test_a_continuation_that_finds_a_root_chooses_again(store):
    resume(store)
    publish(store, 1, 1)
    seen = choose.survey(store)
    newer = publish(store, 1, 2)
    end = choose.continuation(store, seen, seen.newest, choose.Facts(owners=1))
    assert isinstance(end, choose.Newer)
    assert end.candidate == newer and end.survey.next_entry == 3
    assert not store.epochs.exists(names.claim(2))
    end = choose.continuation(store, seen, seen.newest, choose.Facts(owners=1, explicit=True))
    assert isinstance(end, choose.Claimed) and end.epoch == 2
    assert choose.survey(store).newest == seen.newest
    assert store.published.exists(names.entry(1, 3))


def test_a_continuation_that_finds_a_claim_is_refused_by_name(store):
    seen = choose.survey(store)
    resume(store, job="first")
    with pytest.raises(Superseded, match="first on host continued as epoch 1"):
        choose.continuation(store, seen, None, choose.Facts(owners=1))
    publish(store, 1, 1)
    seen = choose.survey(store)
    resume(store, job="second")
    with pytest.raises(Superseded, match="second on host continued as epoch 2"):
        choose.continuation(store, seen, seen.newest, choose.Facts(owners=1))


def test_a_seal_without_its_record_is_completed_by_whoever_finds_it(store):
    resume(store)
    first = publish(store, 1, 1)
    _, data = claim_of(store, 2, first)
    put(store, store.published, names.entry(1, 2), data)
    with Store.open(store.path) as reader:
        seen = choose.survey(reader)
        assert (seen.epoch, seen.next_entry, seen.newest) == (2, 1, first)
        assert seen.claims[2].job == "other"
    assert not store.epochs.exists(names.claim(2))
    seen = choose.survey(store)
    assert (seen.epoch, seen.newest) == (2, first)
    assert store.epochs.read(names.claim(2), 1 << 20) == data


def test_a_publisher_completes_the_seal_that_it_finds(store, monkeypatch):
    resume(store)
    first = publish(store, 1, 1)
    _, data = claim_of(store, 2, first)
    put(store, store.published, names.entry(1, 2), data)
    synced = []
    real = durable.Directory.sync
    monkeypatch.setattr(durable.Directory, "sync", lambda self: (synced.append(self.path), real(self))[1])
    with pytest.raises(Superseded, match="other on h1"):
        entries.publish(store, 1, 2, root_bytes(store, 1, 2, update=2))
    assert store.epochs.read(names.claim(2), 1 << 20) == data
    assert synced == [store.published.path]  # the seal first: a record must not outlive it


def test_a_claim_whose_record_has_other_bytes_is_void(store):
    resume(store)
    first = publish(store, 1, 1)
    stale = choose.survey(store)
    assert resume(store, job="second") == 2
    second = publish(store, 2, 1)
    # Retention has freed the old name; a continuation with a very old view takes it.
    store.published.unlink(names.entry(1, 1))
    stale_seen = choose.dataclasses.replace(stale, next_entry=1)
    with pytest.raises(Superseded, match="second on host"):
        choose.continuation(store, stale_seen, first, choose.Facts(owners=1, job="stale"))
    assert entries.look(store, 1, 1).claim.job == "stale"
    seen = choose.survey(store)
    assert seen.newest == second and seen.epoch == 2 and seen.claims[2].job == "second"
    assert seen.damage is None and seen.abandoned == ()
    with pytest.raises(Refused) as caught:
        seen.candidate(store, (1, 1))
    assert caught.value.code == "not-a-generation"
    assert choose.named(store, seen) == ({Attempt(2, 1)}, 0)
    assert resume(store) == 3


def _race(path, rounds, barrier, answers, me):
    with Store.open(path, write=True) as store:
        for _ in range(rounds):
            seen = choose.survey(store)
            barrier.wait()
            try:
                end = choose.continuation(store, seen, seen.newest, choose.Facts(owners=1, job=f"job{me}"))
                answers.put((seen.epoch, me, type(end).__name__))
            except Superseded as error:
                answers.put((seen.epoch, me, str(error.found)))
            barrier.wait()


def test_a_hundred_races_of_four_processes_for_the_next_epoch(store):
    context = multiprocessing.get_context("spawn")
    barrier, answers, rounds = context.Barrier(4), context.Queue(), 100
    processes = [
        context.Process(target=_race, args=(store.path, rounds, barrier, answers, me)) for me in range(4)
    ]
    for process in processes:
        process.start()
    results = [answers.get(timeout=200) for _ in range(4 * rounds)]
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    seen = choose.survey(store)
    assert seen.epoch == rounds
    for epoch in range(rounds):
        mine = {me: answer for at, me, answer in results if at == epoch}
        winners = [me for me, answer in mine.items() if answer == "Claimed"]
        assert len(mine) == 4 and len(winners) == 1
        job = f"job{winners[0]}"
        assert seen.claims[epoch + 1].job == job
        assert all(a in ("Claimed", f"epoch {epoch + 1} of {job}") for a in mine.values())


def test_races_of_a_publisher_and_a_continuation(store):
    resume(store)
    publish(store, 1, 1)
    epoch, number = 1, 2
    for _ in range(30):
        seen = choose.survey(store)
        data = root_bytes(store, epoch, number, update=number)
        ends, barrier = {}, threading.Barrier(2)

        def publisher(epoch=epoch, number=number, data=data, ends=ends, barrier=barrier):
            barrier.wait()
            try:
                ends["published"] = entries.publish(store, epoch, number, data)
            except Superseded:
                pass

        thread = threading.Thread(target=publisher)
        thread.start()
        barrier.wait()
        end = choose.continuation(store, seen, seen.newest, choose.Facts(owners=1))
        thread.join()
        after = choose.survey(store)
        if isinstance(end, choose.Claimed):
            assert "published" not in ends
            assert after.newest.root == seen.newest.root
            epoch, number = end.epoch, 1
        else:
            assert after.newest.root == ends["published"] == end.candidate.root
            number += 1


# ---------------------------------------------------------------- what the disk says


def test_no_file_is_replaced(store):
    resume(store)
    publish(store, 1, 1)
    with pytest.raises(Refused) as caught:
        entries.publish(store, 1, 1, root_bytes(store, 1, 1, update=77))
    assert caught.value.code == "entry-taken"
    assert choose.survey(store).newest.manifest.prefix.moment.update == 1


def test_its_own_bytes_are_its_own_publication(store):
    resume(store)
    first = publish(store, 1, 1)
    assert entries.publish(store, 1, 1, root_bytes(store, 1, 1, update=1)) == first.root


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.EEXIST])
def test_a_rename_whose_answer_got_lost_is_a_publication(store, monkeypatch, number):
    resume(store)
    failing_commit(monkeypatch, names.entry(1, 1), "rename", number, done=True)
    first = publish(store, 1, 1)
    assert choose.survey(store).newest == first


@pytest.mark.parametrize("stage", ["sync-data", "close", "rename"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failure_before_the_rename_publishes_nothing(store, monkeypatch, stage, number):
    resume(store)
    first = publish(store, 1, 1)
    failing_commit(monkeypatch, names.entry(1, 2), stage, number, done=False)
    with pytest.raises(OSError) as caught:
        publish(store, 1, 2)
    assert (caught.value.stage, caught.value.errno) == (stage, number)
    assert choose.survey(store).newest == first
    assert publish(store, 1, 2, save=3).number == 2


def test_a_failed_directory_sync_is_doubt(store, monkeypatch):
    resume(store)
    failing_commit(monkeypatch, names.entry(1, 1), "sync-directory", errno.EIO, done=True)
    with pytest.raises(InDoubt) as caught:
        publish(store, 1, 1)
    assert caught.value.visible is True and caught.value.stage == "sync-directory"
    assert choose.survey(store).newest.position == (1, 1)


def test_a_rename_that_may_still_arrive_is_doubt(store, monkeypatch):
    resume(store)
    failing_commit(monkeypatch, names.entry(1, 1), "rename", errno.ETIMEDOUT, done=False)

    def fail(self, name, missing_ok=True):
        raise OSError(errno.EIO, "server gone", name)

    monkeypatch.setattr(durable.Directory, "unlink", fail)
    with pytest.raises(InDoubt) as caught:
        publish(store, 1, 1)
    assert caught.value.visible is False


def test_an_io_error_while_surveying_is_no_damage(store, monkeypatch):
    resume(store)
    publish(store, 1, 1)

    def fail(self, name, limit):
        raise OSError(errno.EIO, "no", name)

    monkeypatch.setattr(durable.Directory, "read", fail)
    with pytest.raises(OSError):
        choose.survey(store)


# ---------------------------------------------------------------- damage and strangers


def damage(store, name):
    path = os.path.join(store.path, name)
    with open(path, "r+b") as file:
        file.seek(30)
        file.write(b"\x00")


def test_a_damaged_newest_is_named_never_skipped_silently(store):
    resume(store)
    first = publish(store, 1, 1)
    publish(store, 1, 2)
    damage(store, observe.entry_file(1, 2))
    seen = choose.survey(store)
    assert seen.newest is None and seen.lineage == ((1, 2), (1, 1))
    assert (seen.damage.code, seen.damage.file) == ("corrupt-root", "published/e000001-000002.json")
    assert seen.damaged == (((1, 2), seen.damage),)
    # A reported fallback goes past it: to the next name, with what it skipped.
    skipped = (("e000001-000002", seen.damage.code),)
    end = choose.continuation(
        store, seen, seen.candidate(store, (1, 1)), choose.Facts(owners=1, skipped=skipped)
    )
    assert end.epoch == 2
    after = choose.survey(store)
    assert after.newest == first and after.claims[2].skipped == skipped
    assert [p for p, _ in after.damaged] == [(1, 2)]


def test_a_damaged_claim_is_named_and_no_epoch_is_taken(store):
    resume(store)
    first = publish(store, 1, 1)
    resume(store)
    damage(store, observe.record_file(2))
    seen = choose.survey(store)
    assert (seen.damage.code, seen.damage.file) == ("corrupt-claim", "epochs/e000002.json")
    assert seen.newest is None
    with pytest.raises(Refused) as caught:
        choose.continuation(store, seen, first, choose.Facts(owners=1, explicit=True))
    assert caught.value.code == "corrupt-claim"
    assert not store.epochs.exists(names.claim(3))


def test_a_missing_base_is_named_after_the_deadline(store):
    resume(store)
    publish(store, 1, 1)
    resume(store)
    path = os.path.join(store.path, observe.entry_file(1, 1))
    os.rename(path, path + ".away")
    seen = choose.survey(store)
    assert (seen.newest, seen.damage.code, seen.lineage) == (None, "missing-root", ((1, 1),))
    assert seen.damage.file == "published/e000001-000001.json"
    timer = threading.Timer(0.2, os.rename, (path + ".away", path))
    timer.start()
    assert choose.survey(store, visibility=20).newest.position == (1, 1)
    timer.join()


def test_a_base_with_other_content_is_refused(store):
    resume(store)
    publish(store, 1, 1)
    resume(store)
    path = os.path.join(store.path, observe.entry_file(1, 1))
    with open(path, "wb") as file:
        file.write(root_bytes(store, 1, 1, update=55))
    seen = choose.survey(store)
    assert seen.damage.code == "corrupt-root" and "continued" in str(seen.damage)


def test_a_lost_record_is_noticed_by_what_its_epoch_published(store):
    resume(store)
    publish(store, 1, 1)
    resume(store)
    publish(store, 2, 1)
    os.unlink(os.path.join(store.path, observe.record_file(2)))
    os.unlink(os.path.join(store.path, observe.entry_file(1, 2)))
    seen = choose.survey(store)
    assert (seen.damage.code, seen.damage.file) == ("missing-claim", "epochs/e000002.json")
    with pytest.raises(Refused):
        resume(store)


def test_roots_and_claims_of_elsewhere_are_refused(store, tmp_path):
    resume(store)
    with Store.create_or_open(tmp_path / "other") as other:
        put(store, store.published, names.entry(1, 1), root_bytes(other, 1, 1, update=1))
    assert choose.survey(store).damage.code == "misplaced-root"
    os.unlink(os.path.join(store.path, observe.entry_file(1, 1)))
    put(store, store.published, names.entry(1, 1), root_bytes(store, 1, 2, update=1))
    assert choose.survey(store).damage.code == "misplaced-root"
    os.unlink(os.path.join(store.path, observe.entry_file(1, 1)))
    put(store, store.published, names.entry(1, 1), claim_of(store, 3)[1])
    assert choose.survey(store).damage.code == "misplaced-claim"


def test_what_is_no_file_is_damage_not_a_hang(store):
    resume(store)
    os.mkfifo(os.path.join(store.path, observe.entry_file(1, 1)))
    seen = choose.survey(store)
    assert (seen.damage.code, seen.damage.file) == ("not-a-file", "published/e000001-000001.json")


def test_strangers_are_reported_and_stay(store):
    resume(store)
    first = publish(store, 1, 1)
    made = ["notes.txt", "published/e000001-000002.json~", "published/e1-2.json", "epochs/old", "data/x"]
    for name in made:
        with open(os.path.join(store.path, name), "w") as file:
            file.write("mine")
    os.mkdir(os.path.join(store.path, "published", "dir"))
    seen = choose.survey(store)
    assert seen.newest == first and seen.damaged == ()
    assert sorted(seen.strangers) == sorted([*made, "published/dir"])
    resume(store)
    assert sorted(choose.survey(store).strangers) == sorted(seen.strangers)


# ---------------------------------------------------------------- kills


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_continuing(tmp_path, monkeypatch, after):
    for k in range(1, 60):
        path = tmp_path / str(k)
        with Store.create_or_open(path, probe=False) as store:
            resume(store, job="old")
            publish(store, 1, 1)
            newest = publish(store, 1, 2)
            with killed_at(monkeypatch, k, after) as count:
                try:
                    resume(store, job="killed")
                except Killed:
                    pass
        with Store.create_or_open(path, probe=False) as store:
            with Store.open(path) as reader:
                assert choose.survey(reader).newest == newest
            seen = choose.survey(store)
            assert seen.newest == newest and seen.damage is None
            assert resume(store, job="next") == seen.epoch + 1
            after_it = choose.survey(store)
            assert after_it.newest == newest
            with pytest.raises(Superseded):
                entries.publish(store, 1, 3, root_bytes(store, 1, 3, update=3))
            assert publish(store, seen.epoch + 1, 1).position == choose.survey(store).newest.position
        if not count.dead:
            return
    raise AssertionError("still killed after 60 operations")


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_publishing(tmp_path, monkeypatch, after):
    for k in range(1, 60):
        path = tmp_path / str(k)
        acknowledged = False
        with Store.create_or_open(path, probe=False) as store:
            resume(store)
            old = publish(store, 1, 1)
            data = root_bytes(store, 1, 2, update=2)
            with killed_at(monkeypatch, k, after) as count:
                try:
                    write_attempt(store, Attempt(1, 2))
                    entries.publish(store, 1, 2, data)
                    acknowledged = True
                except Killed:
                    pass
        with Store.create_or_open(path, probe=False) as store:
            newest = choose.survey(store).newest
            assert whole(store, newest)
            assert newest.position in ((1, 1), (1, 2))
            assert newest.number == 2 or not acknowledged
            assert observe.candidate(store, (1, 1)) == old
            assert resume(store) == 2
            assert choose.survey(store).newest == newest
        if not count.dead:
            assert acknowledged
            return
    raise AssertionError("still killed after 60 operations")


def test_a_superseded_job_says_so_on_every_try(store):
    resume(store)
    publish(store, 1, 1)
    resume(store, job="second")
    publish(store, 2, 1)
    for _ in range(3):
        with pytest.raises(CheckpointError) as caught:
            entries.publish(store, 1, 2, root_bytes(store, 1, 2, update=2))
        assert caught.value.code == "superseded" and "second" in str(caught.value)
