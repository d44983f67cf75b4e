"""The form of handoff messages: the rules of the checklist about form, and each fault of the printed schemas."""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema_rs
import pytest
from handoffs import DATA, FOLDER, changed, example
from hypothesis import given
from hypothesis import strategies as st

from treaty_agent import Identity, ProvedPeer
from treaty_consensus.errors import Malformed, Refused, TooLarge, Unauthorized, Untrusted
from treaty_handoff import Kind, Permissions, Priority, Routes, Rule, Seal, SenderGrant, Status, build, form_in, subscription
from treaty_handoff.data_forms import DataForms
from treaty_handoff.envelopes import envelope, open_envelope
from treaty_handoff.handler.forms import KINDS, PRIORITIES, SCHEMA, STATUSES
from treaty_handoff.handler.messages import accepted, derived_id, issues
from treaty_handoff.handler.schemas import check
from treaty_handoff.messages import MAX_MESSAGE, Message, accept, encode, expires_at, is_expired, moment, read
from treaty_handoff.metrics import HandoffMetrics
from treaty_handoff.redaction import HIDDEN, redacted
from treaty_handoff.typed import Data

NOW = datetime(2023, 10, 27, 10, 30, 0, 123000, UTC)
REQUIRED = [
    "metadata",
    "context",
    "payload",
    "instructions",
    "metadata.message_id",
    "metadata.timestamp",
    "metadata.protocol_version",
    "metadata.sender_id",
    "metadata.recipient_id",
    "metadata.task_id",
    "metadata.priority",
    "context.workflow_state",
    "context.previous_actions",
    "context.previous_actions.0.action_type",
    "context.previous_actions.0.details",
    "context.previous_actions.0.timestamp",
    "context.user_interaction_history.0.type",
    "context.user_interaction_history.0.sender",
    "context.user_interaction_history.0.content",
    "context.user_interaction_history.0.timestamp",
    "payload.handoff_type",
    "payload.data",
    "payload.data.issue_category",
    "payload.data.severity",
    "payload.data.customer_info",
    "payload.data.technical_details",
    "payload.data.customer_info.user_id",
    "payload.data.customer_info.name",
]


ID = "a1b2c3d4-e5f6-7890-1234-567890abcdef"


def simple(kind: Kind | Data = Kind.NOTIFICATION, **parts: Any) -> Message:
    parts = {"sender": "a", "recipient": "b", "task": "t", "state": "OPEN", "now": NOW, "flow": "f", **parts}
    return build(kind, parts.pop("data", None if isinstance(kind, Data) else DATA[kind]), **parts)


def test_the_copies_of_the_schema_are_equal() -> None:
    match = re.search(r"(?s)```json schema\n(.*?)```", (FOLDER / "document.md").read_text(encoding="utf-8"))
    assert match is not None
    manifest = json.loads((FOLDER / "manifest.json").read_text())["operations"]["handOff"]["arguments"]
    assert json.loads(match[1]) == SCHEMA == {**manifest["properties"]["message"], "$defs": manifest["$defs"]}
    assert (tuple(Kind), tuple(Priority), tuple(Status)) == (KINDS, PRIORITIES, STATUSES)


def test_the_example_is_valid() -> None:
    assert issues(example()) == []


# The checklist


def test_004_01_a_message_has_one_reading() -> None:
    text = json.dumps(example())
    with pytest.raises(Malformed, match="twice"):
        read(text.replace('"priority":', '"priority": "LOW", "priority":').encode())
    # Where the source prints a form, it is closed.
    for place in ("metadata", "context", "payload", "instructions", "payload.data", "payload.data.customer_info"):
        assert issues(changed(f"{place}.surprise", 1)) != []
    assert issues({**example(), "surprise": 1}) != []


@pytest.mark.parametrize("path", REQUIRED)
def test_004_02_nothing_that_the_recipient_needs_is_missing(path: str) -> None:
    with pytest.raises(Malformed, match=f"{path.rpartition('.')[2]} is missing"):
        accept(changed(path, ...))


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in DATA for name in SCHEMA["$defs"][kind.lower()].get("required", ())]
)
def test_004_02_and_14_each_kind_has_its_data(kind: Kind, name: str) -> None:
    data = {key: value for key, value in DATA[kind].items() if key != name}
    with pytest.raises(Malformed, match=f"payload.data.{name} is missing"):
        simple(kind, data=data)


