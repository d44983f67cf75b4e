"""`treaty identity`: make, show and rotate this agent's identity."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from treaty_consensus.codes import SystemCode
from treaty_consensus.did import did_key, encode_multikey
from treaty_consensus.domain_evidence import record_name
from treaty_consensus.errors import Conflict, Malformed
from treaty_io.identity import Identity

from .context import Options, run
from .output import escape

if TYPE_CHECKING:
    from treaty_consensus.log.proof import Receipt

app = App(name="identity", help="Make, show and rotate this agent's identity.")


@app.command
def new(
    domain: str | None = None,
    /,
    *,
    bind: bool = False,
    record: Annotated[bool, Parameter(negative="")] = False,
    document: Path | None = None,
    options: Options = Options(),
) -> None:
    """Make a key and its DID.

    Parameters
    ----------
    domain
        A domain you control, or domain and path joined by ':' (example.com:agents:shop), for a did:wba. Default: a did:key, which
        needs no domain and has no weight in elections.
    bind
        Bind the did:wba to this key for ever (ANP's e1 profile): control of the web server alone is not enough to use the DID.
    record
        The domain has no web server: a TXT record names the key. It can publish at registries that read records, and has no vote.
    document
        The file for the DID document of a did:wba, which must not exist; default: print it.
    """
    if record and (domain is None or bind or document is not None):
        raise Malformed(SystemCode.USAGE, "A record is of a domain, and has neither a document nor a binding.")
    identity = Identity.create(domain, bind=bind, record=record)
    _check_replaces(document, identity)
    # The key first: a document without its key would be served for an identity that cannot sign.
    identity.save(options.identity_file)
    key_line = f"the key is in {escape(str(options.identity_file))} (keep it secret)."
    sentence = f"[green]✓[/] You are [bold]{escape(identity.did)}[/]; {key_line}"
    if domain is None:
        weight = "A did:key can publish, fetch and talk; it has no vote. For a DID of a domain: treaty identity new DOMAIN"
        options.output.result({"did": identity.did, "key": identity.key_id}, sentence, weight)
    elif record:
        _show_record(identity, sentence, options)
    else:
        _hand_over(identity, identity.did_document(), sentence, document, options)


@app.command
def rotate(*, document: Path | None = None, options: Options = Options()) -> None:
    """Replace the key by a new one, for the same DID.

    Then serve the new document: other agents refuse the old key a minute later. An agent that runs in this home goes on with the
    old key until it gets SIGHUP, or is restarted; then it signs with the new one, and serves the new document itself. Before you
    write to a registry that knows the DID, run `treaty identity confirm`. Else the registry assumes a new owner, who waits thirty
    days before publishing.

    Parameters
    ----------
    document
        The file for the new DID document; default: print it.
    """
    old = options.identity()
    _check_replaces(document, old)
    identity = old.rotated()
    # The same order for the new key. After a crash in between, `treaty identity show` prints the document.
    identity.supersede(old, options.identity_file)
    sentence = (
        f"[green]✓[/] [bold]{escape(identity.did)}[/] signs with {escape(identity.key_id)} from now on. Send SIGHUP to an agent"
        " that runs in this home, serve the new document, then run: treaty identity confirm"
    )
    if identity.parsed.validated_by is not None:
        _show_record(identity, sentence, options)
    else:
        _hand_over(identity, identity.did_document(), sentence, document, options)


@app.command
def confirm(*, options: Options = Options()) -> None:
    """Tell a registry that the new key succeeds the old one, after the new document is served.

    An agent that serves its document itself has to be told first: SIGHUP, or a restart.
    """
    from treaty_client.protocols.fetch import Fetcher  # an HTTP client, which the other commands do not need
    from treaty_client.statements.key_rotation import confirm as confirm_rotation

    async def work() -> Receipt:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            origin = options.trusted().name.origin
            client, head = fetcher.client(origin), fetcher.head(origin)
            return await confirm_rotation(client, head, options.identity(), origin=origin)

    identity, receipt = options.identity(), run(work())
    sentence = f"[green]✓[/] The log knows {escape(identity.key_id)}, in the same tenure: leaf {receipt.index}."
    options.output.result({"did": identity.did, "key": identity.key_id, "index": receipt.index}, sentence)


@app.command
def deactivate(*, document: Path | None = None, options: Options = Options()) -> None:
    """Make the document that takes the DID out of use. The key stays; serving the old document again reverts this.

    Parameters
    ----------
    document
        The file for the DID document; default: print it.
    """
    identity = options.identity()
    _check_replaces(document, identity)
    sentence = f"After this document is served, other agents no longer accept [bold]{escape(identity.did)}[/]."
    _hand_over(identity, identity.did_document(deactivated=True), sentence, document, options)


@app.command
def show(*, options: Options = Options()) -> None:
    """Show the DID, its key, and the URL of its document."""
    identity = options.identity()
    value: dict[str, object] = {"did": identity.did, "key": identity.key_id}
    lines = [identity.did, f"key: {identity.key_id}"]
    if identity.parsed.validated_by is not None:
        _show_record(identity, f"[bold]{escape(identity.did)}[/]", options)
        return
    if identity.parsed.method != "key":
        value |= {"document_url": identity.parsed.document_url, "document": identity.did_document()}
        lines.append(f"document: {identity.parsed.document_url}\n{json.dumps(identity.did_document(), indent=2)}")
    options.output.plain(value, *lines)


@app.command
def token(*, options: Options = Options()) -> None:
    """Print a token for the stock `sigstore` command to sign as this DID. It is valid for five minutes and one certificate.

    The registry's Sigstore services accept it: download URL/trust-config.json, then
    sigstore --trust-config trust-config.json sign --identity-token "$(treaty identity token)" FILE
    """
    from treaty_client.protocols.attestation import (
        identity_token,  # imported here: Sigstore is slow to import, and other commands do not need it
    )

    identity, origin = options.identity(), options.trusted().name.origin
    identity_jwt = identity_token(identity.key_id, identity.sign, origin=origin, now=int(time.time()), jti=secrets.token_hex(16))
    options.output.result({"token": identity_jwt, "origin": origin}, identity_jwt)


def _check_replaces(document: Path | None, identity: Identity) -> None:
    """Raise `Conflict` if there is a file at the path that is no document of this identity: it may be the only one of another."""
    if document is None or identity.parsed.method == "key" or not document.exists():
        return
    existing = document.read_text(encoding="utf-8", errors="replace")
    keys = (identity.public_key, *(pair.public for pair in identity.kept))
    # A deactivated document lists no key.
    if any(encode_multikey(key) in existing for key in keys) or existing == _text(identity.did_document(deactivated=True)):
        return
    raise Conflict(
        SystemCode.EXISTS,
        f"{document} exists, and has no key of {identity.did} that is in this home. Nothing was changed.",
        fix="Name another file, or move this one away first. Show the document of an identity: treaty identity show",
    )


def _text(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _show_record(identity: Identity, sentence: str, options: Options) -> None:
    """Print the result, and the TXT record that names the key."""
    name, text = record_name(identity.parsed), did_key(identity.public_key)
    value = {"did": identity.did, "key": identity.key_id, "record": {"name": name, "type": "TXT", "text": text}}
    options.output.result(value, sentence, f'Add this record: {escape(name)} TXT "{escape(text)}"')


def _hand_over(identity: Identity, served: dict[str, object], sentence: str, document: Path | None, options: Options) -> None:
    """Print the result, and print or write the DID document."""
    text, url = _text(served), identity.parsed.document_url
    value = {"did": identity.did, "key": identity.key_id, "document_url": url, "document": served}
    if document is None:
        lines = [sentence, f"Serve this document at {escape(url)}:\n{escape(text.rstrip())}"]
    else:
        document.write_text(text, encoding="utf-8")
        lines = [sentence, f"Serve {escape(str(document))} at {escape(url)}."]
    options.output.result(value, *lines)
