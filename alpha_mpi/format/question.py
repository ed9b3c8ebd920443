"""Questions that every decoder asks of a number, a digest or a text, and how it refuses."""

from __future__ import annotations

import re
from typing import NoReturn

from ..errors import Refused
from .envelope import is_digest

#: Largest number, size or index in a file of ours: every JSON reader holds it exactly.
LARGEST = (1 << 53) - 1
#: Ordinals, owners and roles fit the four bytes a pack's directory gives them.
LARGEST_U4 = (1 << 32) - 1

is_identifier = re.compile(r"[0-9a-z-]{1,64}", re.ASCII).fullmatch


class Question:
    """Asks of one file, and refuses with its code and name."""

    def __init__(self, file: str, code: str) -> None:
        self.file, self.code = file, code

    def refuse(
        self, what: str, expected: object = None, found: object = None, code: str | None = None
    ) -> NoReturn:
        """Raise `Refused`."""
        raise Refused(what, code=code or self.code, file=self.file, expected=expected, found=found)

    def number(self, what: str, value: int, least: int = 0, most: int = LARGEST) -> None:
        """Refuse a number outside [least, most]."""
        if not least <= value <= most:
            self.refuse(what, f"{least} to {most}", str(value)[:40])

    def digest(self, what: str, value: str) -> None:
        """Refuse a text that is no digest of a known algorithm."""
        if is_digest(value) is None:
            self.refuse(f"{what} is not a digest", "ALGORITHM:HEX", value[:100])

    def text(self, what: str, value: str, most: int, least: int = 0) -> None:
        """Refuse a text that is too long or too short, or cannot be written as UTF-8."""
        if not least <= len(value) <= most:
            self.refuse(what, f"{least} to {most} characters", f"{len(value)} characters")
        try:
            value.encode()
        except UnicodeEncodeError:
            self.refuse(what, "Unicode text", "an unpaired surrogate")

    def identifier(self, what: str, value: str) -> None:
        """Refuse what is not 1 to 64 of [0-9a-z-]."""
        if is_identifier(value) is None:
            self.refuse(what, "1 to 64 of [0-9a-z-]", value[:100])
