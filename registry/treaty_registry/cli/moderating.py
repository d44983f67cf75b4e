"""Define the commands for content and senders: `withdraw`, `block`, `unblock`, `quota`, `senders`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec
from rich.markup import escape
from rich.prompt import Confirm

from treaty_consensus.errors import Malformed

from ..admission.senders import Sender
from ..codes import SenderCode
from ..operator.acts import Acts, CommandCaller, calling_user
from ..operator.largest import SenderList, list_senders
from ..operator.withdrawals import Reason, Takedown, Withdrawn
from ..registry import Registry
from ..settings import Settings
from .console import folding_table
from .options import Options, ask_or, run

_SHOWN = 40  # blobs and versions that a terminal shows; JSON has all
_PURGE_SECONDS = 300.0


def withdraw(
    target: str,
    /,
    *,
    reason: Reason,
    yes: bool = False,
    purge: str | None = None,
    options: Options = Options(),
) -> int:
    """Stop serving content and delete its bytes. Shows first what is taken. The leaves stay, with the names in them.

    Parameters
    ----------
    target
        The URI of a protocol, with or without its version; a DID, for all that it published; or the SHA-256 of a blob.
    reason
        Why, in the log for ever: `illegal`, `personal`, `malicious`.
    yes
        Do not ask. Without it, and without a terminal, nothing is changed.
    purge
        A command that empties a cache or CDN. It reads the URLs, one a line, from its standard input.
    """
    plan = run(_ask(options.settings, "withdrawable", Takedown, lambda log: log.withdrawals.plan(target), target))
    if not yes and not _confirmed(plan, reason, options):
        options.show(
            {"plan": msgspec.to_builtins(plan), "withdrawn": None},
            "Nothing was changed. Add --yes to withdraw it without a question.",
        )
        return 1
    digests = [blob.sha256 for blob in plan.blobs]
    arguments = (target, digests, reason)
    done = run(_ask(options.settings, "withdraw", Withdrawn, lambda log: log.withdrawals.withdraw(digests, reason), *arguments))
    failed = _purged(purge, plan.urls) if purge else None
    lines = [f"[green]✓[/] {len(done.leaves)} withdrawals are in the log; {len(digests) - len(done.left)} blobs are deleted."]
    if done.left:
        lines.append(
            f"[yellow]![/] {len(done.left)} blobs are not deleted yet: a store does not answer. The registry tries again."
        )
    if plan.more:
        lines.append("[yellow]![/] There is more. Repeat the command until it finds nothing.")
    if failed:
        lines.append(f"[red]✗[/] {escape(failed)}. Give it these URLs again:")
    # A cache keeps what is `immutable` for a year.
    if failed or not purge:
        lines += ["  Purge caches of yours at:", *(f"  {escape(url)}" for url in plan.urls[:_SHOWN])]
    lines.append("  To refuse the sender from now on: treaty-registry block DID|DOMAIN|NETWORK --reason TEXT")
    result = {"plan": msgspec.to_builtins(plan), "withdrawn": msgspec.to_builtins(done), "purge": failed}
    options.show(result, *lines)
    return 1 if failed or done.left else 0


def block(sender: str | None = None, /, *, reason: str | None = None, options: Options = Options()) -> None:
    """Refuse every write of a DID, a domain with those below it, or a network. Without one, list who is blocked.

    Parameters
    ----------
    sender
        did:web:example.com, example.com, 192.0.2.0/24 or 2001:db8::/32.
    reason
        A note for the operators; it is shown to no one else.
    """
    if sender is None:
        _show_decided(options, [each for each in _senders(options).decided if each.blocked is not None])
        return
    if reason is None:
        raise Malformed(SenderCode.FORM, "A block needs a reason.", fix="Add --reason TEXT; only operators read it.")
    user = calling_user()
    done = run(
        _ask(options.settings, "block", Sender, lambda log: log.intake.senders.block(sender, reason, user), sender, reason, user)
    )
    options.show(msgspec.to_builtins(done), f"[green]✓[/] Nothing is taken from [bold]{escape(done.sender)}[/] any more.")


def unblock(sender: str, /, *, options: Options = Options()) -> None:
    """Take writes of a sender again.

    Parameters
    ----------
    sender
        As it was blocked.
    """
    run(_ask(options.settings, "unblock", None, lambda log: log.intake.senders.unblock(sender), sender))
    options.show({"sender": sender}, f"[green]✓[/] Writes of [bold]{escape(sender)}[/] are taken again.")


def quota(sender: str | None = None, factor: float | None = None, /, *, options: Options = Options()) -> None:
    """Raise or lower the quota of a DID or a domain. Without one, list the quotas that were changed.

    Parameters
    ----------
    sender
        did:web:example.com or example.com.
    factor
        The usual quota is multiplied by it; 1 is the usual one.
    """
    if sender is None:
        _show_decided(options, [each for each in _senders(options).decided if each.factor is not None])
        return
    if factor is None:
        raise Malformed(SenderCode.FORM, "A quota needs a factor.", fix=f"Give one: treaty-registry quota {sender} 2")
    user = calling_user()
    arguments = (sender, factor, user)
    done = run(_ask(options.settings, "quota", Sender, lambda log: log.intake.senders.set_factor(*arguments), *arguments))
    options.show(msgspec.to_builtins(done), f"[green]✓[/] {escape(done.sender)} has {done.factor or 1:g} times the usual quota.")


def senders(*, newest: int | None = None, options: Options = Options()) -> None:
    """List the largest senders: by their leaves, and by the quota that they have used now.

    Parameters
    ----------
    newest
        Count only this many of the newest leaves.
    """
    senders_list = _senders(options, newest)
    table = folding_table("DID", "statements", "bytes", "newest leaf")
    for each in senders_list.largest:
        table.add_row(escape(each.did), str(each.statements), str(each.bytes), str(each.newest))
    busy = folding_table("now, at this process", "used of its quota")
    for name, share in (senders_list.hosts | senders_list.networks).items():
        busy.add_row(escape(name), f"{share:.0%}")
    rows: list[Any] = [table] if senders_list.largest else ["Nobody has signed a leaf yet."]
    options.show(msgspec.to_builtins(senders_list), *rows, *([busy] if busy.row_count else []))


async def _ask(settings: Settings, command: str, kind: Any, alone: Any, *arguments: object) -> Any:
    """Ask the running registry, or open the log here. The act is recorded in both cases."""

    async def here() -> Any:
        async with Registry.open(settings) as registry:
            result = await alone(registry)
            await Acts(registry.pool).record(command, arguments, CommandCaller.of_this_process())
            return result

    return await ask_or(settings, command, kind, here, *arguments)


def _senders(options: Options, newest: int | None = None) -> SenderList:
    def alone(log: Registry) -> Awaitable[SenderList]:
        return list_senders(log.database, log.intake, log.head.size, newest)

    senders_list: SenderList = run(_ask(options.settings, "senders", SenderList, alone, newest))
    return senders_list


def _confirmed(plan: Takedown, reason: str, options: Options) -> bool:
    if options.json:
        return False
    options.show({}, *_described(plan, reason))
    return sys.stdin.isatty() and Confirm.ask("Withdraw all of it? This cannot be taken back", default=False)


def _described(plan: Takedown, reason: str) -> list[Any]:
    cards = folding_table("version", "title", "summary", "tags")
    for version in plan.versions[:_SHOWN]:
        cards.add_row(*map(escape, (version.uri, version.title, version.summary, " ".join(version.tags))))
    blobs = folding_table("blob", "is", "of", "bytes", "other versions with it")
    for blob in plan.blobs[:_SHOWN]:
        blobs.add_row(f"{blob.sha256[:16]}…", blob.part, escape(blob.of), str(blob.size), str(blob.others))
    hidden = max(len(plan.versions), len(plan.blobs)) - _SHOWN
    return [
        f"A withdrawal ([bold]{reason}[/]) of {escape(plan.target)} takes {len(plan.blobs)} blobs"
        f"{' and more' if plan.more else ''}, and the title, summary and tags of {len(plan.versions)} versions:",
        *([cards] if plan.versions else []),
        blobs,
        *([f"… and {hidden} more: --json lists all."] if hidden > 0 else []),
        "URIs, topics, DIDs, keys and hashes are in leaves, and stay for ever.",
    ]


def _show_decided(options: Options, decided: Sequence[Sender]) -> None:
    table = folding_table("sender", "blocked", "quota", "by")
    for each in decided:
        table.add_row(*map(escape, (each.sender, each.blocked or "", f"{each.factor or 1:g}", each.user)))
    options.show({"senders": msgspec.to_builtins(decided)}, table if decided else "None.")


def _purged(command: str, urls: Sequence[str]) -> str | None:
    """Run the operator's command with the URLs; return why it failed, or None."""
    try:
        subprocess.run(  # noqa: S603 (the operator's own command)
            shlex.split(command),
            input="".join(f"{url}\n" for url in urls),
            text=True,
            timeout=_PURGE_SECONDS,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"The purge command failed: {error}"
    return None
