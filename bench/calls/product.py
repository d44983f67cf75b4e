"""The products that every form of the agent knows."""

from __future__ import annotations

from typing import Any

PRODUCTS: dict[str, dict[str, Any]] = {
    "P12345": {
        "productId": "P12345",
        "productName": "Performance laptop",
        "productDescription": "A laptop with the latest processor and plenty of memory.",
        "price": 1299.99,
        "currency": "USD",
    }
}
