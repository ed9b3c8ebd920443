"""Asked: which generation a person or a program means by a word.

A *word* is an entry's name (`e000001-000003`), an update (`u120` or `120`), or `latest`: the
generation that a continuation would resume.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import Absent, Refused
from ..store import names, observe
from ..store.observe import Candidate, Position
from ..store.store import Store
from .choose import Survey

_ENTRY = re.compile(r"e([0-9]{6,15})-([0-9]{6,15})(\.json)?", re.ASCII)
_UPDATE = re.compile(r"u?([0-9]{1,16})", re.ASCII)
#: How many names or updates an error tells at most.
_TOLD = 12


def is_word(word: str) -> bool:
    """Return whether `word` can mean a generation of any store."""
    return word == "latest" or bool(_ENTRY.fullmatch(word) or _UPDATE.fullmatch(word))


def named(word: str) -> Position | None:
    """Return the entry that `word` names, whether it stands or not; None for an update and for latest."""
    entry = _ENTRY.fullmatch(word)
    return None if entry is None else Position(int(entry[1]), int(entry[2]))


def find(store: Store, seen: Survey, word: str) -> Candidate:
    """Return the generation that `word` means.

    Of two with the same update the one in the lineage is meant, and of those the newer. Raises
    `Absent` (``no-generation``; ``argument`` for no word at all), `Refused` where it cannot be read.
    """
    update = _UPDATE.fullmatch(word)
    if word == "latest":
        if seen.damage is not None:
            raise seen.damage
        if seen.newest is None:
            raise none_yet(store)
        return seen.newest
    if named(word) is not None:
        return seen.candidate(store, position_of(store, seen, word))
    if update is None:
        raise Absent(
            "neither an entry's name (e000001-000003), nor an update (u120), nor latest",
            code="argument",
            found=repr(word)[:80],
        )
    unreadable, others = 0, []
    for position in (*seen.lineage, *seen.abandoned):
        try:
            found = seen.candidate(store, position)
        except Refused:
            unreadable += 1
            continue
        if found.manifest.prefix.moment.update == int(update[1]):
            return found
        others.append(found.manifest.prefix.moment.update)
    more = f"; {unreadable} could not be read" if unreadable else ""
    raise Absent(
        f"no generation is of update {int(update[1])}{more}",
        code="no-generation",
        file=store.path,
        expected=_some([f"u{number}" for number in sorted(set(others))]),
    )


def position_of(store: Store, seen: Survey, word: str) -> Position:
    """Return where the generation that `word` means stands, also if its root cannot be read.

    Raises as `find`.
    """
    position = named(word)
    if position is None:
        return seen.lineage[0] if word == "latest" and seen.lineage else find(store, seen, word).position
    known = (*seen.lineage, *seen.abandoned)
    if (
        position not in known
        and not store.published.exists(names.entry(*position))
        and not observe.is_removed(store, position)
    ):
        held = [names.entry(*one).removesuffix(".json") for one in sorted(known)]
        raise Absent(
            f"there is no generation {word}, or not any more",
            code="no-generation",
            file=store.path,
            expected=_some(held),
        )
    return position


def none_yet(store: Store) -> Absent:
    """Return what is raised where a store holds no generation."""
    return Absent("the store holds no generation yet", code="no-generation", file=store.path)


def _some(held: Sequence[str]) -> str | None:
    """Return the last few of what there is."""
    if not held:
        return None
    text = ", ".join(held[-_TOLD:])
    return f"one of {len(held)}: ..., {text}" if len(held) > _TOLD else text
