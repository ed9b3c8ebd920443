"""Publication: the machines that bring one attempt to one outcome on every role.

Built by whoever saves; driven by the MPI driver, the simulator and the tests alike. They do no I/O,
read no clock and start no thread. docs/design/ says why each rule is there.
"""

from __future__ import annotations

from .role import Role
from .star import LARGEST_SLICE, SLICE, StarMember, StarRoot
from .tree import TreeRole, Verdict

__all__ = ["LARGEST_SLICE", "SLICE", "Role", "StarMember", "StarRoot", "TreeRole", "Verdict"]
