"""What one attention matrix is like: the analysis graph's numbers for each row, finished into a few for each head.

A row is *counted* where it is no padding, sees a key, has finite visible weights and sums to 1 within a tolerance;
other rows are *invalid*. A counted row that sees one key only is *forced*: it stays out of whatever it cannot help
(normalised entropy, distances, sinks, comparisons). A head's value is the plain mean over rows, each query weighing
the same.

With learned sinks rows sum to less than 1, the rest going to no key. Then a row is counted where its sum is at least
the tolerance, all statistics are of the row divided by its sum, and `keyless_mass` says how much went to no key.
"""
