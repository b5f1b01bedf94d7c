"""What position alone contributes, and how that and attention are drawn.

`records` what is asked and answered | `positions` one encoding's views, computed | `figures` answers as pictures
"""
