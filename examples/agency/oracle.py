"""The judgement of a run: did each trip end as a person expects, and do all ledgers agree?

A person calls a trip lost for three reasons: no leg was left (409), the traveller did not approve the price (403), or the bank
refused (402). A lost trip has no booking, no payment and no ride. Every other trip has one booking for each leg, one payment of
their sum, and one ride. The room of the drivers numbers its sales: it forgot one if two rides have the same number.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from .chaos import Fault
from .world import FLIGHTS, HOTELS, PAYMENTS, RIDES, TRAVELLER, World, lines_of

LOST = ("operation.402", "operation.403", "operation.409")
RECOVERY = 5.0
"""Seconds after a fault in which a trip counts as one in it."""


@dataclass(frozen=True)
class Report:
    """The figures of a run.

    `lost`, `failed`: error codes and their number. `mistakes`: those found in the ledgers, as sentences. `calm`, `in_faults`:
    seconds of a trip, the median and the 99th of 100. `faults`: each with its seconds and those of the longest trip in it.
    """

    trips: int
    arranged: int
    lost: dict[str, int]
    failed: dict[str, int]
    mistakes: list[str]
    calm: tuple[float, float]
    in_faults: tuple[float, float]
    faults: list[tuple[str, float, float]]

    @property
    def value(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return asdict(self)


def judge(world: World, happened: Sequence[Fault]) -> Report:
    """Return the report of a run that is over."""
    results = lines_of(world.stage.home(TRAVELLER) / "trips.jsonl")
    codes = Counter(str(line["code"]) for line in results if "code" in line)
    within = [[line["seconds"] for line in results if _is_in(line, fault)] for fault in happened]
    disturbed = [line for line in results if any(_is_in(line, fault) for fault in happened)]
    return Report(
        trips=len(results),
        arranged=sum("price" in line for line in results),
        lost={code: number for code, number in codes.items() if code in LOST},
        failed={code: number for code, number in codes.items() if code not in LOST},
        mistakes=_mistakes(world, results),
        calm=_percentiles([line["seconds"] for line in results if line not in disturbed]),
        in_faults=_percentiles([line["seconds"] for line in disturbed]),
        faults=[
            (fault.name, round(fault.ended - fault.began, 1), round(max(seconds, default=0.0), 1))
            for fault, seconds in zip(happened, within, strict=True)
        ],
    )


def _is_in(line: dict[str, Any], fault: Fault) -> bool:
    """Return whether a trip was under way during a fault or soon after."""
    began: float = line["began"]
    return began < fault.ended + RECOVERY and fault.began < began + line["seconds"]


def _mistakes(world: World, results: list[dict[str, Any]]) -> list[str]:
    """Compare the traveller's outcomes with the ledgers of the vendors and the bank."""
    legs = [_active(world.stage.home(domain), "booked") for domain in (FLIGHTS, HOTELS)]
    paid = _active(world.stage.home(PAYMENTS), "captured")
    rides = _active(world.stage.home(RIDES), "sold")
    names = ("flights", "hotels")
    missing = {f"T{number:04}" for number in range(len(results))} ^ {line["trip"] for line in results}
    found = [f"Trips without one outcome: {sorted(missing)}"] if missing else []
    for line in results:
        trip = line["trip"]
        prices = [leg.pop(f"{trip}-{name}", 0) for leg, name in zip(legs, names, strict=True)]
        payment, ride = paid.pop(trip, 0), rides.pop(trip, 0)
        if "price" in line:
            if not all((*prices, ride)) or not sum(prices) == payment == line["price"]:
                found.append(
                    f"{trip} was arranged for {line['price']}; its legs are {prices}, its payment is {payment}, its ride {ride}."
                )
        elif line["code"] in LOST and (payment or ride or any(prices)):
            found.append(f"{trip} was lost ({line['code']}); its legs are {prices}, its payment is {payment}, its ride {ride}.")
    left = [key for ledger in (*legs, paid, rides) for key in ledger]
    found += [f"Entries without a trip: {left}"] if left else []
    return found + _forgotten(world.stage.home(RIDES))


def _forgotten(home: Path) -> list[str]:
    """Find the numbers of sales that the room gave twice."""
    numbers = Counter(detail.partition(" ")[0] for (detail,) in _rows(home, "select detail from journal where event = 'sold'"))
    twice = [number for number, count in numbers.items() if count > 1]
    return [f"Sales of the room with the same number: {twice}"] if twice else []


def _active(home: Path, event: str) -> dict[str, int]:
    """Return the price of each key with an event that was not cancelled."""
    query = "select key, price from journal where event = ? and key not in (select key from journal where event = 'cancelled')"
    return dict(_rows(home, query, event))


def _rows(home: Path, query: str, *values: str) -> list[Any]:
    rows = sqlite3.connect(f"file:{home / 'ledger.db'}?mode=ro", uri=True)
    try:
        return rows.execute(query, values).fetchall()
    finally:
        rows.close()


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return (0.0, 0.0)
    parts = quantiles(seconds, n=100, method="inclusive")
    return (round(parts[49], 3), round(parts[98], 3))
