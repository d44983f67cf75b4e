"""Which form an `Accept` header or a suffix asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treaty_registry.serving.negotiation import preferred_form, split_form


def test_suffixes_name_forms() -> None:
    assert split_form("/protocols/a/b/1.0.md") == ("/protocols/a/b/1.0", "md")
    assert split_form("/protocols/a/b/1.0.bundle") == ("/protocols/a/b/1.0", "bundle")
    assert split_form("/protocols/a/b/1.0") == ("/protocols/a/b/1.0", None)
    assert split_form("/topics/a/b") == ("/topics/a/b", None)


def test_forms_that_are_not_offered_are_not_chosen() -> None:
    assert preferred_form(b"text/markdown, application/json;q=0.1", ("json", "bundle")) == "json"
    assert preferred_form(b"text/markdown", ("json", "bundle")) is None
    assert preferred_form(b"", ("json", "bundle")) == "json"


@given(st.binary(max_size=200))
def test_any_header_is_read(header: bytes) -> None:
    assert preferred_form(header) in ("json", "md", "bundle", None)
