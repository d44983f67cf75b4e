"""Show how a statement was sent: its leaf, or the witnesses that have it until the registry does."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from treaty_client.protocols.stamping import Delivery


def shown(delivery: Delivery, epoch: int) -> tuple[dict[str, Any], list[str]]:
    """Return the members and the lines for the output of a command."""
    value: dict[str, Any] = {"epoch": epoch, "index": delivery.receipt.index if delivery.receipt else None}
    lines = [f"leaf {delivery.receipt.index}, epoch {epoch}"] if delivery.receipt else []
    if delivery.stamps:
        value["stamps"] = dict(delivery.stamps)
        lines.append(f"stamped by {escape(', '.join(delivery.stamps))}")
    if delivery.failure is not None:
        value["failure"] = {"code": str(delivery.failure.code), "message": delivery.failure.message}
        lines.append(
            f"[yellow]•[/] Not logged yet: {escape(delivery.failure.message)} The registry reads it from the witnesses. After "
            "the epoch closed, `treaty audit` shows whether it did."
        )
    return value, lines