def test_004_02_and_14_what_the_data_of_each_kind_must_have() -> None:
    required = {kind: set(SCHEMA["$defs"][kind.lower()].get("required", ())) for kind in Kind}
    assert required == {
        **{kind: set() for kind in Kind},
        Kind.REQUEST_INFORMATION: {"requested_info_keys"},
        Kind.ESCALATION: {"issue_category", "severity", "customer_info", "technical_details"},
    }


def test_004_03_a_message_has_no_member_that_says_nothing() -> None:
    message = simple()
    assert set(message["metadata"]) == {
        *("message_id", "timestamp", "protocol_version", "sender_id", "recipient_id", "correlation_id", "task_id", "priority")
    }
    assert set(message["context"]) == {"workflow_state", "previous_actions"}
    assert message["instructions"] == {}
    assert b"null" not in encode(message) and b": " not in encode(message)


def test_004_04_a_message_says_what_to_do_next() -> None:
    instructions = {"next_steps_suggestion": "Look at the logs.", "required_actions": ["DIAGNOSE"]}
    assert read(encode(simple(instructions=instructions)))["instructions"] == instructions
    with pytest.raises(Malformed):
        accept(changed("instructions", ...))


@pytest.mark.parametrize(
    "place",
    [
        "payload.data.technical_details",
        "context.previous_actions.0",
        "context.user_interaction_history.0",
        "instructions.constraints",
    ],
)
def test_004_06_open_parts_take_new_members(place: str) -> None:
    assert accept(changed(f"{place}.firmware", "1.2"))


def test_004_10_timestamps_have_milliseconds_and_a_zone() -> None:
    assert simple()["metadata"]["timestamp"] == "2023-10-27T10:30:00.123Z"
    assert moment(NOW.astimezone(tz=None)) == "2023-10-27T10:30:00.123Z"
    for text in ("2023-10-27T10:30:00Z", "2023-10-27T10:30:00.123456Z", "2023-10-27T10:30:00.12Z"):
        assert issues(changed("metadata.timestamp", text)) != []


TIMES = {
    "2023-10-27T10:30:00": "2023-10-27T10:30:00.000Z",
    "2023-10-27T10:30:00Z": "2023-10-27T10:30:00.000Z",
    "2023-10-27T10:30:00.123456": "2023-10-27T10:30:00.123Z",
    "2023-10-27T10:30:00.123456789Z": "2023-10-27T10:30:00.123Z",
    "2023-10-27t10:30:00.1z": "2023-10-27T10:30:00.100Z",
    "2023-10-27 12:30:00.12+02:00": "2023-10-27T10:30:00.120Z",
}
"""A time as others write it, and as it is read."""


@pytest.mark.parametrize("text", TIMES)
def test_004_10_times_of_any_precision_are_written_alike(text: str) -> None:
    for place in ("metadata.timestamp", "metadata.expiration_time", "context.previous_actions.0.timestamp"):
        assert accept(changed(place, text)) == changed(place, TIMES[text])


def test_004_03_null_is_absent_only_in_known_members() -> None:
    for place in (
        "metadata.correlation_id",
        "metadata.expiration_time",
        "context.historical_data_summary",
        "payload.data.customer_info.contact_number",
        "payload.data.technical_details.log_references",
        "instructions.constraints",
    ):
        assert accept(changed(place, None)) == changed(place, ...)
    assert accept(changed("metadata.tenant", None)) == example()
    free = changed("payload.data.technical_details.firmware", None)
    assert accept(free) == free
    for place in ("metadata.task_id", "context.previous_actions", "payload.data.severity"):
        with pytest.raises(Malformed, match=place):
            accept(changed(place, None))


FOREIGN: dict[Kind, dict[str, Any]] = {
    Kind.TASK_TRANSFER: {"title": "Restore the line."},
    Kind.PROVIDE_INFORMATION: {"level": "gold"},
    Kind.NOTIFICATION: {"message": "The line is up."},
    Kind.STATUS_UPDATE: {"state": "DIAGNOSING"},
    Kind.APPROVAL_REQUEST: {"amount": 180},
}
"""Data of other makers, for the types that the source prints no form for."""


