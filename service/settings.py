"""What can be set from outside: `ATTENTION_*` variables. `python -m service --help` is written from here."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX = "ATTENTION_"
EXPORTED = Path(__file__).resolve().parent.parent / "exported"

_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Size = Annotated[ByteSize, Field(gt=0)]


def _bytes(count: int) -> Any:
    return ByteSize(count)


class SettingsError(Exception):
    """One or more variables are unknown or have a value that is not allowed; the message has a line for each."""


class Settings(BaseSettings):
    """Each field is one variable; its description says what it does. Sizes take units: `64MiB`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 is every interface")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on; 0 takes a free one and prints it")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto is cuda where a GPU works, else cpu; cuda that does not work is an error, never cpu"
    )
    cuda_graphs: bool = Field(False, description="capture runs that recur on a GPU as CUDA graphs, and replay them")
    processes: int = Field(
        0, ge=0, le=256, description="processes behind the port; 0 is one for each usable core, on a GPU one"
    )
    workers: int = Field(
        0,
        ge=0,
        le=256,
        description="threads that compute what is not small, in each process; 0 is one, in a single process one for "
        "each usable core",
    )
    models: Annotated[tuple[Path, ...], NoDecode] = Field(
        (EXPORTED,), min_length=1, description=f"folders of exported models, separated by {os.pathsep!r}"
    )
    shared_memory: bool = Field(
        False,
        description="let clients on the same machine have tensors of /v2 in shared memory: docs/open-inference.md",
    )
    max_body_bytes: Size = Field(_bytes(64 << 20), description="largest request body, also once unpacked")
    body_seconds: Seconds = Field(30.0, description="longest time a request body may take to arrive")
    header_seconds: Seconds = Field(
        20.0, description="longest time from a connection, or the first byte of its next request, to all its headers"
    )
    json_cells: int = Field(
        4 << 20,
        ge=1,
        description="most numbers in a JSON answer as lists; above it they must be asked for in base64 or binary",
    )
    request_cells: int = Field(
        1 << 27, ge=1, description="most numbers one request may compute: batch x heads x queries x keys, all outputs"
    )
    queue_cells: int = Field(
        1 << 28,
        ge=1,
        description="most numbers that may wait to be computed in one process; above it 429; at least "
        f"{PREFIX}REQUEST_CELLS",
    )
    queue_jobs: int = Field(
        1024,
        ge=1,
        description="most jobs (one encoding of one request) that may wait to be computed in one process; above it 429",
    )
    deadline_seconds: Seconds = Field(30.0, description="longest time from a request's arrival to its answer, else 504")
    watch_seconds: float = Field(
        2.0,
        ge=0,
        le=3600,
        description="how often the folders are looked at for new and changed models; 0: never",
    )
    drain_seconds: Seconds = Field(30.0, description="longest wait at SIGTERM for requests under way")
    keep_alive_seconds: int = Field(75, ge=1, le=3600, description="an idle connection is closed after this long")
    stall_seconds: Seconds = Field(
        60.0, description="an answer of which a client takes less than a thirtieth in so long is cut off"
    )
    connections: int = Field(
        4096,
        ge=1,
        le=1_000_000,
        description="most connections of one process; above it 503, but on health and metrics",
    )
    table_cache_bytes: Size = Field(
        _bytes(128 << 20), description="memory for cached position tables, in all processes together"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="other origins whose pages may ask and read, as https://host:port, separated by commas",
    )
    api_keys_file: Path | None = Field(
        None,
        description="file of API keys, one a line as it is or as `name:SHA-256`; where it is given requests need one",
    )
    api_keys_for_metrics: bool = Field(False, description="whether /metrics asks for an API key as well")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe message shown")
    log_format: Literal["text", "json"] = Field("text", description="text for people, or json: one object a line")
    access_log: bool = Field(
        False, description="a line in the log for each request, with its id and where its time went"
    )

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        if self.request_cells > self.queue_cells:
            raise ValueError(
                f"{PREFIX}QUEUE_CELLS={self.queue_cells}: must be at least {PREFIX}REQUEST_CELLS, which is "
                f"{self.request_cells}, or the largest request would never be admitted"
            )
        return self

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return [Path(part).expanduser() for part in value.split(os.pathsep) if part]
        return value

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _origins(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        origins = tuple(part.strip().removesuffix("/").lower() for part in value.split(",") if part.strip())
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin: a scheme, a host and a port if there is one, https://a.org:8443"
                )
        return origins

    @field_validator("device", "log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value

    @classmethod
    def read(cls) -> Settings:
        """The settings of this process's environment. Raises SettingsError."""
        wrong = [_unknown(name) for name in os.environ if name.upper().startswith(PREFIX) and not _field(name)]
        try:
            settings = cls()
        except ValidationError as error:
            wrong += [_bad_value(one["loc"], one["input"], one["msg"]) for one in error.errors(include_url=False)]
        if wrong:
            raise SettingsError("\n".join(wrong))
        return settings


def variables() -> list[tuple[str, str, str]]:
    """Each variable's name, default and meaning."""
    return [
        (PREFIX + name.upper(), _shown(field.default), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, ByteSize):
        return default.human_readable().replace(".0", "")
    if isinstance(default, tuple) and not default:
        return "none"
    if isinstance(default, tuple):
        return os.pathsep.join(map(_relative, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _relative(path: Path) -> str:
    return f"{path.name}/ beside service/" if path == EXPORTED else str(path)


def _field(variable: str) -> bool:
    return variable.upper().removeprefix(PREFIX).lower() in Settings.model_fields


def _unknown(variable: str) -> str:
    known = [name for name, _, _ in variables()]
    nearest = get_close_matches(variable.upper(), known, n=1, cutoff=0.75)
    hint = f"did you mean {nearest[0]}?" if nearest else "`python -m service --help` lists those there are."
    return f"{variable} is not a setting; {hint}"


def _bad_value(location: tuple[int | str, ...], value: object, message: str) -> str:
    """`location` is the field (or the variable's name in lower case) and, in a list, the place in it; empty where
    several do not fit together."""
    if not location:
        return message.removeprefix("Value error, ")
    name = PREFIX + str(location[0]).upper().removeprefix(PREFIX)
    return f"{name}={os.environ.get(name, value)}: {message[:1].lower()}{message[1:]}"
