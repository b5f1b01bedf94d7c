"""How far apart two attention matrices are: the analysis graph's numbers for each row, finished into a few for each
head.

Both are over the same queries, keys and mask. A row is counted where it is counted in both (see `service.summaries`);
forced rows, which two matrices cannot disagree about, stay out of every number.
"""
