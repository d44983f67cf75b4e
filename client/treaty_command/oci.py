"""`treaty oci`: carry a protocol through a registry of containers."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from rich.markup import escape

from treaty_client.protocols.export import export as write_files
from treaty_client.protocols.export import verify_layout
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.oci import write_layout
from treaty_client.protocols.verification.records import VerifiedProtocol

from .context import Options, run
from .values import Publishers, Uri

app = App(name="oci", help="Carry a protocol through a registry of containers.", result_action="return_value")


@app.command
def export(uri: Uri, folder: Path, /, *, publisher: Publishers = (), options: Options = Options()) -> None:
    """Write a verified protocol as an OCI image layout: document, manifest and wheel, and its proofs as referrers.

    Parameters
    ----------
    uri
        The protocol's URI, or another name as of `treaty fetch`.
    folder
        A new folder. Any OCI tool pushes it, such as `oras cp --from-oci-layout -r FOLDER:VERSION REGISTRY/NAME:VERSION`.
    """

    async def work() -> VerifiedProtocol:
        async with Fetcher(options.home, options.policy(*publisher), options.network) as fetcher:
            return await fetcher.fetch(uri)

    verified = run(work())
    digest = write_layout(verified, folder)
    options.output.result(
        {"uri": verified.uri, "digest": digest, "folder": str(folder)}, f"[green]✓[/] {escape(str(folder))}", digest
    )


@app.command(name="import")
def import_layout(layout: Path, folder: Path, /, *, publisher: Publishers = (), options: Options = Options()) -> None:
    """Verify a layout that was pulled, offline, and write its files as `treaty fetch --output` does.

    Parameters
    ----------
    layout
        The folder with oci-layout and index.json.
    folder
        The folder to write.
    """
    verified = verify_layout(layout, options.registries, options.policy(*publisher))
    files = write_files(verified, folder)
    warnings = [f"[yellow]![/] {escape(warning)}" for warning in verified.warnings]
    options.output.result(
        {"uri": verified.uri, "hash": verified.hash, "files": [str(path) for path in files], "warnings": list(verified.warnings)},
        f"[green]✓[/] [bold]{escape(verified.uri)}[/]",
        *(f"  {escape(str(path))}" for path in files),
        *warnings,
    )
