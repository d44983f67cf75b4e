"""A class from which `treaty new ride --topic travel/taxi --from examples.taxi:Taxi` makes a protocol without code."""

from __future__ import annotations


class Taxi:
    """Order a taxi."""

    def order(self, place: str, seats: int = 1) -> dict[str, str | int]:
        """Order a taxi to a place.

        >>> order("Station", 2)
        {'car': 'T-1', 'minutes': 7}
        """
        return {"car": "T-1", "minutes": 7}
