"""Compare column names, and recognize names of event times and arrivals."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_EVENT_WORDS = frozenset({"event", "occurred", "happened", "rowtime", "eventtime"})
_TIME_WORDS = frozenset({"at", "date", "datetime", "epoch", "millis", "ms", "on", "time", "timestamp", "ts", "when"})
_ARRIVAL = """
    append appended arrival arrive arrived consumed enqueued ingest ingested ingestion insert inserted kafka
    landed landing load loaded processed processing receive received receipt read written
"""
_ARRIVAL_WORDS = frozenset(_ARRIVAL.split())
_OTHER = """
    birth deadline deleted due end expires expiry expiration finish finished modified next renewal scheduled
    until updated valid
"""
_OTHER_WORDS = frozenset(_OTHER.split())
_GENERIC_WORDS = frozenset({"id", "key", "no", "number", "code", "uuid"})


def split_words(name: str) -> list[str]:
    """Split a column name into lower-case words.

    >>> split_words("Order.ID"), split_words("shippedAt"), split_words("unit price_2")
    (['order', 'id'], ['shipped', 'at'], ['unit', 'price', '2'])
    """
    return [word.lower() for word in _WORD.findall(name)]


def is_arrival_name(name: str) -> bool:
    """Return True if a name says that the column has times of arrival.

    >>> is_arrival_name("received_at"), is_arrival_name("ordered_at")
    (True, False)
    """
    return bool(_ARRIVAL_WORDS & set(split_words(name)))


def rank_event_time_name(name: str) -> int:
    """Rank a name as that of an event time: 3 for an event, 2 for a time, 1 for neither, 0 for another kind of time.

    >>> [rank_event_time_name(name) for name in ("event_time", "shipped_at", "x", "updated_at")]
    [3, 2, 1, 0]
    """
    words = set(split_words(name))
    if words & (_ARRIVAL_WORDS | _OTHER_WORDS):
        return 0
    return 3 if words & _EVENT_WORDS else 2 if words & _TIME_WORDS else 1


def rank_key_names(left: str, right: str) -> int:
    """Rank two names as those of one key.

    3 for equal words, 2 if one name begins or ends with the other, 1 for a common word, 0 for none.

    >>> rank_key_names("OrderId", "order_id"), rank_key_names("order_id", "id"), rank_key_names("order_id", "ship_id")
    (3, 2, 0)
    """
    first, second = split_words(left), split_words(right)
    if first == second or "".join(first) == "".join(second):
        return 3
    longer, shorter = sorted((first, second), key=len, reverse=True)
    if shorter and shorter in (longer[: len(shorter)], longer[-len(shorter) :]):
        return 2
    return 1 if (set(first) & set(second)) - _GENERIC_WORDS else 0
