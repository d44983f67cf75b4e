"""`treaty provenance`: say where the handlers of a protocol were built."""

from __future__ import annotations

import json
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.provenance import provenance as provenance_of
from treaty_client.protocols.provenance import validation_of
from treaty_client.protocols.verification.blobs import check_bytes
from treaty_consensus.codes import StatementCode
from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import Handler, Validation
from treaty_consensus.protocol import parse_protocol_uri

from .context import Options, run
from .info import read_published
from .values import Uri


def provenance(uri: Annotated[Uri, Parameter(help="The protocol's URI.")], /, *, options: Options = Options()) -> None:
    """Print where the handlers of a protocol were built, as SLSA provenance: one in-toto statement a line.

    It follows from the log, and covers handlers that a workflow of their publisher's account attached. The registry's operator
    attests that the workflow ran.
    """

    async def work() -> list[dict[str, Any]]:
        parsed = parse_protocol_uri(uri)
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            answer, _ = await read_published(fetcher, parsed, options)
            statements = []
            for logged in answer.evidence.statements:
                body, validation = logged.statement.body, None
                if isinstance(body, Handler) and body.uri == uri:
                    validation = validation_of(answer.evidence, logged)
                if validation is not None:
                    stated = validation.statement.body
                    assert isinstance(stated, Validation), "`validation_of` returns no other"
                    data = await fetcher.client(parsed.origin).blob(stated.document)
                    check_bytes(data, stated.document, "evidence")
                    statements.append(provenance_of(logged, validation, data))
            return statements

    statements = run(work())
    if not statements:
        fault = f"No workflow of its publisher attached a handler to {uri}, so the log does not say where one was built."
        raise NotFound(StatementCode.NO_TARGET, fault)
    options.output.result({"statements": statements}, *(escape(json.dumps(statement)) for statement in statements))
