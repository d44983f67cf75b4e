"""Define the command that runs a witness: `witness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from treaty_consensus.log.note import VerifierKey

from ..listening import Listening
from ..witness.copies import Copies
from ..witness.cosigner import Cosigner
from ..witness.records import read_log_keys
from ..witness.server import serve as serve_witness
from .console import show
from .options import ObservationOptions, TlsOptions, run

_SHOWN_LOGS = 16  # logs of a witness that a terminal shows; JSON has all


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
