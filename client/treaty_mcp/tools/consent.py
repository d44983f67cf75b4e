"""Ask the user of a host before a tool changes something.

A host of MCP 2026-07-28 gets `input_required` with a form and a sealed state, and calls again with the answer and the state. An
older host gets the request `elicitation/create` during the call. A host that can show no form is refused: a model alone never
consents.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from mcp import types
from mcp.server import ServerRequestContext
from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Refused

LIFETIME = 600
"""Seconds in which the user answers."""
MAX_USED = 1024
_KEY = "consent"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"confirm": {"type": "boolean", "title": "Do it", "default": False}},
    "required": ["confirm"],
}


class Consent:
    """The questions of one process. A state is sealed with a key of the process, for one call, and used once."""

    def __init__(self) -> None:
        self._codec = AESGCMRequestStateCodec([os.urandom(32)])
        self._used: dict[str, None] = {}

    async def ask(
        self, question: str, params: types.CallToolRequestParams, context: ServerRequestContext[Any]
    ) -> types.InputRequiredResult | None:
        """Return None once the user has said yes, or the request that asks. Raises `Refused` (`system.unconfirmed`)."""
        capabilities = context.session.client_capabilities
        if capabilities is None or capabilities.elicitation is None:
            fault = "This changes something, and the host can ask nobody: it has no elicitation."
            raise Refused(SystemCode.UNCONFIRMED, fault, fix="Do it at a shell with the command of the same name.")
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._check(await context.session.elicit_form(question, _SCHEMA, context.request_id))
            return None
        if params.request_state is None:
            return self._question(question, params)
        self._unseal(params)
        self._check((params.input_responses or {}).get(_KEY))
        return None

    def _question(self, question: str, params: types.CallToolRequestParams) -> types.InputRequiredResult:
        state = {"call": _digest(params), "until": int(time.time()) + LIFETIME, "once": os.urandom(12).hex()}
        form = types.ElicitRequestFormParams(message=question, requested_schema=_SCHEMA)
        return types.InputRequiredResult(
            input_requests={_KEY: types.ElicitRequest(params=form)}, request_state=self._codec.seal(json.dumps(state).encode())
        )

    def _unseal(self, params: types.CallToolRequestParams) -> None:
        try:
            state = json.loads(self._codec.unseal(params.request_state or ""))
        except InvalidRequestState as error:
            raise _unconfirmed("The state is none of this server.") from error
        if state["call"] != _digest(params) or state["until"] < time.time() or state["once"] in self._used:
            raise _unconfirmed("The answer is for another call, too late, or was used before.")
        self._used[state["once"]] = None
        # The oldest state that is forgotten is long over its time, or its user answers more than once a second.
        if len(self._used) > MAX_USED:
            del self._used[next(iter(self._used))]

    def _check(self, answer: Any) -> None:
        if isinstance(answer, Mapping):
            answer = types.ElicitResult.model_validate(answer)
        if (
            not isinstance(answer, types.ElicitResult)
            or answer.action != "accept"
            or (answer.content or {}).get("confirm") is not True
        ):
            raise _unconfirmed("The user did not agree.")


def _digest(params: types.CallToolRequestParams) -> str:
    return hashlib.sha256(json.dumps([params.name, params.arguments or {}], sort_keys=True).encode()).hexdigest()


def _unconfirmed(text: str) -> Refused:
    return Refused(SystemCode.UNCONFIRMED, text, fix="Call the tool again without a state.")
