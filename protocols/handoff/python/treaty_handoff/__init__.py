"""Hand tasks, questions, escalations and reports to other agents, durably (`pip install '.[handoff]'`).

The messages are those of the protocol `handoff` (protocols/handoff). docs/guides/handoff.md is the guide.
"""

from __future__ import annotations

from .agent import HandoffAgent
from .data_forms import form_in
from .journal import Journal
from .messages import Kind, Message, Priority, build, respond
from .permissions import Permissions, SenderGrant
from .postgres_broker import PostgresBroker
from .rabbitmq_broker import RabbitBroker
from .routes import Routes, Rule, subscription
from .sealing import Seal
from .typed import (
    ApprovalRequest,
    CustomerInfo,
    Escalation,
    Notification,
    ProvideInformation,
    RequestInformation,
    StatusUpdate,
    SubTask,
    TaskTransfer,
    TechnicalDetails,
)
from .work import Handling, Outcome, Status
from .workflow import Coordinator, Step

__all__ = [
    "ApprovalRequest",
    "Coordinator",
    "CustomerInfo",
    "Escalation",
    "Handling",
    "HandoffAgent",
    "Journal",
    "Kind",
    "Message",
    "Notification",
    "Outcome",
    "Permissions",
    "PostgresBroker",
    "Priority",
    "ProvideInformation",
    "RabbitBroker",
    "RequestInformation",
    "Routes",
    "Rule",
    "Seal",
    "SenderGrant",
    "Status",
    "StatusUpdate",
    "Step",
    "SubTask",
    "TaskTransfer",
    "TechnicalDetails",
    "build",
    "form_in",
    "respond",
    "subscription",
]
