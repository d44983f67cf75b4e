"""Foreign text in error messages, logs and on terminals.

Whoever writes such a text could otherwise move the cursor, forge a line of a log, or turn the direction of writing.
"""

from __future__ import annotations


def printable(text: str, limit: int) -> str:
    """At most `limit` characters of a text on one line: backslashes and what is not printable (control characters, line ends,
    marks that change the direction of writing, lone surrogates) as `\\x1b`."""
    return escaped(text[:limit].replace("\\", "\\\\"))


def escaped(text: str) -> str:
    """A text on one line, with what is not printable as `\\x1b`. What is escaped already stays as it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
