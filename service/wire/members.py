"""The members of a request body: their names, and which go together. The same in every format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.errors import InvalidInput, UnknownName
from service.records import AttentionInput
from service.wire import arrays, media
from service.wire.arrays import Array
from service.wire.pointer import pointer

EMBEDDINGS = ("embeddings", "queries", "keys")
POSITIONS = ("positions", "query_positions", "key_positions")
NAMES = (*EMBEDDINGS, *POSITIONS, "mask", "tokens", "text", "parameters")
IN_QUERY = (
    "encoding",
    "compare",
    "model",
    "heads",
    "key_heads",
    "causal",
    "return",
    "metrics",
    "rows",
    "head",
    "top_k",
    "dtype",
    "arrays",
    "zoom",
)
"""What the query string says and a body does not."""
MAX_PARAMETERS = 64


@dataclass(slots=True)
class Members:
    """A body taken apart, before its arrays are checked. `tokens` and `text` were checked by the format."""

    arrays: dict[str, Array] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)
    parameters_at: str = ""
    """The pointer that parameters lie under: "" in formats of named arrays."""
    tokens: Sequence[str] | None = None
    text: str | None = None


def check_names(names: Iterable[str], *, dotted: bool, values: Mapping[str, Any] | None = None) -> None:
    """Raises UnknownName for a name that is no member. `dotted`: parameters are members too, as `ENCODING.NAME`.
    `values` are shown where they belong elsewhere."""
    for name in names:
        if name in IN_QUERY or (not dotted and "." in name):
            place = '; an array of it goes into "parameters"' if "." in name else ""
            form = media.in_query(name, (values or {}).get(name))
            raise InvalidInput(
                f"{name[:80]!r} is said in the query string, not in the body: POST {form}{place}", pointer=pointer(name)
            )
        if name not in NAMES and not (dotted and "." in name):
            allowed = [known for known in NAMES if not dotted or known not in ("parameters", "text")]
            if dotted:
                allowed.append("ENCODING.PARAMETER")
            raise UnknownName("member", name, allowed, pointer=pointer(name))


def assemble(members: Members) -> AttentionInput:
    """Checks every array and that the members fit together. Raises InvalidInput."""
    _check_sources(members)
    _check_parameters(members.parameters, members.parameters_at)
    result = AttentionInput(tokens=members.tokens, text=members.text, parameters_at=members.parameters_at)
    for name, array in members.arrays.items():
        at = pointer(name)
        if name in EMBEDDINGS:
            setattr(result, name, arrays.embeddings(array, at))
        elif name in POSITIONS:
            setattr(result, name, arrays.positions(array, at))
        else:
            result.mask = arrays.mask(array, at)
    home = members.parameters_at
    result.parameters = {
        name: arrays.parameter(array, home + pointer(name)) for name, array in members.parameters.items()
    }
    return result


def strings(array: np.ndarray[Any, Any], at: str) -> list[str]:
    """The tokens of an array of text. Raises InvalidInput."""
    if array.dtype.kind != "U" or array.ndim != 1:
        raise InvalidInput(
            f"{at} has the type {array.dtype} and shape {list(array.shape)}; tokens are a 1-D array of text", pointer=at
        )
    return [str(token) for token in array]


def _check_sources(members: Members) -> None:
    given = [name for name in EMBEDDINGS if name in members.arrays] + (["text"] if members.text is not None else [])
    if given in (["embeddings"], ["queries", "keys"], ["text"]):
        return
    text = ', or "text"' if members.parameters_at else ""  # which formats of named arrays cannot carry
    if not given:
        raise InvalidInput(
            f'there is nothing to score: send "embeddings" ([tokens, width]), or "queries" and "keys"{text}',
            pointer="",
        )
    if given in (["queries"], ["keys"]):
        other = "keys" if given == ["queries"] else "queries"
        raise InvalidInput(
            f'"{given[0]}" came without "{other}": send both, or "embeddings" alone', pointer=pointer(given[0])
        )
    raise InvalidInput(
        f'{" and ".join(given)} came together: send "embeddings", or "queries" and "keys"{text}',
        pointer=pointer(given[-1]),
    )


def _check_parameters(given: Mapping[str, Array], at: str) -> None:
    if len(given) > MAX_PARAMETERS:
        raise InvalidInput(f"{len(given)} parameters came, at most {MAX_PARAMETERS} are taken", pointer=at or None)
    for name in given:
        encoding, dot, parameter = name.partition(".")
        if not (encoding and dot and parameter):
            raise InvalidInput(
                f"the parameter {name[:80]!r} must be named ENCODING.NAME, such as t5.bias", pointer=at + pointer(name)
            )
