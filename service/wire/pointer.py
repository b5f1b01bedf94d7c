"""JSON pointers (RFC 6901) to a part of a body."""

from __future__ import annotations


def pointer(*parts: str | int) -> str:
    """`pointer("embeddings", 3, 7)` is `/embeddings/3/7`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
