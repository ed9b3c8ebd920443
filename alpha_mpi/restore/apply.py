"""Applying: what was validated goes to its destinations.

Only what `validate` returned can be applied. Bytes that were not staged are read again, and every
chunk is checked again before one word of it is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import Refused
from .plan import DOCUMENTS
from .staging import sink_of
from .validate import STEP, Checked, deliver, read_again

#: Takes what was made for one need: a new array, or a document's value.
Give = Callable[[object], None]


def apply(checked: Checked, give: Sequence[Give | None]) -> None:
    """Write everything, one `give` per need: None where the target's array is filled in place.

    Called after everybody agreed. Raises as `fill` and `hand_over`; `checked` is closed in any case.
    """
    try:
        fill(checked)
        hand_over(checked, give)
    finally:
        checked.close()


def fill(checked: Checked) -> None:
    """Write every array that is filled in place. What must be read again comes first: only that
    can still fail, as `Refused` ``changed-while-reading`` or an `OSError`."""
    plan = checked.plan
    sinks = {
        number: sink_of(target.array)
        for number, target in enumerate(checked.targets)
        if target.array is not None
    }
    ring = np.empty(STEP, dtype=np.uint8).data
    for part in sorted(checked.parts, key=lambda p: p.data is not None):
        read = plan.reads[part.read]
        view = part.data
        for copy in read.copies:
            sink = sinks.get(copy.need)
            if sink is None:
                continue
            if view is None:
                view = read_again(checked, part, ring)
            deliver(sink, copy.blocks, view, part.start, plan.regions[read.record.ordinal].format)


def hand_over(checked: Checked, give: Sequence[Give | None]) -> None:
    """Give every new array and document away. Raises what the caller's `give` raises."""
    plan = checked.plan
    for number, (need, take) in enumerate(zip(plan.needs, give, strict=True)):
        if take is None:
            continue
        if number not in checked.made:
            region = plan.regions[need.ordinal]
            kind = "document" if region.kind in DOCUMENTS else "array"
            raise Refused(f"no {kind} was validated", code="incomplete-cover", region=region.name)
        take(checked.made.pop(number))
