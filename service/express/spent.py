"""Where the time of requests went that shared a run, as their answers tell it."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.records import Timings


@dataclass(slots=True)
class Spent:
    """Seconds. What all have in common is written once; the lists have a number for each of them."""

    batch_assembly: float
    compute: float
    jobs: int
    decode: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    serialize: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """Bytes of their answers."""
    _in_body: str = ""
    _in_header: str = ""

    def __post_init__(self) -> None:
        assembly, compute = 1e3 * self.batch_assembly, 1e3 * self.compute
        self._in_body = (
            f',"batch_assembly_ms":{assembly:.3f},"compute_ms":{compute:.3f},"postprocess_ms":0.000,'
            f'"batch_jobs":{self.jobs}}}'
        )
        self._in_header = f", batch_assembly;dur={assembly:.3f}, compute;dur={compute:.3f}, postprocess;dur=0.000, "

    @property
    def stages(self) -> tuple[list[float] | float, ...]:
        """In the order of `Timings.STAGES`: a number for each of them, or one that is the same for all."""
        return self.decode, self.queue, self.batch_assembly, self.compute, 0.0, self.serialize

    def timings(self, decode: float, queue: float) -> Timings:
        return Timings(decode, queue, self.batch_assembly, self.compute, batch_jobs=self.jobs)

    def text(self, decode: float, queue: float) -> str:
        """As `timings_text` of the same."""
        return f'{{"decode_ms":{1e3 * decode:.3f},"queue_ms":{1e3 * queue:.3f}{self._in_body}'

    def header(self, decode: float, queue: float, serialize: float, total: float) -> str:
        """As `Exchange.server_timing` of the same."""
        return (
            f"decode;dur={1e3 * decode:.3f}, queue;dur={1e3 * queue:.3f}{self._in_header}"
            f"serialize;dur={1e3 * serialize:.3f}, total;dur={1e3 * total:.3f}"
        )

    def ended(self, decode: float, queue: float, serialize: float, total: float, sent: int) -> None:
        """One of them has been answered."""
        self.decode.append(decode)
        self.queue.append(queue)
        self.serialize.append(serialize)
        self.total.append(total)
        self.sent.append(sent)
