"""Decode the bytes of a description: JSON, or YAML where PyYAML is installed. The value is JSON's, within bounds of its own.

YAML is read without aliases, which make a few lines into gigabytes, and without its dates.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.printable import printable
from treaty_io.codes import RpcCode

MAX_SOURCE = 4 * 1024 * 1024
MAX_YAML = 1024 * 1024
"""Bytes of YAML, which takes thirty times as long as JSON to read."""
MAX_VALUES = 500_000
MAX_DEPTH = 64


def decode_description(data: bytes, name: str) -> dict[str, Any]:
    """Return the object. `name`: of the source, for errors. Raises `Malformed` and `TooLarge` (`rpc.answer`)."""
    if len(data) > MAX_SOURCE:
        raise TooLarge(RpcCode.ANSWER, f"{name} has more than {MAX_SOURCE} bytes.")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if data.lstrip()[:1] in (b"{", b"["):
            raise Malformed(RpcCode.ANSWER, f"{name} is not JSON: {error}.") from error
        value = _yaml(data, name)
    if not isinstance(value, dict):
        raise Malformed(RpcCode.ANSWER, f"{name} is no object.")
    check_size(value, name)
    return value


def check_size(value: object, name: str) -> None:
    """Check number and depth of the values. Raises `TooLarge` (`rpc.answer`)."""
    level, count = [value], 1
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
        count += len(level)
        if count > MAX_VALUES:
            raise TooLarge(RpcCode.ANSWER, f"{name} has more than {MAX_VALUES} values.")
        if not level:
            return
    raise TooLarge(RpcCode.ANSWER, f"{name} is nested deeper than {MAX_DEPTH} levels.")


def _yaml(data: bytes, name: str) -> Any:
    try:
        import yaml  # no extra has it by itself
    except ImportError as error:
        fix = "Convert it to JSON, or install PyYAML: pip install pyyaml"
        raise Malformed(RpcCode.ANSWER, f"{name} is not JSON, and YAML cannot be read here.", fix=fix) from error
    if len(data) > MAX_YAML:
        raise TooLarge(RpcCode.ANSWER, f"{name} has more than {MAX_YAML} bytes of YAML.", fix="Convert it to JSON.")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no types
        """JSON's types only."""

        yaml_implicit_resolvers = {  # noqa: RUF012  # the library's own form
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("an alias, which is not read")
            return super().compose_node(parent, index)

    try:
        value = yaml.load(data, Loader)  # noqa: S506  # it is a safe one
        # Codes are keys of responses, and numbers of YAML.
        return msgspec.json.decode(json.dumps(value, allow_nan=False).encode())
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, msgspec.DecodeError) as error:
        reason = printable(" ".join(str(error).split()), 200)
        raise Malformed(RpcCode.ANSWER, f"{name} is neither JSON nor YAML: {reason}.") from error
