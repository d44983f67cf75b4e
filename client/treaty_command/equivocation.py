"""`treaty equivocation`: check a proof that a log signed two histories, offline."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from treaty_consensus.codes import EquivocationCode
from treaty_consensus.errors import NotFound
from treaty_consensus.log.checkpoint import Checkpoint
from treaty_consensus.log.equivocation import MAX_EQUIVOCATION, Equivocation

from .context import Options


def equivocation(file: Path, /, *, options: Options = Options()) -> None:
    """Check a proof that a log signed two histories. Needs only the file.

    The proof is as good as the key in it: compare that with the key that the log's operator publishes.

    Parameters
    ----------
    file
        A file ….equivocation.json of an agent, a witness or an auditor.
    """
    try:
        with file.open("rb") as opened:
            # One byte more than the cap shows that the file is too large, without reading all of it.
            data = opened.read(MAX_EQUIVOCATION + 1)
    except FileNotFoundError as error:
        raise NotFound(EquivocationCode.FORM, f"There is no {file}.") from error
    proof = Equivocation.parse(data)
    first, second = proof.verify()
    value = {"origin": proof.key.name, "key": str(proof.key), "first": _head(first), "second": _head(second)}
    if proof.root is None:
        how = f"Both are of {first.size} leaves, with two roots."
    else:
        how = f"The tree of {second.size} leaves begins with {first.size} whose root is {proof.root.hex()}."
        value["root"] = proof.root.hex()
    options.output.result(
        value,
        f"[bold red]![/] The key of [bold]{escape(proof.key.name)}[/] signed two histories of its log.",
        f"  key: {escape(str(proof.key))}",
        f"  one:     {first.size} leaves, root {first.root.hex()}",
        f"  another: {second.size} leaves, root {second.root.hex()}",
        f"  {how} No single log has both.",
    )


def _head(checkpoint: Checkpoint) -> dict[str, object]:
    return {"size": checkpoint.size, "root": checkpoint.root.hex()}