@pytest.mark.parametrize("kind", Kind)
def test_004_14_each_type_has_a_schema_of_its_own(kind: Kind) -> None:
    printed = changed("payload", {"handoff_type": str(kind), "data": FOREIGN.get(kind, {"title": "x"})})
    assert (issues(printed) == []) == (kind in FOREIGN)
    for other in (Kind.ESCALATION, Kind.REQUEST_INFORMATION):
        message = changed("payload", {"handoff_type": str(other), "data": DATA[kind]})
        assert (issues(message) == []) == (kind is other)
    assert issues(changed("payload", {"handoff_type": "GOSSIP", "data": {}})) != []


def test_004_14_an_owner_may_demand_a_published_form() -> None:
    document = '# Ticket\n\n```json schema\n{"required": ["ticket"], "properties": {"ticket": {"type": "string"}}}\n```\n'
    forms = DataForms({Kind.NOTIFICATION: form_in(document)})
    forms.check(simple(data={"ticket": "T-1", "event": "OPENED"}))
    forms.check(simple(Kind.TASK_TRANSFER))
    for data, words in ({"event": "OPENED"}, "payload.data.ticket is missing"), ({"ticket": 1}, "payload.data.ticket breaks"):
        with pytest.raises(Malformed, match=words):
            forms.check(simple(data=data))
    # No form makes an agent fetch: a form of another author could name any place.
    for schema in ({"$ref": "https://example.com/form"}, {"type": "nothing"}):
        with pytest.raises(Malformed, match="no JSON Schema"):
            DataForms({Kind.NOTIFICATION: schema})
    with pytest.raises(Malformed, match="no block"):
        form_in("# Ticket")


@pytest.mark.parametrize("kind", Kind)
def test_004_19_typed_data_are_those_of_dicts(kind: Kind) -> None:
    typed = {each.kind: each for each in Data.__subclasses__()}[kind]
    assert simple(typed.read(DATA[kind]), message_id=ID) == simple(kind, message_id=ID)
    with pytest.raises(Malformed, match=r"payload\.data"):
        typed.read([])


def test_derived_ids_are_those_of_version_5() -> None:
    for key in ("", "a/b", "中"):
        assert derived_id(ID.upper(), key) == str(uuid.uuid5(uuid.UUID(ID), key))


FORMS: dict[Kind, dict[str, Any]] = {
    Kind.TASK_TRANSFER: {"objective": 1, "sub_tasks": [{"sub_task_id": 1}], "inputs": [], "progress": 101},
    Kind.REQUEST_INFORMATION: {"requested_info_keys": "level", "query_parameters": []},
    Kind.PROVIDE_INFORMATION: {"information": [], "missing_keys": "level", "in_reply_to": "1"},
    Kind.ESCALATION: {"issue_category": "", "severity": "URGENT", "customer_info": {"user_id": "u"}, "technical_details": []},
    Kind.NOTIFICATION: {"event": "", "detail": 1, "attributes": []},
    Kind.STATUS_UPDATE: {
        "status": "DONE",
        "progress": -1,
        "detail": 1,
        "issues": "x",
        "in_reply_to": "1",
        "actions_done": "x",
        "criteria_met": 1,
        "result": [],
        "retry_after": 0,
    },
    Kind.APPROVAL_REQUEST: {"subject": 1, "options": "x", "details": [], "deadline": "tomorrow"},
}
"""A value of a wrong form for each member of each kind."""


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, members in FORMS.items() for name in members])
def test_004_14_each_member_of_each_type_has_its_form(kind: Kind, name: str) -> None:
    assert set(SCHEMA["$defs"][kind.lower()]["properties"]) == set(FORMS[kind])
    with pytest.raises(Malformed, match=f"payload.data.{name}"):
        simple(kind, data={**DATA[kind], name: FORMS[kind][name]})


def test_004_23_a_message_goes_to_its_recipient_or_by_its_type() -> None:
    assert Routes().queues(simple()) == ("b",)
    assert Routes().queues(simple(recipient=["b", "c"])) == ("b", "c")
    routes = Routes([Rule(("archive",), kinds={Kind.NOTIFICATION}), Rule(("desk",), recipients={"c"})])
    assert routes.queues(simple()) == ("archive",)
    assert routes.queues(simple(Kind.TASK_TRANSFER, recipient=["b", "c"])) == ("b", "desk")


