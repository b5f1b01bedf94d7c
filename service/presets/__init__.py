"""Inputs to begin with: the same name and arguments give the same bytes, on every machine and under every NumPy.

`preset` what one is | `patterns` how they are made | `sentence` tokens of a real model | `listing` all of them
"""
