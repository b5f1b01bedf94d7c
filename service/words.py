"""Numbers in messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 token`, `3 tokens`, `2 queries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("ry") else f"{count:,} {noun}s"


def figure(number: float) -> str:
    """As short as it can be and still be that number: `1e+15`, `500,000`, `0.25`."""
    if number == int(number) and abs(number) < 1e9:
        return f"{int(number):,}"
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
