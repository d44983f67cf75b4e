"""Deliver findings by Standard Webhooks (https://www.standardwebhooks.com, symmetric signatures `v1`).

    POST URL
    webhook-id: the id of the finding        the same at each attempt, so a receiver can drop repetitions
    webhook-timestamp: Unix seconds of this attempt
    webhook-signature: v1,BASE64

    {"data": FINDING, "timestamp": RFC 3339, "type": "treaty.finding"}

A URL is https at a public address, which is looked up and checked for each attempt, or http on this machine. `--resolve` names
other hosts. Redirects are not followed. Only a 2xx counts as delivered.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from standardwebhooks import Webhook as Signer

from treaty_consensus.errors import Malformed, NotFound, Refused, Unavailable
from treaty_io.codes import WatchCode
from treaty_io.network.egress import strangers_network
from treaty_io.network.hosts import Network

from .findings import WatchFinding
from .watches import WebhookAddress

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PREFIX = "whsec_"
# Standard Webhooks: a secret has 24 to 64 bytes.
_LEAST, _MOST = 24, 64
_MAX_SECRET_FILE = 1_024
# Seconds of one attempt. A receiver should only enqueue.
_TIMEOUT = 15.0
_MAX_ANSWER = 64 * 1024


class Webhook:
    """One endpoint. Safe for concurrent use."""

    def __init__(self, address: WebhookAddress, network: Network, clock: Callable[[], float]) -> None:
        """Raises `Refused` (`watch.file`) for another URL, and `NotFound`, `Refused` or `Malformed` (`watch.file`)."""
        self.url, self._network, self._clock = _check_url(address.url), network, clock
        self._signer = Signer(_read_secret(address.secret_file))

    async def deliver(self, finding: WatchFinding) -> None:
        """Make one attempt. Raises `Unavailable` (`watch.webhook`) unless it is answered by a 2xx."""
        now = datetime.fromtimestamp(int(self._clock()), UTC)
        body = json.dumps({"type": "treaty.finding", "timestamp": now.isoformat(), "data": finding.value()}, sort_keys=True)
        headers = {
            "content-type": "application/json",
            "webhook-id": finding.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(finding.id, now, body),
        }
        host = urlsplit(self.url).hostname or ""
        try:
            # Each time anew: a name that leads into this network later must not be followed there.
            network = self._network if host in _LOOPBACK else await strangers_network(self._network, self.url)
            async with network.client(timeout=_TIMEOUT) as client:
                request = client.build_request("POST", self.url, content=body.encode(), headers=headers)
                reply = await client.exchange(request, limit=_MAX_ANSWER)
        except (httpx.HTTPError, OSError) as error:
            raise Unavailable(WatchCode.WEBHOOK, f"The webhook at {host} did not answer ({type(error).__name__}).") from error
        if not 200 <= reply.status <= 299:
            raise Unavailable(WatchCode.WEBHOOK, f"The webhook at {host} answered with status {reply.status}.")


def _check_url(url: str) -> str:
    refused = Refused(
        WatchCode.FILE, f"Not the URL of a webhook: {url[:120]!r}.", fix="Use https://HOST/…, or http:// on this machine."
    )
    try:
        parts = urlsplit(url)
        _ = parts.port  # `urlsplit` finds a bad port when it is asked for
    except ValueError as error:
        raise refused from error
    is_allowed = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not is_allowed or not parts.hostname or parts.username is not None or parts.fragment or not url.isprintable():
        raise refused
    return url


def _read_secret(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode, text = path.stat().st_mode, file.read(_MAX_SECRET_FILE).decode("ascii", "replace").strip()
    except FileNotFoundError as error:
        raise NotFound(
            WatchCode.FILE,
            f"There is no {path}.",
            fix=f"Write one: echo whsec_$(openssl rand -base64 32) >{path}; chmod 600 {path}",
        ) from error
    # With the secret others could forge findings.
    if mode & 0o077:
        raise Refused(WatchCode.FILE, f"Other users of this machine can read {path}.", fix=f"chmod 600 {path}")
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise Malformed(WatchCode.FILE, f"{path} is no secret of Standard Webhooks: whsec_ and base64.") from error
    if not text.startswith(_PREFIX) or not _LEAST <= len(secret) <= _MOST:
        raise Malformed(WatchCode.FILE, f"{path} is no secret of Standard Webhooks: whsec_ and {_LEAST} to {_MOST} bytes.")
    return secret
