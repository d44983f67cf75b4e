"""Define the commands that run a server: `serve`, `mirror`, `witness`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.registries.trust import parse_registry_name
from treaty_consensus.log.note import VerifierKey

from ..listening import Listening
from ..mirroring.mirrored_log import MirroredLog
from ..mirroring.server import serve as serve_mirror
from ..registry import Registry
from ..server import serve as serve_http
from ..settings import Quotas
from ..witness.copies import Copies
from ..witness.cosigner import Cosigner
from ..witness.records import read_log_keys
from ..witness.server import serve as serve_witness
from .console import show
from .creating import description
from .options import NetworkOptions, NodeOptions, ObservationOptions, Options, TlsOptions, WitnessOptions, run
from .variables import Variable

_SHOWN_LOGS = 16  # logs of a witness that a terminal shows; JSON has all


def serve(
    *,
    host: Annotated[str, Variable("HOST")] = "127.0.0.1",
    port: Annotated[int, Variable("PORT")] = 8080,
    new: Annotated[bool, Parameter(negative="")] = False,
    origin: Annotated[str | None, Variable("ORIGIN")] = None,
    base_url: Annotated[str | None, Variable("BASE_URL")] = None,
    tls: TlsOptions = TlsOptions(),
    network: NetworkOptions = NetworkOptions(),
    quota: Annotated[float, Variable("QUOTA")] = 1,
    contact: Annotated[str | None, Variable("CONTACT")] = None,
    parameters: Annotated[Path | None, Variable("PARAMETERS")] = None,
    witnesses: WitnessOptions = WitnessOptions(),
    nodes: NodeOptions = NodeOptions(),
    observation: ObservationOptions = ObservationOptions(),
    options: Options = Options(),
) -> None:
    """Serve the registry of the log in the data directory.

    Parameters
    ----------
    host
        The address to listen on.
    port
        The port to listen on.
    new
        Make a new log first, in an empty data directory. To try Treaty; `init` makes one that stays.
    origin
        The permanent name of the log: a host. Default for a new one: PORT.localhost, so that two logs of one machine differ.
    base_url
        The URL at which clients reach this registry, if not https://ORIGIN (for a localhost origin: the listening address).
    quota
        Multiply every quota by this factor.
    contact
        Where anyone reports abuse: an e-mail address or an https URL. Pages, /log and refusals name it.
    parameters
        A TOML file with the constants of a new log's election. Default: a development electorate.
    """
    observation.begin("treaty-registry")
    settings = replace(
        options.settings,
        host=host,
        port=port,
        # Without a colon: Go's Sigstore clients take the host alone for the name of the log's key (`data_directory`).
        origin=origin or (f"{port}.localhost" if new else None),
        new=new,
        base_url=base_url or None,
        tls_cert=tls.tls_cert,
        tls_key=tls.tls_key,
        quotas=Quotas().times(quota),
        contact=contact or None,
        parameters=parameters,
        witnesses=witnesses.names,
        tlog_mirrors=tuple(url.rstrip("/") for url in witnesses.tlog_mirror),
        metrics=observation.metrics,
        **network.settings,
        **nodes.settings,
    )
    url = Listening(host, port, tls.tls_cert, tls.tls_key).url
    run(serve_http(settings, lambda registry: _announce(registry, url, options)))


def witness(
    *,
    log: tuple[str, ...] = (),
    logs: Path | None = None,
    data: Annotated[Path, Parameter(env_var="TREATY_WITNESS_DATA")],
    host: str = "127.0.0.1",
    port: int = 8081,
    name: str | None = None,
    mirror: Annotated[bool, Parameter(negative="")] = False,
    tls: TlsOptions = TlsOptions(),
    observation: ObservationOptions = ObservationOptions(),
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Witness logs: cosign a checkpoint only if it extends the one cosigned before (C2SP tlog-witness).

    Parameters
    ----------
    log
        The verifier key of a log to witness. May be repeated.
    logs
        A file with the verifier keys of more logs, one a line; `#` begins a comment.
    data
        The witness's own directory, made by the first start: its key and its records. Never restore an old copy.
    host
        The address to listen on.
    port
        The port to listen on.
    name
        The permanent name of a new witness, such as witness.example/w1. Default: localhost:PORT/witness.
    mirror
        Keep copies of the logs too, which their operators upload (C2SP tlog-mirror), and serve them below URL/mirror.
    json
        Print one JSON value instead of text.
    """
    observation.begin("treaty-witness")
    named = name if name or (data / "witness.key").exists() else f"localhost:{port}/witness"
    listening = Listening(host, port, tls.tls_cert, tls.tls_key)

    def announce(cosigner: Cosigner, copies: Copies | None) -> None:
        key, logs = str(cosigner.key), {origin: cosigner.latest(origin) for origin in cosigner.logs}
        sizes = {origin: latest.checkpoint.size if latest else 0 for origin, latest in logs.items()}
        url = listening.url
        show(
            {"key": key, "keys": [str(each) for each in cosigner.keys], "url": url, "logs": sizes}
            | ({"mirror": {"url": f"{url}/mirror", "keys": [str(each) for each in copies.keys]}} if copies else {}),
            f"[green]✓[/] The witness [bold]{escape(cosigner.key.name)}[/] listens at {escape(url)}.",
            *(f"  key: {escape(str(each))}" for each in cosigner.keys),
            *(f"  {escape(origin)}: {size} leaves cosigned so far" for origin, size in list(sizes.items())[:_SHOWN_LOGS]),
            f"  Its name for registries: '{escape(f'{url}#{key}')}', with the https address of its proxy where it has one.",
            as_json=json,
        )

    named_logs = [VerifierKey.parse(text) for text in (*log, *(read_log_keys(logs) if logs else ()))]
    run(serve_witness(data, named_logs, named, listening, announce, mirror=mirror, metrics=observation.metrics))


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


def _announce(registry: Registry, url: str, options: Options) -> None:
    where, name = escape(registry.base_url), escape(f"{registry.base_url}#{registry.log_key}")
    reached = [] if url == registry.base_url else [f"  Its address for clients is {where}."]
    options.show(
        description(registry),
        f"[green]✓[/] The registry [bold]{escape(registry.origin)}[/] listens at {escape(url)} ({registry.head.size} leaves).",
        *reached,
        f"  Trust it:  treaty trust add '{name}'",
        f"  Publish:   treaty publish DIR     Search: treaty search     Its log: {where}/checkpoint",
        "  Ctrl-C stops it.",
    )
