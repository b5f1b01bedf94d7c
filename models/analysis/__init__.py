"""Summaries of one attention matrix and comparisons of two, as graphs that run where the model runs.

The number of rows comes back, never a matrix. Everything is row by row, or a sum over the rows given, so a large matrix
may be fed in blocks of rows. What needs all rows (means, percentiles, ratios) is left to whoever serves.
"""