def test_004_24_rules_look_at_type_priority_and_data() -> None:
    rules = [
        Rule(("experts",), kinds={Kind.ESCALATION}, priority=Priority.HIGH, where={"issue_category": "NETWORK_CONNECTIVITY"}),
        Rule(("vip",), where={"customer_info.name": "John Doe"}),
    ]
    routes = Routes(rules)
    assert routes.queues(simple(Kind.ESCALATION, priority=Priority.CRITICAL)) == ("experts",)
    assert routes.queues(simple(Kind.ESCALATION, priority=Priority.MEDIUM)) == ("vip",)
    other = {**DATA[Kind.ESCALATION], "issue_category": "BILLING", "customer_info": {"user_id": "x", "name": "Jane"}}
    assert routes.queues(simple(Kind.ESCALATION, priority=Priority.CRITICAL, data=other)) == ("b",)
    copying = Routes([subscription("audit", Kind.ESCALATION), *rules])
    assert copying.queues(simple(Kind.ESCALATION, priority=Priority.CRITICAL)) == ("experts", "audit")


@pytest.mark.threat(248)
async def test_004_28_stored_messages_are_sealed_with_aes_256() -> None:
    seal, older_seal = Seal(b"n" * 32, b"o" * 32), Seal(b"o" * 32)
    sealed = seal.close(b"John Doe", "queue/a")
    assert b"John" not in sealed and seal.open(sealed, "queue/a") == b"John Doe"
    assert sealed != seal.close(b"John Doe", "queue/a")
    assert seal.open(older_seal.close(b"old", "queue/a"), "queue/a") == b"old"
    changed_data = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for data, place in ((changed_data, "queue/a"), (sealed, "queue/b"), (b"", "queue/a"), (sealed[:9], "queue/a")):
        with pytest.raises(Untrusted):
            seal.open(data, place)
    with pytest.raises(Untrusted):
        older_seal.open(sealed, "queue/a")
    for wrong in (b"", b"k" * 16, b"k" * 33):
        with pytest.raises(Malformed):
            Seal(wrong)


class Documents:
    """Finds the keys of did:key, and no others."""

    async def resolve(self, did: Any, *, listing: str = "") -> Any:
        from treaty_io.network.did_documents import DidResolver

        async def nothing(_: Any) -> Any:
            raise Refused("did.document", "There is no document.")

        return await DidResolver(nothing).resolve(did, listing=listing)


async def test_004_29_a_message_is_authentic_and_of_a_permitted_type() -> None:
    alice, mallory = Identity.create(), Identity.create()
    message = simple(sender="alice")
    opened = await open_envelope(envelope(message, alice), Documents())
    assert opened.message == message and opened.signer == ProvedPeer(alice.did)
    permissions = Permissions({"alice": SenderGrant(alice.did, frozenset({Kind.NOTIFICATION}))})
    permissions.check(message, opened.signer)
    for signer in (None, ProvedPeer(mallory.did)):
        with pytest.raises(Unauthorized):
            permissions.check(message, signer)
    with pytest.raises(Unauthorized):
        permissions.check(simple(sender="bob"), ProvedPeer(alice.did))
    with pytest.raises(Refused, match="may not send"):
        permissions.check(simple(Kind.ESCALATION, sender="alice"), ProvedPeer(alice.did))
    stranger = Permissions(strangers=frozenset({Kind.NOTIFICATION}))
    stranger.check(simple(sender=mallory.did), ProvedPeer(mallory.did))
    with pytest.raises(Refused):
        stranger.check(simple(Kind.ESCALATION, sender=mallory.did), ProvedPeer(mallory.did))


@pytest.mark.parametrize(
    "forge",
    [
        lambda value: value["handoff"]["metadata"].update(priority="CRITICAL"),
        lambda value: value["proof"].update(signature="A" * 88),
        lambda value: value["proof"].update(signature=""),
        lambda value: value["proof"].update(key=Identity.create().key_id),
        lambda value: value["proof"].update(key="nothing"),
    ],
)
async def test_004_29_a_forged_envelope_is_refused(forge: Callable[[Any], None]) -> None:
    value = json.loads(envelope(simple(sender="alice"), Identity.create()))
    forge(value)
    with pytest.raises(Unauthorized):
        await open_envelope(json.dumps(value).encode(), Documents())


