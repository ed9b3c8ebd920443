"""alpha-mpi rm, prune, pin, unpin: what goes, what stays, and that --dry-run changes nothing."""

import hashlib

import pytest

ONE, TWO, NEWEST = "e000001-000001", "e000001-000002", "e000002-000001"


def content(store):
    """Every file of a store, with a digest of its bytes."""
    return {
        str(p.relative_to(store)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in store.rglob("*")
        if p.is_file()
    }


def left(answer, store):
    return [row["name"] for row in answer("ls", store)[1]["generations"]]


@pytest.mark.parametrize(
    "words",
    [("rm", "u10"), ("prune", "--keep", "1"), ("pin", "u10"), ("unpin", "u10"), ("cp", "u10", "NEW")],
)
def test_dry_runs_change_nothing(store, tmp_path, answer, words):
    name, *rest = (str(tmp_path / "new") if w == "NEW" else w for w in words)
    before = content(store)
    code, found = answer(name, store, *rest, "--dry-run")
    assert code == 0 and found["dry_run"]
    assert content(store) == before and not (tmp_path / "new").exists()


def test_rm(store, answer, command):
    code, found = answer("rm", store, "u10", TWO)
    assert code == 0
    assert [row["name"] for row in found["generations"]] == [ONE, TWO]
    assert found["bytes"] == sum(row["bytes"] for row in found["generations"]) > 0
    assert left(answer, store) == [NEWEST]
    assert sorted(p.name for p in (store / "data").iterdir()) == [NEWEST]
    assert command("verify", store)[0] == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("u30",), "newest-generation"),
        (("latest", "--offline"), "newest-generation"),
        (("u11",), "no-generation"),
        (("e000001-000003",), "no-generation"),  # the seal
        (("u10", "u30"), "newest-generation"),
    ],
)
def test_what_rm_refuses_stays_with_all_the_rest(store, answer, words, code):
    before = content(store)
    status, found = answer("rm", store, *words)
    assert status == 1 and found["error"]["code"] == code
    assert content(store) == before


def test_the_open_epoch_needs_offline(store, job, answer, command):
    job(store, (40, 50))  # epoch 3
    code, found = answer("prune", store, "--keep", "1", "--dry-run")
    assert code == 0 and found["open"] == ["e000003-000001"]
    assert {row["name"] for row in found["generations"]} == {ONE, TWO, NEWEST} - {"e000003-000001"}
    told = command("prune", store, "--keep", "1", "--dry-run")[1]
    assert "1 generation of the last epoch stays: --offline says that no job runs" in told
    assert answer("rm", store, "u40")[1]["error"]["code"] == "open-epoch"
    code, found = answer("rm", store, "u40", "--offline")
    assert code == 0 and found["generations"][0]["name"] == "e000003-000001"
    assert left(answer, store) == [ONE, TWO, NEWEST, "e000003-000002"]
    assert command("ls", store, "--removed")[1].splitlines()[0].endswith("4 generations")
    rows = answer("ls", store, "--removed")[1]["generations"]
    assert [row["state"] for row in rows if row["name"] == "e000003-000001"] == ["removed"]
    job(store, (60,))  # its epoch has ended: the next run gives the name back
    assert answer("prune", store, "--keep", "9")[0] == 0
    assert answer("ls", store)[1]["removed"] == []


def test_nothing_goes_while_the_newest_is_damaged(store, answer):
    pack = next((store / "data" / NEWEST).rglob("*.pack"))
    good = pack.read_bytes()
    pack.write_bytes(good[:-1] + b"x")
    for words in (("rm", "u10"), ("prune", "--keep", "1")):
        code, found = answer(words[0], store, *words[1:])
        assert code == 1 and found["error"]["code"] == "newest-damaged"
    assert left(answer, store) == [ONE, TWO, NEWEST]
    assert answer("rm", store, "u10", "--no-verify")[0] == 0
    (store / "published" / f"{NEWEST}.json").write_bytes(b"")
    assert answer("prune", store, "--keep", "1", "--no-verify", "--offline")[0] in (0, 1)
    assert TWO in left(answer, store)


