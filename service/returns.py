"""What a request returns where it does not say, or whether it may say so."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidInput, PayloadTooLarge, UnknownName
from service.records import DEFAULT_RETURN, MATRICES, RETURNABLE

FEW_HEADS = 1024
"""Of more heads than this, in all results together, there is a summary only where it is named."""
SUMMARIES = ("summary", "comparison")


def returned(named: Sequence[str] | None, *, compares: bool, heads: int, most: int) -> tuple[str, ...]:
    """What to return, each once, in one order. `heads` are those of all results, of all of a batch; of at most `most`
    there are summaries. Raises UnknownName, InvalidInput, PayloadTooLarge.
    """
    if named is None:
        default = (*DEFAULT_RETURN, *(("comparison",) if compares else ()))
        return default if heads <= FEW_HEADS else tuple(name for name in default if name in MATRICES)
    for name in named:
        if name not in RETURNABLE:
            raise UnknownName("value of return", name, RETURNABLE, pointer="query:return")
    if not named:
        raise InvalidInput(f"return names nothing; it may hold {', '.join(RETURNABLE)}", pointer="query:return")
    if "comparison" in named and not compares:
        raise InvalidInput(
            "return=comparison needs something to compare with: name it with compare, as in compare=alibi",
            pointer="query:return",
        )
    if heads > most and any(name in named for name in SUMMARIES):
        raise PayloadTooLarge(
            f"there would be {heads:,} heads to summarise (heads x batch x encodings), at most {most:,} are: ask for "
            "some of the heads (head=0), or for less at once",
            pointer="query:return",
            limit=most,
        )
    return tuple(name for name in RETURNABLE if name in named)
