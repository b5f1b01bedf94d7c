"""The model `tiny`: a transformer block over bytes, trained under every encoding at once over one set of weights.

`corpus` what it reads | `block` the model | `recipe` the numbers of its training | `trainer` the loop | `checkpoint`
its files | `evaluation` and `results` bits per byte | `family` the trained model as a family to export.
"""
