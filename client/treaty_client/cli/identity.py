"""`treaty identity`: who this agent is."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

from cyclopts import App
from rich.markup import escape

from ..identity import Identity
from .context import Options

app = App(name="identity", help="Who this agent is: make an identity, show it.")


@app.command
def new(domain: str | None = None, /, *, document: Path | None = None, options: Options = Options()) -> None:
    """Make a key and the DID it speaks for.

    Parameters
    ----------
    domain
        A domain you control, or domain and path joined by ':' (example.com:agents:shop), for a did:wba. Default: a did:key, which
        needs no domain and cannot vote with weight.
    document
        Where to write the DID document of a did:wba; default: print it.
    """
    identity = Identity.create(domain)
    identity.save(options.identity_file)
    kept = f"the key is in {escape(str(options.identity_file))} (keep it secret)."
    lines = [f"[green]✓[/] You are [bold]{escape(identity.did)}[/]; {kept}"]
    value: dict[str, object] = {"did": identity.did, "key": identity.key_id}
    if domain is not None:
        text = json.dumps(identity.did_document(), indent=2)
        url = identity.parsed.document_url
        value |= {"document_url": url, "document": identity.did_document()}
        if document is not None:
            document.write_text(text + "\n", encoding="utf-8")
            lines.append(f"Serve {escape(str(document))} at {escape(url)}.")
        else:
            lines.append(f"Serve this document at {escape(url)}:\n{escape(text)}")
    options.output.result(value, *lines)


@app.command
def show(*, options: Options = Options()) -> None:
    """Show the DID, its key, and where its document belongs."""
    identity = options.identity()
    value: dict[str, object] = {"did": identity.did, "key": identity.key_id}
    lines = [f"[bold]{escape(identity.did)}[/]", f"key: {escape(identity.key_id)}"]
    if identity.parsed.method != "key":
        value |= {"document_url": identity.parsed.document_url, "document": identity.did_document()}
        lines.append(f"document: {escape(identity.parsed.document_url)}\n{escape(json.dumps(identity.did_document(), indent=2))}")
    options.output.result(value, *lines)


@app.command
def token(*, options: Options = Options()) -> None:
    """Print a token, good for five minutes and one certificate, with which the stock `sigstore` command signs as this DID.

    The registry's Sigstore services accept it: download URL/trust-config.json, then
    sigstore --trust-config trust-config.json sign --identity-token "$(treaty identity token)" FILE
    """
    from ..attestation import identity_token  # here, for it imports Sigstore, which the other commands need not wait for

    identity, origin = options.identity(), options.trusted().name.origin
    made = identity_token(identity.key_id, identity.sign, origin=origin, now=int(time.time()), jti=secrets.token_hex(16))
    options.output.result({"token": made, "origin": origin}, made)
