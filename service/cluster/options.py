"""How many replicas, and what each of them has."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.settings import Settings

NAME = "attention"
"""Of the application and of its deployment in Ray Serve."""
OURS = frozenset({"host", "port", "keep_alive_seconds", "processes", "shared_memory"})
"""Settings that replicas are not told: one listens nowhere, it is one process, and its clients may be anywhere."""


class Options(BaseModel):
    """The arguments of the application in Ray Serve's configuration, `args`, and of `python -m service ray`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(1, ge=1, le=1024, description="replicas that there are at least")
    max_replicas: int | None = Field(
        None, ge=1, le=1024, description="replicas that there are at most; without it as many as at least"
    )
    cpus: float = Field(
        1.0, gt=0, le=1024, description="CPUs of each replica: it computes on as many threads, one if that is a part"
    )
    gpus: float = Field(
        0.0, ge=0, le=1, description="GPU of each replica, 0.5 for two on one; with any it computes there or not at all"
    )
    target_ongoing: float = Field(
        8.0, gt=0, description="requests under way for each replica above which there are to be more replicas"
    )
    max_ongoing: int = Field(
        64, ge=1, le=4096, description="requests that a replica has at a time: those that can share a run"
    )
    max_queued: int = Field(
        256, ge=0, description="requests that wait in each proxy for a replica; above it 503 with Retry-After"
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the replicas, named as in the README without ATTENTION_"
    )

    @property
    def most(self) -> int:
        return self.max_replicas or self.min_replicas

    @model_validator(mode="after")
    def _fits(self) -> Options:
        if self.most < self.min_replicas:
            raise ValueError(f"max_replicas is {self.max_replicas}, less than min_replicas, {self.min_replicas}")
        if wrong := sorted(OURS & self.settings.keys()):
            raise ValueError(
                f"{', '.join(wrong)} cannot be set for replicas: Ray Serve's proxies listen, a replica is one process, "
                "and its clients share no memory with it"
            )
        Settings(**self.settings)
        return self
