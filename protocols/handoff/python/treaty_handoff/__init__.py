"""Hand tasks, questions, escalations and reports to other agents, durably (`pip install '.[handoff]'`).

The messages are those of the protocol `handoff` (protocols/handoff). docs/guides/handoff.md is the guide.
"""

from __future__ import annotations

from .agent import HandoffAgent
from .journal import Journal
from .messages import Kind, Message, Priority, build, respond
from .permissions import Permissions, SenderGrant
from .postgres_broker import PostgresBroker
from .rabbitmq_broker import RabbitBroker
from .routes import Routes, Rule, subscription
from .sealing import Seal
from .work import Handling, Outcome, Status
from .workflow import Coordinator, Step

__all__ = [
    "Coordinator",
    "Handling",
    "HandoffAgent",
    "Journal",
    "Kind",
    "Message",
    "Outcome",
    "Permissions",
    "PostgresBroker",
    "Priority",
    "RabbitBroker",
    "Routes",
    "Rule",
    "Seal",
    "SenderGrant",
    "Status",
    "Step",
    "build",
    "respond",
    "subscription",
]
