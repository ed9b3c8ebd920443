"""The logical model: what a state is. Knows neither MPI nor files.

A *word* is one element of a *region*; a *region* is one logical array (or document) of the state;
the *schema* is the ordered declaration of all regions. A *format* is a number format by name. A
*piece* says which words of a region one owner holds: an `Interval` of the flattened C order, a
`Box` of the global shape, or the whole. A *rule* deals the words of a region to owners. A *capture*
is one owner's pieces at one *moment*; its *prefix* binds it to one *attempt*. *Learner* and
*contract* say whose state it is and on what its bits depend. *Accept* says which differences a
resume goes on in spite of, and why.
"""

from .accept import Accept
from .capture import FORMAT_VERSION, Attempt, Moment, Prefix
from .formats import Format, by_name, of_dtype
from .identity import Contract, Learner
from .layout import Rule, grid, irregular, mesh, on, per_owner, replicated, rows, shares
from .pieces import Box, Interval, Piece
from .schema import Region, Schema

__all__ = [
    "FORMAT_VERSION",
    "Accept",
    "Attempt",
    "Box",
    "Contract",
    "Format",
    "Interval",
    "Learner",
    "Moment",
    "Piece",
    "Prefix",
    "Region",
    "Rule",
    "Schema",
    "by_name",
    "grid",
    "irregular",
    "mesh",
    "of_dtype",
    "on",
    "per_owner",
    "replicated",
    "rows",
    "shares",
]
