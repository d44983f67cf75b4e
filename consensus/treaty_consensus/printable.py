"""Escape foreign text for error messages, logs and terminals.

Unescaped text could move the cursor, forge a line of a log, or reverse the direction of writing.
"""

from __future__ import annotations


def printable(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text on one line.

    Backslashes and characters that are not printable are escaped as `\\x1b`: control characters, line ends, marks that change
    the direction of writing, lone surrogates.
    """
    # Backslashes first: a literal backslash in the text must not look like an escape.
    return escaped(text[:limit].replace("\\", "\\\\"))


def escaped(text: str) -> str:
    """Return a text on one line, with characters that are not printable escaped as `\\x1b`. Existing escapes stay as they are."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def short(digest: str) -> str:
    """Return the first and last characters of a digest, for a table."""
    return f"{digest[:10]}…{digest[-4:]}" if len(digest) > 20 else digest
