"""What a request wants to know of its matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.comparisons import metrics as of_pairs
from service.errors import InvalidInput, UnknownName
from service.summaries import metrics as of_rows
from service.summaries.profile import PROFILE

DEFAULT, ALL = "default", "all"
SUMMARY, COMPARISON = "summary", "comparison"
NAMES = (DEFAULT, ALL, *of_rows.NAMES, *of_pairs.NAMES)
POINTER = "query:metrics"
RETURNED = {
    SUMMARY: "name summary in return",
    COMPARISON: "name another encoding with compare, and comparison in return where that is given",
}
"""What is to be done for one to be in an answer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The metrics of each matrix and of each pair; None where no summary, or no comparison, is returned."""

    summary: tuple[str, ...] | None
    comparison: tuple[str, ...] | None

    @classmethod
    def of(cls, returns: Iterable[str], metrics: Sequence[str], missing: Mapping[str, str] = RETURNED) -> Wanted | None:
        """`metrics` are names of either kind; of a kind of which none is named the default ones are meant, and so they
        are by `default`, and all by `all`. None where nothing is wanted. Raises UnknownName, and InvalidInput for names
        of a kind that is not returned: `missing` says what to do about that.
        """
        returned = {SUMMARY, COMPARISON} & set(returns)
        for name in metrics:
            if name not in NAMES:
                raise UnknownName("metric", name, NAMES, pointer=POINTER)
        if metrics and not returned:
            raise InvalidInput(
                f"metrics={','.join(metrics)[:200]} are those of the summary and the comparison, neither of which this "
                f"request returns: {missing[SUMMARY]}, or leave metrics out",
                pointer=POINTER,
            )
        for kind, known in ((SUMMARY, of_rows.NAMES), (COMPARISON, of_pairs.NAMES)):
            if kind not in returned and (idle := [name for name in metrics if name in known]):
                verb, pronoun = ("is", "it") if len(idle) == 1 else ("are", "them")
                raise InvalidInput(
                    f"of metrics, {', '.join(idle)} {verb} of the {kind}, which this request does not return: "
                    f"{missing[kind]}, or leave {pronoun} out",
                    pointer=POINTER,
                )
        summary = _chosen(metrics, of_rows.NAMES, of_rows.DEFAULT) if SUMMARY in returned else None
        comparison = _chosen(metrics, of_pairs.NAMES, of_pairs.DEFAULT) if COMPARISON in returned else None
        return None if summary is None and comparison is None else cls(summary, comparison)

    @property
    def profiles(self) -> bool:
        """Whether distance profiles are needed, be it for a comparison."""
        return PROFILE in (self.summary or ()) or of_pairs.PROFILE_TV in (self.comparison or ())

    @property
    def tokens(self) -> bool:
        """Whether it matters which tokens are equal."""
        return any(name in of_rows.TOKENS for name in self.summary or ())

    @property
    def of_rows(self) -> tuple[str, ...]:
        """The metrics that each matrix is summarised for."""
        named = self.summary or ()
        return named if not self.profiles or PROFILE in named else (*named, PROFILE)


def _chosen(metrics: Sequence[str], known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in metrics:
        if name == ALL:
            found |= dict.fromkeys(known)
        elif name == DEFAULT:
            found |= dict.fromkeys(default)
        elif name in known:
            found[name] = None
    return tuple(found) or tuple(default)
