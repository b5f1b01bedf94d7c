"""The attention scoring service: hosts exported attention models over HTTP."""

__version__ = "0.1.0"
