"""Words: what a STORE and a GENERATION may be on the command line, and how a shell completes them."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from ..errors import Refused
from ..restore import asked, choose
from ..store import names
from ..store.store import Store


class Folder(click.Path):
    """A folder's path, completed as one. What lies there is judged by who opens it."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as it is."""
        return value


class GenerationType(StringParamType):
    """A word for a generation, completed to those of the store that stands before it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word; refuse what can mean no generation of any store."""
        word: str = super().convert(value, param, ctx)
        if not asked.is_word(word):
            self.fail(
                f"{word!r} is neither an entry (e000001-000003), nor an update (u120), nor latest",
                param,
                ctx,
            )
        return word

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names and updates that begin so; none where the store cannot be read."""
        words = ["latest"]
        try:
            with Store.open(ctx.params["store"]) as store:
                seen = choose.survey(store)
                for position in (*seen.lineage, *seen.abandoned):
                    words.append(names.entry(*position).removesuffix(".json"))
                    words.append(f"u{seen.candidate(store, position).manifest.prefix.moment.update}")
        except (KeyError, TypeError, OSError, Refused):
            pass  # nobody reads an error while completing
        return [CompletionItem(word) for word in dict.fromkeys(words) if word.startswith(incomplete)]
