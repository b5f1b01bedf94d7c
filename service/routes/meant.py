"""What a query parameter that nobody knows may have been meant as."""

from __future__ import annotations

from difflib import get_close_matches

from service.catalogue import Catalogue
from service.errors import ServiceError, UnknownName
from service.instance import Instance
from service.routes import query


def dotted(catalogue: Catalogue, raw: bytes, error: UnknownName) -> UnknownName:
    """The same, or better: `theta` is meant as the `rope.theta` of an encoding that was asked for."""
    if error.kind != query.KIND:
        return error
    given = dict(query.pairs(raw))
    named = [given.get("encoding"), *given.get("compare", "").split(",")]
    meant: dict[str, None] = {}
    for name in named:
        try:
            instance = Instance.of(catalogue.model(given.get("model")), name)
        except ServiceError:
            continue
        parameters = [parameter.name for parameter in instance.encoding.parameters]
        for nearest in get_close_matches(error.name.lower(), parameters, n=1, cutoff=0.75):
            meant[f"{instance.name}.{nearest}"] = None
    if not meant:
        return error
    return UnknownName(query.KIND, error.name, error.allowed, pointer=error.pointer, nearest=meant)
