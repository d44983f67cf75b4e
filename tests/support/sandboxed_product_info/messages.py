"""The two messages, REQUEST and RESPONSE: their JSON form, and the document's schemas as code."""

from __future__ import annotations

import pkgutil
from typing import Final

from treaty_handler import Value, decode_json, encode_json

ACTION: Final = "getProductInfo"
OK: Final = 200
REQUIRED: Final = ("productId", "productName", "productDescription", "price", "currency")


def _listed_codes() -> frozenset[int]:
    """The codes by which this version of the protocol lets the operation fail: its manifest has them, and no other place."""
    manifest = decode_json(pkgutil.get_data(__name__, "manifest.json") or b"")
    return frozenset(int(code) for code in manifest["operations"][ACTION]["errors"])


CODES: Final = _listed_codes() | {500, 502, 503, 504}


def encode(message: Value) -> bytes:
    """A message as compact UTF-8 JSON. Raises `ValueError`."""
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return encode_json(message)


def decode(data: bytes) -> dict[str, Value]:
    """The JSON object in these bytes. Raises `ValueError`."""
    message = decode_json(data)
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def request(message_id: str, members: dict[str, Value]) -> bytes:
    """A request for the product that `wanted` names by productId, productName or both."""
    return encode({"messageId": message_id, "type": "REQUEST", "action": ACTION, **members})


def response(message_id: str, code: int, text: str, product: Value = None) -> bytes:
    """A response; `product` belongs to code 200 alone."""
    status = {"code": code, "message": text}
    return encode({"messageId": message_id, "type": "RESPONSE", "status": status, "productInfo": product})


def wanted(message: dict[str, Value]) -> dict[str, Value]:
    """What a request asks for: the arguments of the operation."""
    return {name: message[name] for name in ("productId", "productName") if name in message}


def product(message: dict[str, Value]) -> dict[str, Value]:
    """The product of a successful response, without what the document does not define."""
    return {name: message["productInfo"][name] for name in REQUIRED}


def request_issues(message: Value) -> list[str]:
    """What keeps a message from being a request, a sentence each."""
    if not isinstance(message, dict):
        return ["A message is a JSON object."]
    issues = [f"{name} is not a string." for name in ("messageId", "type", "action") if not _is_text(message, name)]
    values = wanted(message)
    if not values:
        issues.append("Neither productId nor productName is given.")
    issues += [f"{name} is not a string." for name in values if not _is_text(values, name)]
    if message.get("type") != "REQUEST":
        issues.append("The type of a request is REQUEST.")
    if message.get("action") != ACTION:
        issues.append(f"The only action is {ACTION}.")
    return issues


def response_issues(message: Value) -> list[str]:
    """What keeps a message from being a response, a sentence each."""
    if not isinstance(message, dict):
        return ["A message is a JSON object."]
    issues = [f"{name} is not a string." for name in ("messageId", "type") if not _is_text(message, name)]
    if message.get("type") != "RESPONSE":
        issues.append("The type of a response is RESPONSE.")
    status = message.get("status")
    if not isinstance(status, dict) or not _is_text(status, "message") or type(status.get("code")) is not int:
        return [*issues, "status is not an object with an integer code and a message."]
    if "productInfo" not in message:
        issues.append("productInfo is missing; where there is none, it is null.")
    elif message["productInfo"] is not None or status["code"] == OK:
        issues += _product_issues(message["productInfo"])
    return issues


def _product_issues(value: Value) -> list[str]:
    if not isinstance(value, dict):
        return ["productInfo is not an object."]
    texts = (name for name in REQUIRED if name != "price")
    issues = [f"productInfo.{name} is not a string." for name in texts if not _is_text(value, name)]
    if type(value.get("price")) not in (int, float):
        issues.append("productInfo.price is not a number.")
    return issues


def _is_text(value: dict[str, Value], name: str) -> bool:
    return isinstance(value.get(name), str)
