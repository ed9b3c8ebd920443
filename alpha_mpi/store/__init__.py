"""Store: the files, and the only way in which anything becomes durable or visible.

A *target* is a file that is being written; its *commit* makes it durable and gives it its name. An
*entry* is a numbered name in an epoch, taken by a root or a claim. A *mark* says that an entry is
removed, or pinned. A *leftover* is a file of an attempt that no root names; a *stranger* one that we
did not make.
"""
