"""`python -m models`: train, import and export what is served."""

from __future__ import annotations

from importlib.util import find_spec

if __name__ == "__main__":
    if find_spec("torch") is not None:
        from models.command_line import app
    else:
        from models.without_torch import app
    app()
