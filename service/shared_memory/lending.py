"""What one request has of the regions: its inputs as they lie there, and room for its outputs."""

from __future__ import annotations

from collections.abc import Callable

from service.errors import InvalidInput
from service.shared_memory.mapping import Mapping
from service.shared_memory.regions import Regions
from service.wire.open_inference_places import Place

Extent = tuple[str, tuple[int, int], int, int]
"""What lies there, the object, where in it that begins and where it ends."""


class Lending:
    """`check` is called before anything is lent."""

    def __init__(self, regions: Regions, check: Callable[[], None] = lambda: None) -> None:
        self._regions = regions
        self._check = check
        self._read: list[Extent] = []
        self._written: list[Extent] = []
        self.mappings: list[Mapping] = []

    def read(self, place: Place, alignment: int, at: str) -> memoryview:
        """The bytes there, which may change at any time. Raises InvalidInput, UnknownName, and what `check` raises."""
        return self._lend(place, place.size, alignment, at, self._written, self._read)

    def write(self, place: Place, size: int, alignment: int, at: str) -> memoryview:
        """So many bytes there, of which this request has no others. Raises the same errors."""
        if size > place.size:
            raise InvalidInput(
                f"{at} takes {size} bytes, but its shared_memory_byte_size in the region {place.region[:80]!r} is "
                f"{place.size}",
                pointer=at,
            )
        return self._lend(place, size, alignment, at, [*self._read, *self._written], self._written)

    def finish(self) -> None:
        """After the last use. Raises InvalidInput where what was lent had gone meanwhile."""
        for mapping in self.mappings:
            mapping.check()

    def _lend(
        self, place: Place, size: int, alignment: int, at: str, others: list[Extent], mine: list[Extent]
    ) -> memoryview:
        self._check()
        mapping = self._regions.mapping(place.region, at)
        begins = mapping.region.offset + place.offset
        if begins % alignment:
            raise InvalidInput(
                f"{at} begins at byte {begins} of the object (region at {mapping.region.offset}, shared_memory_offset "
                f"{place.offset}), but its numbers have {alignment} bytes and must begin at a multiple of that",
                pointer=at,
            )
        view = mapping.view(place.offset, size, at)
        extent = (at, *mapping.extent(place.offset, size))
        for other in others:
            if other[1] == extent[1] and other[2] < extent[3] and extent[2] < other[3]:
                raise InvalidInput(
                    f"{at} would be written to bytes {extent[2]} to {extent[3]} of the object, where {other[0]} has "
                    f"{other[2]} to {other[3]}: they overlap",
                    pointer=at,
                )
        mine.append(extent)
        if mapping not in self.mappings:
            self.mappings.append(mapping)
        return view
