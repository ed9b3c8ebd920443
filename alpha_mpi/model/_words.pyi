from collections.abc import Sequence
from typing import Any

# Of contiguous buffers; any of NumPy's arrays is one where it is contiguous.
def first_match(buffers: Sequence[Any], size: int, mask: int, value: int, /) -> tuple[int, int] | None: ...
