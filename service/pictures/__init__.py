"""Pictures as PNG. NumPy and Pillow; nothing here knows of HTTP or of encodings.

`colours` which colour a number has | `ticks` which numbers stand at an axis | `canvas` text, lines and pixels |
`heat_maps` matrices side by side on one scale | `chart` lines over a logarithmic axis
"""
