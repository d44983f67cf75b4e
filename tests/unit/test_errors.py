"""What an error says is one line that does nothing to a terminal or a log, whatever it quotes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treaty_agent.sessions.operation_errors import OperationError
from treaty_anp.hello_profile import hello, messages
from treaty_consensus.errors import MAX_TEXT, Refused, TreatyError
from treaty_consensus.printable import escaped, printable

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nERROR forged line\u202egnp.exe\u2028\x9b31m\ud800\\"


@pytest.mark.threat(109)
@pytest.mark.parametrize("make", [Refused, TreatyError, lambda _, text, fix="": OperationError(404, text)])
def test_a_message_is_one_printable_line(make: type[TreatyError]) -> None:
    error = make("some.code", f"They said: {HOSTILE}", fix=f"Ask {HOSTILE}")
    for text in (str(error), error.message, error.fix, *map(str, error.args)):
        assert text.isprintable()
    assert "forged line" in error.message
    again = Refused(error.code, error.message, fix=error.fix)
    assert (again.message, again.fix) == (error.message, error.fix)


def test_a_message_is_not_as_long_as_what_it_quotes() -> None:
    error = Refused("some.code", "a" * 10**6, fix="b" * 10**6)
    assert len(error.message) == len(error.fix) == MAX_TEXT


@pytest.mark.threat(109)
@pytest.mark.parametrize(
    "text",
    ['{"action":"codeGeneration","status":"' + "\\u001b[2J" * 20_000 + '"}', '{"action":"\\u202e","status":"\\u001b"}'],
)
def test_a_value_that_breaks_a_schema_is_quoted_harmlessly(text: str) -> None:
    with pytest.raises(TreatyError) as caught:
        messages.parse(text.encode())
    assert caught.value.message.isprintable()
    with pytest.raises(TreatyError) as caught:
        hello.parse(text, "sourceHello")
    assert caught.value.message.isprintable()


@given(st.text(), st.integers(0, 40))
def test_what_is_printable_is_one_line_of_bounded_length(text: str, limit: int) -> None:
    text_shown = printable(text, limit)
    assert text_shown.isprintable()
    assert len(text_shown) <= 10 * limit
    assert escaped(text_shown) == text_shown
    if text.isprintable() and "\\" not in text:
        assert text_shown == text[:limit]


@given(st.text(), st.text())
def test_two_texts_are_never_shown_alike(one: str, other: str) -> None:
    """So nobody passes a backslash and letters off as a control character."""
    assert (printable(one, 100) == printable(other, 100)) == (one[:100] == other[:100])
    assert printable("\\x1b", 9) != printable("\x1b", 9)
