"""Serve protocols as Agent Skills: an index of the elected ones, and one of each namespace.

    GET /.well-known/agent-skills/index.json                          {"$schema": …, "skills": [{"name", "type", "description",
    GET /.well-known/agent-skills/NAME/SKILL.md                         "url", "digest"}]} (agentskills.io, discovery 0.2.0)
    GET /namespaces/NAMESPACE/.well-known/agent-skills/index.json     and so on

A document with the front matter that `treaty document` writes is a skill as it is, so its digest is the protocol's hash. Another
one is wrapped, and the wrapper says so. No index has all of a registry: agents follow skills with all their permissions, and
anyone publishes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import Gone, NotFound
from treaty_consensus.kinds import NEGATIVE_STATES
from treaty_consensus.protocol import parse_namespace, parse_protocol_uri

from ..catalogue.resources import Record
from ..log.changes import CATALOGUE, PERIODIC
from .representation import JSON, MARKDOWN, Representation

if TYPE_CHECKING:
    from .views import Made, Views

PATH = "/.well-known/agent-skills"
MAX_SKILLS = 64
"""Of an index. Each is a document that is read."""
MAX_PUBLISHED = 256
"""The newest versions of a namespace that its index looks at."""
_SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
_MAX_NAME, _MAX_DESCRIPTION = 64, 1_024
# Two members and no others: `allowed-tools`, for example, would give a stranger's text permissions.
_FRONT = re.compile(rb'\A---\nname: ([a-z0-9]+(?:-[a-z0-9]+)*)\ndescription: ("(?:[^"\\\n]|\\["\\/bfnrtu])*")\n---\n')
_PUBLISHED = """
select distinct on (newest.name) newest.uri from (
  select p.name, p.uri, p.index from (
    select index from postings where word = '=namespace/' || $1 order by place desc, index desc limit $2
  ) found join protocols p on p.index = found.index where p.state in ('active', 'deprecated')
) newest order by newest.name, newest.index desc limit $3
"""


class Skill(NamedTuple):
    """A skill of an index. `body`: of its SKILL.md."""

    name: str
    description: str
    body: Representation


async def index(views: Views, namespace: str | None) -> Representation:
    """Return the index of the elected protocols, or of those of a namespace. Raises `Malformed`."""
    base = _base(namespace)

    async def view() -> Made:
        entries = [
            {
                "name": skill.name,
                "type": "skill-md",
                "description": skill.description,
                "url": f"{base}/{skill.name}/SKILL.md",
                "digest": f"sha256:{skill.body.tag}",
            }
            for skill in [await _skill(views, uri, name) for name, uri in (await _uris(views, namespace)).items()]
            if skill is not None
        ]
        return Representation(msgspec.json.encode({"$schema": _SCHEMA, "skills": entries}), JSON), (CATALOGUE, PERIODIC)

    return await views.made(f"{base}/index.json", view)


async def document(views: Views, namespace: str | None, name: str) -> Representation:
    """Return the SKILL.md of a skill of an index. Raises `Malformed`, `NotFound`."""

    async def view() -> Made:
        uri = (await _uris(views, namespace)).get(name)
        skill = await _skill(views, uri, name) if uri else None
        if skill is None:
            raise NotFound(ProtocolCode.UNKNOWN, "There is no such skill.", fix=f"GET {_base(namespace)}/index.json")
        return skill.body, (CATALOGUE, PERIODIC)

    return await views.made(f"{_base(namespace)}/{name}/SKILL.md", view)


def _base(namespace: str | None) -> str:
    return PATH if namespace is None else f"/namespaces/{parse_namespace(namespace)}{PATH}"


async def _uris(views: Views, namespace: str | None) -> dict[str, str]:
    """Return the protocols of an index by the names of their skills. Of two with one name the later one has a part of its
    document's hash in its own."""
    if namespace is not None:
        rows = await views.registry.pool.fetch(_PUBLISHED, namespace, MAX_PUBLISHED, MAX_SKILLS)
        uris = [row["uri"] for row in rows]
    else:
        topics = await views.elections.elected(MAX_SKILLS)
        uris = [topic.uri for topic in topics if topic.uri and topic.consensus and topic.status not in NEGATIVE_STATES]
    named: dict[str, str] = {}
    for uri in uris:
        name = parse_protocol_uri(uri).name
        if name in named:
            record = await views.catalogue.record(uri)
            name = f"{name[: _MAX_NAME - 9].rstrip('-')}-{record.document[:8]}"
        named[name] = uri
    return named


async def _skill(views: Views, uri: str, name: str) -> Skill | None:
    """Return a protocol as a skill, or None if its document was withdrawn."""
    record = msgspec.json.decode((await views.catalogue.record(uri)).json, type=Record)
    try:
        data = await views.registry.blob(record.hash)
    except Gone:
        return None
    front = _FRONT.match(data)
    if front is not None and front[1].decode() == name and (own := _description(front[2])):
        return Skill(name, own, Representation(data, MARKDOWN, tag=record.hash))
    description = (record.card.summary or record.card.title or name)[:_MAX_DESCRIPTION].replace("---", "—").strip() or name
    head = (
        f"---\nname: {name}\ndescription: {json.dumps(description, ensure_ascii=False)}\n---\n\n"
        f"> This registry wrote the lines above and this note, because the document of the protocol {uri} is no skill by itself. "
        f"The document follows as it was published. Its SHA-256 is {record.hash}.\n\n"
    )
    return Skill(name, description, Representation(head.encode() + data, MARKDOWN))


def _description(quoted: bytes) -> str:
    """Return the text of a description in quotation marks, or "" for one that a skill cannot have."""
    try:
        text = json.loads(quoted)
    except ValueError:
        return ""
    # Agora's reader ends the front matter at the next three dashes, wherever they are.
    return text.strip() if len(text) <= _MAX_DESCRIPTION and "---" not in text else ""
