"""`python -m service encodings`: what is, or would be, served."""

from __future__ import annotations

import json
import sys
from typing import Any

from service.client import AsyncClient
from service.commands import options
from service.commands.asking import FAILED, MISUSE, ask, fail
from service.commands.console import output, show
from service.commands.metric_tables import plain
from service.settings import Settings, SettingsError

EXAMPLES = """
python -m service encodings
python -m service encodings --url http://127.0.0.1:8000
python -m service encodings --json | jq -r '.encodings[] | select(.causal == "required") | .id'
ATTENTION_MODELS=exported:/srv/models python -m service encodings
"""
EPILOG = options.epilog(EXAMPLES)


def encodings(as_json: options.AsJson = False, url: options.Url = None, api_key: options.ApiKey = None) -> None:
    """List the models and encodings that would be served, and what is wrong with those that would not.

    With --url, those that a running service has.
    """
    console = output()
    models, listed = _catalogue() if url is None else ask(url, api_key, _listed, "asking")
    if as_json:
        sys.stdout.write(json.dumps({"models": models, "encodings": listed}) + "\n")
        return
    by_id = {one["id"]: one for one in listed}
    for model in models:
        table = plain(("encoding", "title", "parameters", "terms"), f"model {model['name']}", justify="left")
        for id in model["encodings"]:
            one = by_id[id]
            mark = " (default)" if id == model["default_encoding"] else ""
            table.add_row(id + mark, one["title"], ", ".join(one["parameters"]), ", ".join(one["terms"]))
        show(console, table)


async def _listed(client: AsyncClient) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return await client.models(), await client.encodings()


def _catalogue() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Without computing anything. What is not served is told on standard error; where nothing is, that is a failure."""
    from service.catalogue import Catalogue  # only now: it loads onnx

    try:
        settings = Settings.read()
    except SettingsError as error:
        fail(str(error), MISUSE)
    catalogue = Catalogue.read(settings.models)
    for problem in catalogue.problems:
        sys.stderr.write(f"not served: {problem}\n")
    if not catalogue.models:
        fail(f"no exported models in {', '.join(map(str, settings.models))} (ATTENTION_MODELS)", FAILED)
    return catalogue.describe_models(), catalogue.describe_encodings(None)
