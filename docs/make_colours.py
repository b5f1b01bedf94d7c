"""Writes the colour tables of the pictures anew: `python -m docs.make_colours`.

Each is 256 colours of 3 bytes, which the service and a browser alike can index: no picture has colours of its own.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import UInt8

HOME = Path(__file__).resolve().parent.parent / "service" / "pictures"
CENTRE = 128
"""The entry of `signed` that is 0."""


def viridis() -> UInt8[np.ndarray, "256 3"]:
    """For numbers that grow in one direction."""
    return _bytes(matplotlib.colormaps["viridis"](np.arange(256)))


def signed() -> UInt8[np.ndarray, "256 3"]:
    """For numbers around 0: blue below, white at entry 128, orange above, each getting darker over 127 entries.

    Entry 0 repeats entry 1, so that both sides have as many colours.
    """
    steps = np.linspace(0, 1, CENTRE)
    white = np.ones((1, 4))
    below = matplotlib.colormaps["Blues"](steps[1:])[::-1]
    above = matplotlib.colormaps["Oranges"](steps[1:])
    return _bytes(np.concatenate([below[:1], below, white, above]))


def _bytes(colours: np.ndarray) -> UInt8[np.ndarray, "256 3"]:
    table: UInt8[np.ndarray, "256 3"] = np.rint(colours[:, :3] * 255).astype(np.uint8)
    return table


def main() -> None:
    for make in (viridis, signed):
        (HOME / f"{make.__name__}.rgb").write_bytes(make().tobytes())


if __name__ == "__main__":
    main()
