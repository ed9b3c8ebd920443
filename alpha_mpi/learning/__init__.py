"""Learning: small data-parallel learners that are exact to the last bit, to try checkpoints on.

An *item* is one sample of the input sequence; a *batch* are the items of one update, dealt to the
owners in contiguous shares. A *rule* turns the gradient into the next parameters and keeps
*moments*, as large as the parameters, and perhaps *powers*. A *placement of state* says which of
them are replicated and which are partitioned. The *combine tree* is the order in which terms are
added: neighbours in pairs, level by level.
"""

from __future__ import annotations

from .combine import ORDER, tree
from .inputs import Inputs
from .learner import DataParallel
from .placement import PLACEMENTS, Placement
from .rules import RULES, Rule

__all__ = ["ORDER", "PLACEMENTS", "RULES", "DataParallel", "Inputs", "Placement", "Rule", "tree"]
