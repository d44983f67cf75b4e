"""Compare two versions of a protocol by their packages: manifests, schemas, and conversations between their handlers.

Each part has a writer and a reader. The caller writes arguments, and the provider reads them; for the result it is the reverse.

    the provider lacks an operation of the caller; it is of another kind          breaking
    no role of the provider serves it, or one that is shared differently           breaking
    the caller may repeat a call, and the provider does not expect that            breaking
    arguments, result                                                              by `containment`
    the messages of the handlers                                                   by `conversation`

An error that the caller does not list reaches it as 502, and a time limit is its own; so these never break.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.handler import HandlerPackage, Manifest, Operation
from treaty_consensus.handler.compatibility import MAX_MESSAGE, MAX_VALUE, Compatibility, PairVerdict, Part, Reason, Verdict

from .containment import containment
from .conversation import Conversation

if TYPE_CHECKING:
    from ..pool import SandboxPool


async def compatibility(
    old: HandlerPackage,
    new: HandlerPackage,
    names: tuple[str, str],
    pool: SandboxPool,
    *,
    before: str = "",
    runs_code: bool = True,
) -> Compatibility:
    """Compare two packages. `names`: of their versions. `before`: the URI of the older one. `runs_code`: whether handlers with
    code take part in conversations, which needs a sandbox.

    Raises `Unavailable` (`sandbox.unavailable`), and `Refused` for a handler that cannot be loaded.
    """
    # The operations of the older version: a caller of the newer one cannot expect its own of an older provider.
    shared = frozenset(old.manifest.operations)
    older, newer = names
    backward = await _pair(old, new, (older, newer), shared, pool, runs_code=runs_code)
    forward = await _pair(new, old, (newer, older), shared, pool, runs_code=runs_code)
    return Compatibility(before, backward, forward)


async def _pair(
    caller: HandlerPackage,
    provider: HandlerPackage,
    names: tuple[str, str],
    shared: frozenset[str],
    pool: SandboxPool,
    *,
    runs_code: bool,
) -> PairVerdict:
    reasons = [
        each
        for name, operation in caller.manifest.operations.items()
        if name in shared
        for each in _operation_reasons(operation, caller.manifest, provider.manifest)
    ]
    is_run = runs_code or (caller.is_declarative and provider.is_declarative)
    calls = 0
    if is_run:
        spoken, calls = await _spoken(pool, caller, provider, {each.operation for each in reasons if each.verdict == "breaking"})
        reasons += [each for each in spoken if each.operation in shared]
    else:
        # Its code alone knows its messages.
        reasons.append(_reason("", "messages", "undecided", "A handler with code was not run here."))
    return PairVerdict.of(*names, reasons, calls)


async def _spoken(pool: SandboxPool, caller: HandlerPackage, provider: HandlerPackage, but: set[str]) -> tuple[list[Reason], int]:
    """Return the faults of the conversations, and the number of calls."""
    try:
        conversation = Conversation(pool, caller, provider)
        faults = await conversation.faults(but)
    except Unavailable:
        raise
    # The author's own check names the fault of a handler or a vector. Here it only leaves the messages open.
    except TreatyError as error:
        return [_reason(next(iter(caller.manifest.operations)), "messages", "undecided", error.message)], 0
    reasons = [
        _reason(name, "messages", "breaking", f"The caller sends the arguments of {call.vector}, and {fault}.", call.arguments)
        for name, call, fault in faults
    ]
    # Forms that differ, and that no vector speaks: nothing shows that they are understood.
    for name, forms in caller.manifest.messages.items():
        theirs = provider.manifest.messages.get(name)
        if theirs is not None and theirs != forms and name not in conversation.spoken and name not in but:
            reasons.append(_reason(name, "messages", "undecided", "Its messages have another form, and no vector speaks them."))
    return reasons, conversation.calls


def _operation_reasons(called: Operation, caller: Manifest, provider: Manifest) -> Iterator[Reason]:
    name = called.name
    served = provider.operations.get(name)
    if served is None:
        yield _reason(name, "operation", "breaking", f"The provider has no operation {name}.")
        return
    if called.kind is not served.kind:
        yield _reason(name, "kind", "breaking", f"The caller expects a {called.kind}, and the provider serves a {served.kind}.")
        return
    yield from _role_reasons(name, caller, provider)
    if called.idempotent and not served.idempotent:
        yield _reason(name, "idempotence", "breaking", "The caller may repeat a call, and the provider does not expect that.")
    yield from _schema_reasons(name, "arguments", called.arguments, served.arguments)
    if called.result is not None and served.result is not None:
        yield from _schema_reasons(name, "result", served.result, called.result)


def _role_reasons(name: str, caller: Manifest, provider: Manifest) -> Iterator[Reason]:
    for role in caller.roles.values():
        if name not in role.calls:
            continue
        peer, own = provider.roles.get(role.peer), provider.roles.get(role.name)
        # The own peer of some roles does not serve an operation: their code answers it.
        is_served = name in caller.roles[role.peer].invokes
        if peer is None or own is None or (is_served and name not in peer.invokes):
            yield _reason(name, "roles", "breaking", f"No {role.peer} of the provider's version serves it to a {role.name}.")
        elif (peer.is_shared, own.is_shared) != (caller.roles[role.peer].is_shared, role.is_shared):
            yield _reason(name, "roles", "breaking", f"{role.name} and {role.peer} have sessions of another number of agents.")


def _schema_reasons(name: str, part: Part, writer: Any, reader: Any) -> Iterator[Reason]:
    found = containment(dict(writer), dict(reader), f"The {part} of {name}")
    if found.state == "undecided":
        reader_name = "provider" if part == "arguments" else "caller"
        yield _reason(name, part, "undecided", f"It is not proved that the {reader_name} accepts each value, nor found that not.")
    elif found.state == "breaking":
        yield _reason(name, part, "breaking", found.message, found.value)


_ABSENT = object()


def _reason(operation: str, part: Part, verdict: Verdict, message: str, value: Any = _ABSENT) -> Reason:
    assert verdict != "compatible", "a reason is against it"
    text = "" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return Reason(operation, part, verdict, _cut(message, MAX_MESSAGE), _cut(text, MAX_VALUE))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