@pytest.mark.threat(246)
def test_004_30_a_shown_message_has_no_personal_data() -> None:
    message = example()
    text = json.dumps(redacted(message))
    for personal in ("John", "Doe", "john.doe", "555", "keeps dropping", "intermittent"):
        assert personal not in text
    assert redacted(message)["metadata"] == message["metadata"]
    assert redacted(message)["payload"]["data"]["customer_info"] == HIDDEN
    # Hidden by default: no list of names and no pattern finds what is personal in free forms.
    note: dict[str, Any] = {
        "event": "CALLED jane@example.org",
        "attributes": {"full_name": "J", "tel": 15551234567, "status": "2023-10-27T J"},
    }
    content = redacted(simple(data=note))["payload"]["data"]
    assert content == {"event": HIDDEN, "attributes": HIDDEN}
    # Senders add members. Those with names of the protocol are shown if their value leaves no room for personal data.
    note = {"status": "John Doe", "progress": 15551234567, "severity": "CRITICAL", "deadline": "2023-10-27T12:00:00.000Z"}
    content = redacted(simple(data=note))["payload"]["data"]
    assert content == {**note, "status": HIDDEN, "progress": HIDDEN}
    assert redacted(message)["context"]["user_interaction_history"][0]["sender"] == HIDDEN
    assert redacted(message)["context"]["workflow_state"] == HIDDEN
    assert redacted(message)["payload"]["data"]["severity"] == message["payload"]["data"]["severity"]
    assert message == example()


def test_004_32_metrics_have_backlog_latency_and_errors() -> None:
    metrics = HandoffMetrics()
    metrics.count("completed", "ESCALATION")
    metrics.count("refused", "")
    for seconds in (0.02, 2.0, 4000.0, -1.0):
        metrics.took(seconds)
    text = metrics.exposition({'a"b': 3}, {"c": 1})
    assert 'handoff_events_total{event="completed",kind="ESCALATION"} 1\n' in text
    assert 'handoff_backlog{queue="a\\"b"} 3\n' in text
    assert 'handoff_latency_seconds_bucket{le="0.05"} 2\n' in text
    assert 'handoff_latency_seconds_bucket{le="+Inf"} 4\n' in text
    assert metrics.total("refused") == 1


@pytest.mark.parametrize("version", ["2.0.0", "0.9.0", "10.0.0"])
def test_004_33_another_major_version_is_recognised_and_refused(version: str) -> None:
    with pytest.raises(Refused) as caught:
        accept(changed("metadata.protocol_version", version))
    assert caught.value.code == "handoff.form"


def test_004_33_the_own_version_is_written() -> None:
    assert simple()["metadata"]["protocol_version"] == "1.0.0"


def test_004_34_a_later_minor_version_may_add_optional_members() -> None:
    later = changed("metadata.protocol_version", "1.3.0")
    plain = copy.deepcopy(later)
    later["metadata"]["tenant"] = "t"
    later["payload"]["data"]["customer_info"]["language"] = "en"
    later["context"]["previous_actions"][0]["tool"] = "ping"
    later["instructions"]["failure_handling_strategy"]["notify"] = "x"
    later["signature_hint"] = 1
    plain["context"]["previous_actions"][0]["tool"] = "ping"
    assert accept(later) == plain
    later["metadata"]["protocol_version"] = "1.0.5"
    with pytest.raises(Malformed):
        accept(later)
    del later["payload"]["data"]["severity"]
    later["metadata"]["protocol_version"] = "1.3.0"
    with pytest.raises(Malformed):
        accept(later)


# The faults of the printed schemas


def test_a_version_has_ascii_digits_over_the_whole_text() -> None:
    for text in ("١.٠.٠", "1.0", "1.0.0\n", "v1.0.0", "1.0.0-beta", "1.0.0.0"):
        assert issues(changed("metadata.protocol_version", text)) != []


def test_a_retry_count_is_not_negative() -> None:
    for count, valid in ((-5, False), (-1, False), (0, True), (3, True), (1.5, False), ("3", False), (True, False)):
        assert (issues(changed("instructions.failure_handling_strategy.retry_count", count)) == []) == valid


def test_an_escalation_with_the_data_of_a_request_is_refused() -> None:
    assert issues(changed("payload.data", {"requested_info_keys": ["a"]})) != []


def test_a_type_without_a_schema_is_refused() -> None:
    assert issues(changed("payload", {"handoff_type": "DELEGATION", "data": {}})) != []
    assert set(SCHEMA["$defs"]) >= {kind.lower() for kind in Kind}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("metadata.message_id", "not-a-uuid"),
        ("metadata.message_id", "a1b2c3d4e5f678901234567890abcdef"),
        ("metadata.timestamp", "yesterday"),
        ("metadata.timestamp", "2023-02-30T10:30:00.123Z"),
        ("metadata.expiration_time", "2023-13-01T10:30:00.123Z"),
        ("context.previous_actions.0.timestamp", "2023-10-27 10:30:00Z"),
        ("instructions.constraints", {"time_limit": "two hours"}),
    ],
)
def test_formats_are_checked(path: str, text: object) -> None:
    assert issues(changed(path, text)) != []


