"""Writes the colour tables of all pictures anew, the service's and the page's: `python -m docs.make_colours`.

Each is 256 colours of 3 bytes, which the service and a browser alike can index: no picture has colours of its own.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import UInt8

from service.pictures import colours

SERVICE = Path(__file__).resolve().parent.parent / "service"
HOME = SERVICE / "pictures"
PAGE = SERVICE / "playground" / "tables.js"
CENTRE = 128
"""The entry of `signed` that is 0."""


def viridis() -> UInt8[np.ndarray, "256 3"]:
    """For numbers that grow in one direction."""
    return _bytes(matplotlib.colormaps["viridis"](np.arange(256)))


def cividis() -> UInt8[np.ndarray, "256 3"]:
    """The same, for every kind of colour vision alike."""
    return _bytes(matplotlib.colormaps["cividis"](np.arange(256)))


def grey() -> UInt8[np.ndarray, "256 3"]:
    """The same for print: white is nothing, black the most."""
    return _bytes(matplotlib.colormaps["gray_r"](np.arange(256)))


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


def module() -> str:
    """The page's module: the tables in base64, and the colours of cells that hold no number."""
    lines = ["// Written by docs/make_colours.py: 256 colours of 3 bytes each, in base64.", "export const TABLES = {"]
    tables = {make.__name__: base64.b64encode(make().tobytes()).decode() for make in (viridis, cividis, grey, signed)}
    marks = {name: json.dumps(getattr(colours, name)) for name in ("MASKED", "HATCH", "NAN", "CROSS")}
    lines += [f'  {name}: "{text}",' for name, text in tables.items()]
    lines += ["};", f"export const CENTRE = {CENTRE};"]
    lines += [f"export const {name} = {colour};" for name, colour in marks.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    for make in (viridis, signed):
        (HOME / f"{make.__name__}.rgb").write_bytes(make().tobytes())
    PAGE.write_text(module())


if __name__ == "__main__":
    main()
