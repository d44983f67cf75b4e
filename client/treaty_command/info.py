"""`treaty info`: show a protocol on one screen."""

from __future__ import annotations

import datetime as dt
import time
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Column, Table

from treaty_client.protocols.answers import Answers, ProvenAnswer
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.store import Lockfile
from treaty_client.protocols.verification.blobs import check_bytes
from treaty_client.protocols.verification.ten_steps import newest_status, offered_handlers, verify_card, verify_document
from treaty_consensus.errors import Gone, Malformed, NotFound, Refused, TooLarge
from treaty_consensus.handler import HandlerPackage, read_wheel
from treaty_consensus.kinds import NEGATIVE_STATES, Decision, Newer, Publish, Status
from treaty_consensus.printable import escaped
from treaty_consensus.protocol import ProtocolUri, parse_protocol_uri

from .context import Options, run
from .values import Uri


def info(uri: Annotated[Uri, Parameter(help="The protocol's URI.")], /, *, options: Options = Options()) -> None:
    """Show a protocol on one screen: its publisher, its state, its operations. Its proof is checked; no handler runs."""

    async def work() -> dict[str, Any]:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            parsed = parse_protocol_uri(uri)
            answer, _ = await read_published(fetcher, parsed, options)
            value, handlers = _facts(parsed, answer), offered_handlers(answer.evidence, parsed)
            value["handlers"] = [
                {"filename": each.body.filename, "publisher": each.publisher, "status": _state(each.status)} for each in handlers
            ]
            package = await read_package(fetcher, parsed, answer)
            if package is not None:
                manifest = package.manifest
                value["roles"] = {role.name: sorted(role.calls) for role in manifest.roles.values()}
                value["operations"] = {name: operation.kind.value for name, operation in manifest.operations.items()}
            return value

    value = run(work())
    table = Table(Column(style="dim"), Column(overflow="fold"), box=None, show_header=False)
    for name, text in _rows(value).items():
        table.add_row(name, escape(escaped(text)) or "–")
    head = [f"[bold]{escape(escaped(value['label']))}[/]", *(escape(escaped(value[name])) for name in ("title", "summary"))]
    options.output.result(value, *filter(None, head), table)


async def read_published(fetcher: Fetcher, uri: ProtocolUri, options: Options) -> tuple[ProvenAnswer, bytes]:
    """Take steps 1 to 5; return the proven answer and the document. Raises as `Answers.protocol`."""
    answers = Answers(fetcher.registries, Lockfile(options.home), fetcher.policy, fetcher.client, lambda: int(time.time()))
    answer = await answers.protocol(uri)
    return answer, verify_document(answer.bundle, uri, answer.evidence)[1]


def _facts(uri: ProtocolUri, answer: ProvenAnswer) -> dict[str, Any]:
    """Return what the log has of a protocol."""
    published = answer.evidence.published(str(uri))
    body, status = published.statement.body, newest_status(answer.evidence, uri)
    assert isinstance(body, Publish), "it publishes the protocol"
    card, decision = verify_card(answer.bundle, body), answer.evidence.decision(body.topic)
    return {
        "uri": body.uri,
        "label": uri.label,
        "title": card.title if card else "",
        "summary": card.summary if card else "",
        "publisher": published.statement.author.text,
        "index": published.index,
        "issued": published.statement.issued,
        "status": _state(status),
        "successor": status.successor if isinstance(status, Status) else None,
        "topic": body.topic,
        "election": dict(decision.states).get(body.document.sha256) if isinstance(decision, Decision) else None,
        "hash": body.document.sha256,
        "size": body.document.size,
    }


async def read_package(fetcher: Fetcher, uri: ProtocolUri, answer: ProvenAnswer) -> HandlerPackage | None:
    """Return the package of the newest handler that the publisher of a protocol attached, if there is one that can be read."""
    author = answer.evidence.published(str(uri)).statement.author.text
    own = [handler.body for handler in offered_handlers(answer.evidence, uri) if handler.publisher == author]
    if not own:
        return None
    try:
        wheel = await fetcher.client(uri.origin).blob(own[-1].wheel)
        check_bytes(wheel, own[-1].wheel, "wheel")
        return read_wheel(own[-1].filename, wheel)
    except (Gone, NotFound, Malformed, Refused, TooLarge):  # withdrawn, or no handler: its publisher chose the bytes
        return None


def _state(status: Status | Newer | None) -> str:
    return "active" if status is None else status.state if isinstance(status, Status) else "unknown to this release"


def _rows(value: dict[str, Any]) -> dict[str, str]:
    successor = f"; its successor is {value['successor']}" if value["successor"] else ""
    fetchable = value["successor"] if value["status"] in NEGATIVE_STATES else value["uri"]
    return {
        "uri": value["uri"],
        # The clock of the publisher; the last second of the calendar bounds it.
        "published": f"{dt.datetime.fromtimestamp(min(value['issued'], 253_402_300_799), dt.UTC).date()}, leaf {value['index']}",
        "publisher": value["publisher"],
        "status": value["status"] + successor,
        "topic": f"{value['topic']}: {value['election'] or 'not decided'}",
        "hash": f"{value['hash']}, {value['size']:,} bytes",
        "roles": "; ".join(f"{role} calls {', '.join(calls) or 'nothing'}" for role, calls in value.get("roles", {}).items()),
        "operations": ", ".join(f"{name} ({kind})" for name, kind in value.get("operations", {}).items()),
        "handlers": "; ".join("{filename} by {publisher}, {status}".format(**each) for each in value["handlers"]),
        "fetch": f"treaty fetch {fetchable}" if fetchable else "",
    }
