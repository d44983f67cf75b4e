"""The pictures and the tables of states are drawn from the tables that the code follows."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from docs.generate import ROOT, diagrams
from docs.generate import states as drawn
from docs.generate.parts import MODULES, drifted
from docs.generate.pictures import Arrow, Diagram, draw

from treaty_anp.flow_profile import states as flow
from treaty_anp.hello_profile import states as hello
from treaty_client.protocols.verification import steps
from treaty_client.protocols.verification.steps import Step

SVG = "{http://www.w3.org/2000/svg}"


# `test_generated_docs.py` sees that none of them drifted.
def test_pictures_are_among_the_generated_parts() -> None:
    assert MODULES  # each adds its parts when it is imported


@pytest.mark.deep
def test_a_changed_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = dict(hello.TRANSITIONS)
    del changed[hello.HelloState.RUNNING, hello.Event.FAULT_ACCEPTED]
    monkeypatch.setattr(hello, "TRANSITIONS", changed)
    assert {page.name for page in drifted()} == {"states.svg", "hello-profile.md"}
    monkeypatch.undo()
    # A copy: the order of the table itself would change when an entry comes back.
    track = {key: to for key, to in flow.RESPONDER_TRACK.items() if key != (flow.TrackState.OFFERED, flow.TrackEvent.CONFIRMED)}
    monkeypatch.setattr(flow, "RESPONDER_TRACK", track)
    assert {page.name for page in drifted()} == {"flow.svg", "flow-profile.md"}


@pytest.mark.parametrize("name", ["states", "flow", "election"])
def test_a_picture_has_a_title_and_a_full_description(name: str) -> None:
    root = ET.parse(ROOT / f"docs/{name}.svg").getroot()
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text
    assert description is not None
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    arrows = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(arrows) == len(re.findall(r"From \S+ to \S+:", description.text or ""))


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_has_dark_colours_for_all_its_light_ones(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "prefers-color-scheme:dark" in style
    drawn = text.replace(style, "")
    for name, colour in set(re.findall(r'\b(fill|stroke)="(#[0-9a-f]+)"', drawn)):
        assert f'[{name}="{colour}"]{{{name}:' in style


def test_the_steps_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [f">{step.title}<" in diagrams.steps_svg() for step in Step] == [True] * 10
    monkeypatch.setattr(steps, "__doc__", (steps.__doc__ or "").replace("3 inclusion", "3 presence"))
    with pytest.raises(ValueError, match="step 3"):
        diagrams.steps_svg()


def test_the_exchange_follows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = (hello.HelloState.NEGOTIATING, hello.Event.DOCUMENT_AGREED)
    monkeypatch.setattr(diagrams, "TRANSITIONS", {key: to for key, to in hello.TRANSITIONS.items() if key != agreed})
    with pytest.raises(KeyError):
        diagrams.handshake_svg()


def test_every_transition_is_in_the_picture() -> None:
    text = drawn.states_svg()
    description = text[text.index("<desc") : text.index("</desc>")]
    for (state, event), to in hello.TRANSITIONS.items():
        if to.target not in hello.FINAL and to.target is not state:
            assert re.search(
                rf"From {state.upper()} to {to.target.upper()}: [^.]*{re.escape(str(event)).replace(chr(39), '.')}", description
            )


def test_no_two_arrows_lie_on_each_other() -> None:
    arrows = [Arrow(a, b, ("x",)) for a in "ABCD" for b in "ABCD" if a != b]
    text = draw("T", "D", [Diagram("T", list("ABCD"), arrows)])
    paths = [tuple(map(int, numbers)) for numbers in re.findall(r'd="M(\d+) (\d+)H(\d+)V(\d+)H\d+"', text)]
    assert len(paths) == len(arrows)
    ports = [(edge, y) for edge, start, _, end in paths for y in (start, end)]
    assert len(set(ports)) == len(ports), "each arrow has a port of its own"
    for index, (_, start, lane, end) in enumerate(paths):
        for _, other_start, other_lane, other_end in paths[:index]:
            apart = max(start, end) <= min(other_start, other_end) or max(other_start, other_end) <= min(start, end)
            assert lane != other_lane or apart


@pytest.mark.parametrize("name", ["states", "flow", "election", "architecture", "handshake", "steps"])
def test_a_picture_fits_a_page(name: str) -> None:
    """Of a wider picture the words would be too small to read."""
    text = (ROOT / f"docs/{name}.svg").read_text(encoding="utf-8")
    results = re.search(r'viewBox="0 0 (\d+) \d+"', text)
    assert results is not None
    assert int(results[1]) <= diagrams.WIDTH


def test_the_architecture_is_that_of_the_import_linter() -> None:
    text = diagrams.architecture_svg()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    packages = [name for layer in contracts[0]["layers"] for name in layer.split(" | ")]
    places = [text.index(f">{name}<") for name in packages]
    assert places == sorted(places)
    described = " ".join(text[text.index("<desc") : text.index("</desc>")].split())
    for contract in contracts:
        if "rooms" in contract["name"]:
            assert f"Rooms, from above: {', '.join(contract['layers']).replace(' | ', ', ')}" in described