def test_a_pinned_one_stays(store, answer, command):
    assert answer("pin", store, "u10")[1]["changed"]
    assert not answer("pin", store, "u10")[1]["changed"]
    assert answer("rm", store, "u10")[1]["error"]["code"] == "pinned"
    code, found = answer("prune", store, "--keep", "1")
    assert (code, found["pinned"]) == (0, [ONE])
    assert command("prune", store, "--keep", "1")[1] == "nothing to remove\n1 pinned generation stays\n"
    assert left(answer, store) == [ONE, NEWEST]
    assert answer("ls", store)[1]["generations"][0]["pinned"]
    assert answer("unpin", store, "u10")[1]["changed"]
    assert answer("prune", store, "--keep", "1")[0] == 0
    assert left(answer, store) == [NEWEST]


def test_prune_by_rules(tmp_path, job, answer):
    store = tmp_path / "ckpt"
    job(store, (1, 2, 3, 4, 5, 6), scores={1: 5.0, 2: 0.1, 3: 7.0})
    job(store, (7,))
    code, found = answer("prune", store, "--keep", "2", "--every", "4", "--best", "1", "--dry-run")
    assert code == 0
    assert [row["name"][-1] for row in found["generations"]] == ["1", "3", "5"]
    found = answer("prune", store, "--keep", "1", "--best", "1", "--highest")[1]
    assert [row["name"][-1] for row in found["generations"]] == ["1", "2", "4", "5", "6"]
    rows = answer("ls", store)[1]["generations"]
    assert [row["update"] for row in rows] == [3, 7] and rows[0]["score"] == 7.0


def test_abandoned_ones_go_when_asked(store, answer):
    # As if the job of epoch 2 had continued the first generation.
    (store / "notes").write_text("mine")
    abandon(store)
    rows = {row["name"]: row["state"] for row in answer("ls", store)[1]["generations"]}
    assert rows[TWO] == "abandoned"
    assert answer("prune", store, "--keep", "1")[0] == 0
    assert left(answer, store) == [TWO, NEWEST]
    assert answer("why", store)[1]["others"][0]["state"] == "abandoned"
    assert answer("prune", store, "--keep", "1", "--abandoned")[0] == 0
    assert left(answer, store) == [NEWEST]
    assert (store / "notes").exists()


def abandon(path):
    """Let epoch 2 continue the first generation of epoch 1, not the second."""
    import msgspec

    from alpha_mpi.format.claim import decode_claim, encode_claim, root_digest
    from alpha_mpi.format.manifest import decode_manifest, encode_manifest

    first = (path / "published" / f"{ONE}.json").read_bytes()
    for name in ("epochs/e000002.json", "published/e000001-000003.json"):
        claim = decode_claim((path / name).read_bytes(), name)
        claim = msgspec.structs.replace(claim, continues=root_digest(first, name), base=(1, 1))
        (path / name).write_bytes(encode_claim(claim))
    newest = path / "published" / f"{NEWEST}.json"
    manifest, _ = decode_manifest(newest.read_bytes(), file=NEWEST)
    root = msgspec.structs.replace(manifest.root, continues=root_digest(first, ONE))
    newest.write_bytes(encode_manifest(msgspec.structs.replace(manifest, root=root)))


def test_lines_for_people(store, command):
    assert command("rm", store, "u10", "--dry-run")[1].startswith(f"would remove {ONE}: 1 file, ")
    assert command("pin", store, "u10", "--dry-run")[1] == f"{ONE} would be pinned\n"
    assert command("pin", store, "u10")[1] == f"{ONE} pinned\n"
    assert command("unpin", store, "u20")[1] == f"{TWO} was not pinned\n"
    out = command("prune", store, "--keep", "1")[1].splitlines()
    assert out[0] == f"removed {TWO}" and out[1].startswith("freed ")
    assert out[2:] == ["1 pinned generation stays"]
    assert command("unpin", store, "u10")[0] == 0
    assert command("prune", store, "--keep", "1")[0] == 0
    assert command("prune", store, "--keep", "1")[1] == "nothing to remove\n"