@pytest.mark.parametrize(
    "path", ["metadata.timestamp", "metadata.expiration_time", "context.user_interaction_history.0.timestamp"]
)
def test_a_time_without_a_zone_is_refused(path: str) -> None:
    assert issues(changed(path, "2023-10-27T10:30:00.123")) != []
    assert issues(changed(path, "2023-10-27T10:30:00.123+02:00")) == []


@pytest.mark.parametrize("recipient", ["", [], ["a", "a"], [""], 7, [7]])
def test_recipients_are_names_each_once(recipient: object) -> None:
    assert issues(changed("metadata.recipient_id", recipient)) != []


def test_the_ids_of_the_printed_example_are_accepted() -> None:
    message = example()
    assert (message["metadata"]["correlation_id"], message["metadata"]["task_id"]) == ("flow-xyz-123", "task-abc-456")
    assert issues(changed("metadata.correlation_id", "")) != []


# Bounds, and the two readers


def test_an_oversized_or_foreign_message_is_refused_first() -> None:
    with pytest.raises(TooLarge):
        read(b" " * (MAX_MESSAGE + 1))
    for data in (b"", b"[]", b"null", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"metadata": NaN}'):
        with pytest.raises(Malformed):
            read(data)


def test_an_expired_message_is_one_whose_time_has_come() -> None:
    message = simple(lifetime=timedelta(seconds=2))
    assert expires_at(message) == NOW + timedelta(seconds=2)
    assert [is_expired(message, NOW + timedelta(seconds=seconds)) for seconds in (1.999, 2, 3)] == [False, True, True]
    assert not is_expired(simple(), NOW + timedelta(days=9999))


PATHS = ["metadata.message_id", "metadata.timestamp", "metadata.recipient_id", "metadata.priority", "metadata.expiration_time"]
PATHS += ["context.previous_actions", "context.previous_actions.0.timestamp", "payload.handoff_type", "payload.data"]
PATHS += ["payload.data.severity", "payload.data.technical_details.logs_attached", "instructions.failure_handling_strategy"]
PATHS += ["instructions.failure_handling_strategy.retry_count", "instructions.constraints", "metadata.protocol_version"]
ORACLE = jsonschema_rs.Draft202012Validator(SCHEMA, validate_formats=True)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["HIGH", "STATUS_UPDATE", "2024-02-29T23:59:59.999Z", "2023-02-29T00:00:00.000Z", "PT2H", "PT", "1.2.3"])
    | st.from_regex(
        r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]\.[0-9]{3}(Z|\+[0-2][0-9]:[0-9]{2})", fullmatch=True
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["time_limit", "status", "x"]), inner, max_size=3)
    ),
    max_leaves=4,
)


@given(st.sampled_from(PATHS), VALUES)
def test_the_handler_and_a_library_agree_on_the_form(path: str, value: object) -> None:
    message = changed(path, value)
    faults = list(check(SCHEMA, message, SCHEMA))
    assert (faults == []) == ORACLE.is_valid(message), faults


@given(st.sampled_from(PATHS), VALUES)
def test_reading_never_fails_and_what_it_takes_is_written_once(path: str, value: object) -> None:
    message = accepted(changed(path, value))
    assert accepted(message) == message


def test_errors_say_what_would_fit() -> None:
    for place, words in {
        "metadata.message_id": "a UUID",
        "metadata.timestamp": "a time such as 2023-10-27T10:30:00.123Z",
        "metadata.priority": "none of LOW, MEDIUM, HIGH, CRITICAL",
        "metadata.protocol_version": "a version such as 1.0.0",
        "metadata.sender_id": "a text of 1 to 256 characters",
        "instructions.constraints.time_limit": "a duration such as PT2H",
    }.items():
        (issue,) = issues(changed(place, ""))
        assert issue.startswith(f"{place} is n") and words in issue


def test_errors_name_places_and_no_values() -> None:
    assert "John" not in " ".join(issues(changed("payload.data.customer_info.name", {"x": "John"})))
