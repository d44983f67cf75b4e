"""Define the command that runs a mirror: `mirror`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from rich.markup import escape

from treaty_client.registries.trust import parse_registry_name

from ..listening import Listening
from ..mirroring.mirrored_log import MirroredLog
from ..mirroring.server import serve as serve_mirror
from .options import NetworkOptions, ObservationOptions, Options, TlsOptions, run
from .variables import Variable


def mirror(
    upstream: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8082,
    base_url: str | None = None,
    contact: Annotated[str | None, Variable("CONTACT")] = None,
    tls: TlsOptions = TlsOptions(),
    network: NetworkOptions = NetworkOptions(),
    observation: ObservationOptions = ObservationOptions(),
    options: Options = Options(),
) -> None:
    """Mirror a registry: follow its log, check every rule, and serve its reads.

    Parameters
    ----------
    upstream
        The registry, as its operator names it: URL#KEY. The key is not taken from the registry itself.
    host
        The address to listen on.
    port
        The port to listen on.
    base_url
        The URL of the registry in pages and refusals, if it is not the one that the registry names itself.
    contact
        Where anyone reports abuse of this mirror: an e-mail address or an https URL. Pages, /log and refusals name it.
    """
    observation.begin("treaty-mirror")
    settings = replace(
        options.settings,
        host=host,
        port=port,
        base_url=base_url or None,
        contact=contact or None,
        tls_cert=tls.tls_cert,
        tls_key=tls.tls_key,
        metrics=observation.metrics,
        **network.settings,
    )

    def announce(log: MirroredLog) -> None:
        url = Listening(host, port, tls.tls_cert, tls.tls_key).url
        options.show(
            {"origin": log.origin, "url": url, "upstream": str(log.upstream), "size": log.head.size},
            f"[green]✓[/] The mirror of [bold]{escape(log.origin)}[/] listens at {escape(url)} ({log.head.size} leaves).",
            f"  It follows {escape(log.upstream.base_url)}, and takes no writes.",
            "  Ctrl-C stops it.",
        )

    run(serve_mirror(settings, parse_registry_name(upstream), announce))
