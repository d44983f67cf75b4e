"""Interpret a protocol that needs no code: its manifest has the forms of all messages.

docs/specification/declarative.md specifies the forms and the rules. `handler` is the entry point of every package without
code. The interpreter is a `Handler` like any other: events in, effects out, no I/O. It runs in the agent's process, because it is
a part of the agent and the package is only data.

    traits       what all forms of one manifest have in common
    forms        write a message by its form; find the form of a message by its constants and its absent members
    faults       sentences about a value that breaks its schema
    protocol     the operations and roles of a manifest, compiled
    caller       the calls of the local application
    provider     the requests of the peer
    session      give each event to one of the two
"""

from __future__ import annotations

from .forms import Form, FormIndex
from .protocol import Check
from .session import DeclarativeHandler, handler
from .traits import FormTraits

__all__ = ["Check", "DeclarativeHandler", "Form", "FormIndex", "FormTraits", "handler"]
