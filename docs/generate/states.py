"""The state machines: their pictures, and their tables in the specification, drawn from the tables that the code follows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from treaty_anp.flow_profile import states as flow
from treaty_anp.hello_profile import states as hello
from treaty_consensus.election import states as election

from . import GENERATORS, limits
from .pictures import Arrow, Diagram, draw

Table = Mapping[tuple[Any, Any], Any]


def hello_states() -> str:
    """The states of the Hello profile."""
    seconds = hello.Timeouts()
    waits = {wait: f"{getattr(seconds, hello.WAITS[wait].seconds):g}" for wait in hello.Wait}
    begins = {hello.HelloState.HELLO: {hello.Wait.HELLO}}
    rows = _rows(hello.TRANSITIONS, hello.LIVE, hello.MEANING, waits, begins)
    return limits.table(("state", "meaning", "waits at most", "then"), rows)


def flow_states() -> str:
    """The states of a connection of the flow profile, for both sides."""
    seconds = flow.FlowTimeouts()
    waits = {wait: f"{getattr(seconds, wait):g}" for wait in flow.FlowWait}
    initiator = _rows(flow.INITIATOR, flow.LIVE, flow.MEANING, waits, {})
    responder = _rows(flow.RESPONDER, flow.LIVE, flow.MEANING, waits, {flow.FlowState.INITIATION: {flow.FlowWait.FIRST}})
    heads = ("state", "meaning", "waits at most", "the initiator goes on", "the responder goes on")
    rows = []
    for (state, meaning, *own), (_, _, *other) in zip(initiator, responder, strict=True):
        longest = ", ".join(times for times in dict.fromkeys((own[0], other[0])) if times != "–") or "–"
        rows.append((state, meaning, longest, own[1], "the same" if other[1] == own[1] else other[1]))
    return limits.table(heads, rows)


def flow_tracks() -> str:
    """The states of a protocol that is negotiated, for both sides."""
    lines = ["| state | meaning | the initiator goes on | the responder goes on |", "|---|---|---|---|"]
    for state in flow.TrackState:
        sides = (_next(table, state) for table in (flow.INITIATOR_TRACK, flow.RESPONDER_TRACK))
        lines.append(f"| {state.upper()} | {flow.TRACK_MEANING[state]} | {' | '.join(side or '–' for side in sides)} |")
    return "\n".join(lines)


def election_states() -> str:
    """The states of a document in a topic."""
    lines = ["| from | to | when |", "|---|---|---|"]
    for event in election.CONDITIONS:
        sources = dict[str, list[str]]()
        for (state, happened), target in election.TRANSITIONS.items():
            if happened is event and target != state:
                sources.setdefault(target, []).append(state)
        lines += [f"| {', '.join(found)} | {target} | {election.CONDITIONS[event]} |" for target, found in sources.items()]
    return "\n".join(lines)


def _rows(
    table: Table, live: Iterable[Any], meaning: Mapping[Any, str], waits: Mapping[Any, str], begins: Mapping[Any, Any]
) -> list[tuple[str, str, str, str]]:
    """Of each state its name, its meaning, its longest waits, and where it goes."""
    live = tuple(live)
    common, rows = _common(table, live), []
    for state in live:
        found = sorted(begins.get(state, set()) | {to.wait for to in table.values() if to.target is state and to.wait})
        times = ", ".join(f"{waits[wait]} s ({wait})" for wait in found) or "–"
        rows.append((state.upper(), meaning[state], times, _next(table, state, common)))
    for state in meaning:
        if state not in live:
            always = [event for event, target in common.items() if target is state]
            reached = f"; from any state: {', '.join(always)}" if always else ""
            rows.append((state.upper(), meaning[state], "–", f"final{reached}"))
    return rows


def _common(table: Table, live: tuple[Any, ...]) -> dict[Any, Any]:
    """The events that lead from every live state to the same final one."""
    events = dict.fromkeys(event for _, event in table)
    targets = {event: {table[state, event].target if (state, event) in table else None for state in live} for event in events}
    return {event: next(iter(found)) for event, found in targets.items() if len(found) == 1 and not found & {None, *live}}


def _next(table: Table, state: Any, common: Mapping[Any, Any] = {}) -> str:
    """Where a state goes by which events: `TARGET: event, event; …`."""
    found = dict[Any, list[str]]()
    for (before, event), to in table.items():
        if before is state and event not in common:
            found.setdefault(to.target, []).append(_label(event, to))
    return "; ".join(f"{target.upper()}: {', '.join(labels)}" for target, labels in found.items())


def _label(event: StrEnum, transition: Any) -> str:
    guard = getattr(transition, "guard", None)
    return f"{event} ({guard})" if guard else str(event)


# Pictures


def states_svg() -> str:
    """The Hello machine."""
    diagram = _diagram("A session of the Hello profile, both sides", hello.TRANSITIONS, hello.LIVE, hello.FINAL)
    return draw("The states of a session in the Hello profile", _description(diagram), [diagram])


def flow_svg() -> str:
    """The flow machine: connections and tracks, both sides."""
    diagrams = [
        _diagram("A connection of the flow profile, the initiator's side", flow.INITIATOR, flow.LIVE, flow.FINAL),
        _diagram("A connection of the flow profile, the responder's side", flow.RESPONDER, flow.LIVE, flow.FINAL),
        _diagram("A protocol that is negotiated, the initiator's side", flow.INITIATOR_TRACK, tuple(flow.TrackState), ()),
        _diagram("A protocol that is negotiated, the responder's side", flow.RESPONDER_TRACK, tuple(flow.TrackState)[1:], ()),
    ]
    return draw("The states of a connection in the flow profile", " ".join(map(_description, diagrams)), diagrams)


def election_svg() -> str:
    """The states of a document in a topic."""
    changes, stays = dict[tuple[str, str], list[str]](), dict[str, list[str]]()
    for (state, event), target in election.TRANSITIONS.items():
        if target == state:
            stays.setdefault(state, []).append(f"stays: {event}")
        else:
            changes.setdefault((state, target), []).append(str(event))
    order = ["published", "candidate", "provisional", "consensus", *election.FORMER]
    arrows = [Arrow(source, target, tuple(labels)) for (source, target), labels in changes.items()]
    diagram = Diagram("A document in a topic: at most one change an epoch", order, arrows, {**stays})
    return draw("The states of a document in a topic", _description(diagram), [diagram])


def _diagram(title: str, table: Table, live: tuple[Any, ...], final: Iterable[Any]) -> Diagram:
    common = _common(table, live) if final else {}
    changes, stays = dict[tuple[str, str], list[str]](), dict[str, list[str]]()
    ends: dict[Any, dict[str, list[str]]] = {state: {} for state in type(live[0]) if state in final}
    for event, target in common.items():
        ends[target][str(event)] = ["any state"]
    for (state, event), to in table.items():
        if event in common:
            continue
        if to.target in ends:
            ends[to.target].setdefault(_label(event, to), []).append(state.upper())
        elif to.target is state:
            stays.setdefault(state.upper(), []).append(f"stays: {_label(event, to)}")
        else:
            changes.setdefault((state.upper(), to.target.upper()), []).append(_label(event, to))
    arrows = [Arrow(source, target, tuple(labels)) for (source, target), labels in changes.items()]
    notes = {state: _wrapped(lines, 27) for state, lines in stays.items()}
    finals = {
        state.upper(): _wrapped([f"{', '.join(sources)}: {label}" for label, sources in found.items()], 72)
        for state, found in ends.items()
    }
    return Diagram(title, [state.upper() for state in live], arrows, notes, finals)


def _wrapped(lines: list[str], width: int) -> list[str]:
    return [piece for line in lines for piece in textwrap.wrap(line, width)]


def _description(diagram: Diagram) -> str:
    """The picture in words."""
    changes = [f"From {arrow.source} to {arrow.target}: {', '.join(arrow.labels)}." for arrow in diagram.arrows]
    ends = [f"{state} is final; {'; '.join(lines)}." for state, lines in diagram.finals.items()]
    return " ".join([f"{diagram.title}.", *changes, *ends])


GENERATORS.update(
    {
        "hello-states": hello_states,
        "flow-states": flow_states,
        "flow-tracks": flow_tracks,
        "election-states": election_states,
        "states-svg": states_svg,
        "flow-svg": flow_svg,
        "election-svg": election_svg,
    }
)
