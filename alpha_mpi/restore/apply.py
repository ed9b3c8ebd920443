"""Applying: what was validated goes to its destinations.

Only what `validate` returned can be applied. Bytes that were not staged are read again, and every
chunk is checked again before one word of it is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import Refused
from .plan import DOCUMENTS
from .staging import Sink
from .validate import STEP, Checked, deliver, read_again

#: Takes what was made for one need: a new array, or a document's value.
Give = Callable[[object], None]


def apply(checked: Checked, give: Sequence[Give | None]) -> None:
    """Write everything, one `give` per need: None where the target's array is filled in place.

    Called after every owner agreed. What must be read again comes first, as only that can still
    fail; the callers' own code comes last. Raises `Refused` ``changed-while-reading``, or what
    `give` raises, with the region named by the caller. `checked` is closed in any case.
    """
    plan = checked.plan
    sinks = {
        number: Sink(target.array)
        for number, target in enumerate(checked.targets)
        if target.array is not None
    }
    try:
        ring = np.empty(STEP, dtype=np.uint8).data
        for part in sorted(checked.parts, key=lambda p: p.data is not None):
            view = read_again(checked, part, ring) if part.data is None else part.data
            read = plan.reads[part.read]
            for copy in read.copies:
                sink = sinks.get(copy.need)
                if sink is not None:
                    deliver(sink, copy.blocks, view, part.start, plan.regions[read.record.ordinal].format)
        for number, (need, hand_over) in enumerate(zip(plan.needs, give, strict=True)):
            if hand_over is None:
                continue
            if number not in checked.made:
                region = plan.regions[need.ordinal]
                kind = "document" if region.kind in DOCUMENTS else "array"
                raise Refused(f"no {kind} was validated", code="incomplete-cover", region=region.name)
            hand_over(checked.made.pop(number))
    finally:
        checked.close()
