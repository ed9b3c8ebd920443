"""Accepting: the differences that a user lets a resume go on in spite of, each with a reason.

Only what makes a generation another job's can be accepted: its learner, its contract, its device,
regions that only one side has. Nothing accepts damage, divergence or mixed moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..canonical import canonical
from ..errors import Refused
from .schema import check_name

#: Longest reason, in characters.
REASON = 1024
#: Most bytes of all names and reasons, as JSON: they must fit into a claim.
TOTAL = 1 << 19

#: (what, subject, reason), ordered: what is ``contract``, ``device``, ``extra``, ``learner`` or
#: ``missing``; the subject is a region's name, or says how the two sides differ.
Accepted = tuple[tuple[str, str, str], ...]


class Accept:
    """What a resume goes on in spite of, and why: `Checkpointer.resume(accept=...)`.

    An acceptance that was needed is recorded in the claim. One that was not needed does nothing, so
    a job script may keep it over restarts.

    Parameters
    ----------
    learner : str, optional
        Why the checkpoint of another learner is right here.
    contract : str, optional
        Why another numerical contract is, such as another combine order, or a generation that is
        bound to another number of owners.
    device : str, optional
        Why another device is: its product, or with ``Contract(device="uuid")`` the card itself.
    missing : mapping of str to str, or list of str
        Regions that the state declares and the generation does not hold, each with the reason: they
        keep the words they have. Where only names are given, `why` is the reason of each.
    extra : mapping of str to str, or list of str
        Regions that the generation holds and the state does not declare: they are dropped.
    why : str, optional
        The reason of the regions that are given as a list of names.

    Raises
    ------
    Refused
        ``argument``: a reason is missing, empty or longer than 1024 characters.
    """

    __slots__ = ("contract", "device", "extra", "learner", "missing")

    def __init__(
        self,
        *,
        learner: str | None = None,
        contract: str | None = None,
        device: str | None = None,
        missing: Mapping[str, str] | Iterable[str] = (),
        extra: Mapping[str, str] | Iterable[str] = (),
        why: str | None = None,
    ) -> None:
        self.learner = None if learner is None else _reason("learner", learner)
        self.contract = None if contract is None else _reason("contract", contract)
        self.device = None if device is None else _reason("device", device)
        self.missing = _regions("missing", missing, why)
        self.extra = _regions("extra", extra, why)
        nbytes = len(canonical(self.as_data()))
        if nbytes > TOTAL:
            raise Refused(
                "the names and reasons of accept= do not fit into a claim",
                code="argument",
                expected=f"at most {TOTAL} bytes",
                found=f"{nbytes} bytes",
            )

    def as_data(self) -> dict[str, Any]:
        """Return all reasons as canonical JSON data."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Accept) and self.as_data() == other.as_data()

    def __hash__(self) -> int:
        return hash(canonical(self.as_data()))

    def __repr__(self) -> str:
        given = {name: value for name, value in self.as_data().items() if value}
        return f"Accept({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _reason(what: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Refused(
            f"accepting {what} needs a reason, in words",
            code="argument",
            expected="text that is not empty",
            found=repr(value)[:80],
        )
    if len(value) > REASON:
        raise Refused(
            f"the reason for accepting {what} is too long",
            code="argument",
            expected=f"at most {REASON} characters",
            found=f"{len(value)} characters",
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(
            f"the reason for accepting {what} holds an unpaired surrogate", code="argument"
        ) from None
    return value


def _regions(what: str, given: object, why: str | None) -> dict[str, str]:
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        names = list(given)
        if names and why is None:
            raise Refused(
                f"accepting {what} regions needs a reason for each",
                code="argument",
                expected=f'{what}={{"name": "reason"}}, or a list of names and why="reason"',
                found=f"{what}={names!r}"[:200],
            )
        pairs = [(name, why) for name in names]
    else:
        raise Refused(
            f"{what} names regions",
            code="argument",
            expected="a mapping of names to reasons, or a list of names",
            found=repr(given)[:200],
        )
    return {check_name(name): _reason(f"{what} region {name!r}"[:200], reason) for name, reason in pairs}
