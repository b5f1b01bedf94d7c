"""Exported models as a Triton model repository: `python -m models triton-repository` (docs/triton.md)."""
