"""Read a payload of a peer that knows more, or writes more loosely, than this profile: pass over its odd entries.

An optional member with another value is left out, as if it were absent. An entry of a list or of an object with another form is
left out, and so are those beyond the cap. A required member stays, so that the parser reports it. For example, in
`supportedProtocols` a protocol with `"preferenceScore": 1.5` loses the score, and one without `version` is left out.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

_ODD = object()


def tolerated(value: Any, kind: type[msgspec.Struct]) -> Any:
    """Return the JSON value of a payload without the entries that `kind` does not admit. Costs one conversion for each entry."""
    if not isinstance(value, dict):
        return value
    kept = {}
    for known in msgspec.structs.fields(kind):
        if known.encode_name not in value:
            continue
        given = value[known.encode_name]
        fitted = _fit(given, known.type)
        if fitted is not _ODD:
            kept[known.encode_name] = fitted
        elif known.required:
            # Kept as it is, so that the parser names it in its error.
            kept[known.encode_name] = given
    return kept


def _fit(value: Any, hint: Any) -> Any:
    """Return the value as far as it has a type, or `_ODD`."""
    kind, cap = _bare(hint)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _checked(tolerated(value, kind), kind)
    if get_origin(kind) is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        # The cap goes first, so that a long list costs no more than a full one.
        return [fitted for one in value[:cap] if (fitted := _fit(one, item)) is not _ODD]
    if get_origin(kind) is dict and isinstance(value, dict):
        name, item = get_args(kind)
        pairs = list(value.items())[:cap]
        return {key: one for key, one in pairs if _checked(key, name) is not _ODD and _checked(one, item) is not _ODD}
    return _checked(value, hint)


def _bare(hint: Any) -> tuple[Any, int | None]:
    """Return a type without `Annotated` and `None`, and the cap of its entries."""
    cap = None
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            cap = next((meta.max_length for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta)), None)
            hint = get_args(hint)[0]
        else:
            members = [member for member in get_args(hint) if member is not NoneType]
            if len(members) != 1:
                break
            hint = members[0]
    return hint, cap


def _checked(value: Any, hint: Any) -> Any:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return _ODD
    return value
