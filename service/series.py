"""Series of numbers in columns of a board, by their labels: as they are counted, and as Prometheus reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from jaxtyping import Float64
from numpy import ndarray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from service.board import Board

Totals = Float64[ndarray, " columns"]
Labels = tuple[str, ...]


class Series(ABC):
    """One family of series. Each has `width` columns of its own, all 0 from when it is created."""

    def __init__(self, board: Board, name: str, meaning: str, labels: Sequence[str] = (), *, width: int = 1) -> None:
        self.board = board
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self.width = width
        self.columns: dict[Labels, int] = {}
        """The first column of each."""
        if not labels:
            self.create()

    def create(self, *labels: str) -> int:
        """Makes the series of these labels exist; its first column."""
        first = self.columns.get(labels)
        if first is None:
            assert len(labels) == len(self.labels), labels
            first = self.columns[labels] = self.board.take(self.width)
        return first

    @abstractmethod
    def family(self, totals: Totals) -> Metric:
        """All of them, as Prometheus reads them."""


class Counter(Series):
    """How often something happened, or how much of it, in all processes that there ever were."""

    def add(self, column: int, amount: float = 1.0) -> None:
        self.board.row[column] += amount

    def family(self, totals: Totals) -> Metric:
        family = CounterMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, column in self.columns.items():
            family.add_metric(labels, float(totals[column]))
        return family


class Gauge(Series):
    """What is so now: the sum over all processes, or the most of any."""

    def __init__(
        self, board: Board, name: str, meaning: str, labels: Sequence[str] = (), *, most: bool = False
    ) -> None:
        super().__init__(board, name, meaning, labels)
        self.most = most

    def set(self, column: int, value: float) -> None:
        self.board.row[column] = value

    def family(self, totals: Totals) -> Metric:
        family = GaugeMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, column in self.columns.items():
            value = self.board.column(column).max() if self.most else totals[column]
            family.add_metric(labels, float(value))
        return family


class Histogram(Series):
    """How many were at most each limit, and the sum of all. The columns of a series: one for each limit, that of what
    is beyond all of them, and the sum."""

    def __init__(
        self, board: Board, name: str, meaning: str, limits: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self.limits = limits
        self._names = (*map(floatToGoString, limits), "+Inf")
        super().__init__(board, name, meaning, labels, width=len(limits) + 2)

    def observe(self, first: int, value: float, times: int = 1) -> None:
        """`first` is the first column of a series."""
        row = self.board.row
        row[first + bisect_left(self.limits, value)] += times
        row[first + self.width - 1] += times * value

    def family(self, totals: Totals) -> Metric:
        family = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, first in self.columns.items():
            counts = totals[first : first + self.width - 1].cumsum().tolist()
            family.add_metric(
                labels, list(zip(self._names, counts, strict=True)), float(totals[first + self.width - 1])
            )
        return family


class Snapshot:
    """Families of one moment. It may be read, once, by another thread: nothing that is counted meanwhile is seen."""

    def __init__(self, families: Iterable[Callable[[], Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """What a registry is asked."""
        return (family() for family in self._families)
