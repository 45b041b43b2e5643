"""Names and texts of others, made harmless for where they are shown. HTML is escaped by its templates."""

from __future__ import annotations

import html
import re

_MARKUP = re.compile(r"([\\`*|]|\](?=[(\[:]))")


def visible(text: str, keep: str = "") -> str:
    """Returns the text with every character that a terminal would not print, or would obey, as its escape.

    Args:
        text: A name, or a message.
        keep: Characters that stay as they are, such as a message's line breaks.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, in the plural where that is due: ``1 round``, ``2 rounds``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def in_markdown(text: str) -> str:
    """Returns a text that Markdown, also in a table, and the HTML in it show as it is; line breaks stay."""
    return _MARKUP.sub(r"\\\1", html.escape(text, quote=False))
