"""The forms that an owner demands of `data`, beside those of the protocol: a JSON Schema for a type.

An organisation publishes its form as a protocol, whose document has it in a block `json schema`. `form_in` takes it from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, NoReturn

from treaty_consensus.errors import Malformed
from treaty_io.extras import naming_extras

from .codes import HandoffCode
from .messages import Message, kind_of

with naming_extras("handoff"):
    import jsonschema_rs

MAX_ISSUES = 10
_BLOCK = re.compile(r"^```json schema\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class DataForms:
    """The schemas (JSON Schema 2020-12) of an owner, by type."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises `Malformed` for a schema that is none, or that refers to another place."""
        try:
            self._validators = {
                str(kind): jsonschema_rs.Draft202012Validator(dict(schema), validate_formats=True, retriever=_refuse)
                for kind, schema in schemas.items()
            }
        except ValueError as error:
            raise Malformed(HandoffCode.SETTINGS, f"A form of data is no JSON Schema: {str(error).splitlines()[0]}.") from error

    def check(self, message: Message) -> None:
        """Check the data of a valid message. Raises `Malformed` with the faults; they name places and rules, and no values."""
        validator = self._validators.get(kind_of(message))
        if validator is not None and (errors := list(islice(validator.iter_errors(message["payload"]["data"]), MAX_ISSUES))):
            raise Malformed(HandoffCode.FORM, " ".join(dict.fromkeys(map(_sentence, errors))))


def form_in(document: str) -> dict[str, Any]:
    """Return the JSON Schema in the document of a protocol. Raises `Malformed` if it has none."""
    match = _BLOCK.search(document)
    if match is None:
        raise Malformed(HandoffCode.SETTINGS, "The document has no block `json schema`.")
    schema: dict[str, Any] = json.loads(match[1])
    return schema


def _sentence(error: jsonschema_rs.ValidationError) -> str:
    place = ".".join(("payload", "data", *map(str, error.instance_path)))
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Required(property=name):
            return f"{place}.{name} is missing."
    return f"{place} breaks the rule {error.schema_path[-1] if error.schema_path else 'form'} of this agent."


def _refuse(uri: str) -> NoReturn:
    # A schema of another author must not make this agent fetch what it names.
    raise ValueError(f"it refers to {uri}")
