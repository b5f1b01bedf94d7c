"""What several replicas have for Prometheus, as one exposition: each series with the label `replica`."""

from __future__ import annotations

import re
from collections.abc import Iterable

LABELLED = re.compile(r"^([A-Za-z_:][\w:]*)\{", re.MULTILINE)
BARE = re.compile(r"^([A-Za-z_:][\w:]*) ", re.MULTILINE)
HEAD = "# HELP "
END = "# EOF\n"
"""Of OpenMetrics."""


def labelled(text: str, replica: str) -> str:
    """The same exposition with the label on every series. The name of a replica needs no escapes."""
    text = LABELLED.sub(rf'\1{{replica="{replica}",', text)
    return BARE.sub(rf'\1{{replica="{replica}"}} ', text)


def merged(texts: Iterable[str]) -> str:
    """One exposition of all: the series of a family stand together, as the format asks."""
    families: dict[str, list[str]] = {}
    end = ""
    for text in texts:
        if text.endswith(END):
            text, end = text.removesuffix(END), END
        for family in text.split(HEAD)[1:]:
            name = family.split(" ", 1)[0]
            if name in families:
                family = _series(family)
            else:
                families[name] = [HEAD]
            families[name].append(family)
    return "".join(part for parts in families.values() for part in parts) + end


def _series(family: str) -> str:
    """Without its head."""
    return "".join(line for line in family.splitlines(keepends=True)[1:] if not line.startswith("#"))
