"""Publication: making one capture durable and visible.

A *source* is one own piece with the bytes it has now; a *copy* is a piece that another owner writes,
of which only the digest matters. The *layout check* decides once who writes which words. *Work* is
what one role does in one attempt, as the protocol asks for it: pack, group manifest, root.
"""
