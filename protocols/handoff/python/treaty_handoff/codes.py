"""The error codes of durable handoff; see `treaty_consensus.codes`."""

from __future__ import annotations

from treaty_consensus.codes import Code
from treaty_consensus.errors import Conflict, Malformed, NotFound, Refused, TooLarge, Unauthorized, Unavailable, Untrusted


class HandoffCode(Code):
    """Codes of messages, of their journey and of their work."""

    BROKER = "handoff.broker", "The broker does not answer.", Unavailable
    CHANGED = "handoff.changed", "Another message has this id already.", Conflict
    EXPIRED = "handoff.expired", "The message has expired.", Refused
    FORM = "handoff.form", "The message is not of the protocol's form and version.", Malformed, Refused
    INCOMPLETE = (
        "handoff.incomplete",
        "A required action was not done, the success criteria are not met, or the work began too often.",
        Refused,
    )
    JOURNAL = "handoff.journal", "The database of the journal does not answer.", Unavailable
    PERMISSION = (
        "handoff.permission",
        "The sender may not send messages of this kind, or the message is for another agent.",
        Refused,
    )
    PROOF = "handoff.proof", "The message is not signed by its sender.", Unauthorized
    SEALED = "handoff.sealed", "Stored data were changed, or sealed with another key.", Untrusted
    SETTINGS = "handoff.settings", "The URL of the database, the key for storage or the queue cannot be used.", Malformed, Refused
    SET_ASIDE = "handoff.set-aside", "No message with this number is set aside.", NotFound
    SILENCE = "handoff.silence", "The answer did not come in time.", Unavailable
    TOO_LARGE = "handoff.too-large", "The message is over its cap.", TooLarge
    UNHANDLED = "handoff.unhandled", "The agent has no function for messages of this kind.", NotFound
