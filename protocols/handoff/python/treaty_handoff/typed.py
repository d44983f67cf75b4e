"""Typed data of messages, beside dicts: one class for each type, with the members that the protocol names.

>>> Notification(event="LINE_RESTORED").payload()
{'handoff_type': 'NOTIFICATION', 'data': {'event': 'LINE_RESTORED'}}
>>> RequestInformation.read({"requested_info_keys": ["level"]}).requested_info_keys
('level',)
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec

from treaty_consensus.errors import Malformed

from .codes import HandoffCode

Free = dict[str, Any]
"""An object whose members are the sender's."""


class Data(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The `data` of one type. Members that are not set are absent. Further members of a message are passed over."""

    kind: ClassVar[str]

    def payload(self) -> dict[str, Any]:
        """Return the `payload` of a message."""
        return {"handoff_type": self.kind, "data": msgspec.json.decode(msgspec.json.encode(self))}

    @classmethod
    def read(cls, data: object) -> Self:
        """Return the data of a message. Raises `Malformed` for data of another form."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise Malformed(HandoffCode.FORM, f"payload.data is not of {cls.kind}: {error}.") from error


class SubTask(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of a task."""

    sub_task_id: str = ""
    description: str = ""
    status: str = ""
    depends_on: tuple[str, ...] = ()


class TaskTransfer(Data, frozen=True):
    """A whole task moves."""

    kind = "TASK_TRANSFER"
    objective: str = ""
    sub_tasks: tuple[SubTask, ...] = ()
    inputs: Free = {}
    progress: int | None = None


class RequestInformation(Data, frozen=True):
    """The sender needs information."""

    kind = "REQUEST_INFORMATION"
    requested_info_keys: tuple[str, ...]
    query_parameters: Free = {}


class ProvideInformation(Data, frozen=True):
    """Here is information."""

    kind = "PROVIDE_INFORMATION"
    information: Free = {}
    missing_keys: tuple[str, ...] = ()
    in_reply_to: str = ""


class CustomerInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The customer of an escalation."""

    user_id: str
    name: str
    contact_number: str = ""


class TechnicalDetails(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The technical side of an escalation."""

    router_model: str = ""
    isp: str = ""
    symptoms: str = ""
    logs_attached: bool = False
    log_references: tuple[str, ...] = ()


class Escalation(Data, frozen=True):
    """The sender cannot solve it."""

    kind = "ESCALATION"
    issue_category: str
    severity: str
    customer_info: CustomerInfo
    technical_details: TechnicalDetails = TechnicalDetails()

    def payload(self) -> dict[str, Any]:
        """Return the `payload` of a message. The technical details are always there."""
        payload = super().payload()
        payload["data"].setdefault("technical_details", {})
        return payload


class Notification(Data, frozen=True):
    """An event happened."""

    kind = "NOTIFICATION"
    event: str = ""
    detail: str = ""
    attributes: Free = {}


class StatusUpdate(Data, frozen=True):
    """Feedback on a message or a task."""

    kind = "STATUS_UPDATE"
    status: str = ""
    in_reply_to: str = ""
    progress: int | None = None
    detail: str = ""
    issues: tuple[str, ...] = ()
    actions_done: tuple[str, ...] = ()
    criteria_met: bool | None = None
    result: Free = {}
    retry_after: int | None = None


class ApprovalRequest(Data, frozen=True):
    """The sender needs a decision."""

    kind = "APPROVAL_REQUEST"
    subject: str = ""
    options: tuple[str, ...] = ()
    details: Free = {}
    deadline: str = ""
