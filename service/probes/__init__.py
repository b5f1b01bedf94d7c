"""Questions about an encoding that take more runs than one: the input moved, shuffled, lengthened or made all alike.

`records` what is asked and answered | `probes` all probes of a request | `runs` scoring, in blocks of rows |
`inputs` the input, changed | `distances` pairs by distance | `curve` position alone | `references` what papers say of
it | `share` how much of the scores it is | `gaps` what moving and shuffling change | `sweep` other lengths
"""
