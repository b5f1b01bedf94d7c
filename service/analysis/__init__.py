"""Summaries and comparisons of what a request computes: planned with it, run by the engine, and finished.

The numbers of a matrix's rows are further outputs of the run that computes it, so that it is neither kept nor copied
for their sake; those of two matrices are a job of their own, which takes the outputs of two runs.
"""
