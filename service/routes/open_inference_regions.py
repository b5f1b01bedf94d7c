"""`/v2/systemsharedmemory`: which regions of shared memory there are."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Any

import orjson
from starlette.types import Receive, Scope

from service.errors import Forbidden, InvalidInput, MalformedBody, UnknownName, Unsupported
from service.routes import upload
from service.settings import Settings
from service.shared_memory.mapping import Region
from service.shared_memory.regions import Regions
from service.wire import media
from service.wire.open_inference_places import count

EXTENSION = "system_shared_memory"
_PATH = re.compile(r"/v2/systemsharedmemory(?:/region/(.+))?/(status|register|unregister)")
STATUS, UNREGISTER = "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/unregister"
ONE = "/v2/systemsharedmemory/region/{region}"
ONE_STATUS, ONE_REGISTER, ONE_UNREGISTER = (f"{ONE}/{verb}" for verb in ("status", "register", "unregister"))
METHODS: dict[str, tuple[str, ...]] = {
    STATUS: ("GET", "HEAD"),
    UNREGISTER: ("POST",),
    ONE_STATUS: ("GET", "HEAD"),
    ONE_REGISTER: ("POST",),
    ONE_UNREGISTER: ("POST",),
}
MEMBERS = ("key", "offset", "byte_size")


def named(path: str) -> tuple[str, str] | None:
    """The template of a path, and the region that it names; None where there is nothing."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    region, verb = found[1], found[2]
    if region is not None:
        return f"{ONE}/{verb}", region
    template = f"/v2/systemsharedmemory/{verb}"
    return (template, "") if template in METHODS else None


@lru_cache(maxsize=256)
def is_local(host: str) -> bool:
    """Whether an address is one of the loopback interface."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def check_local(scope: Scope) -> None:
    """Raises Forbidden for a client that is not on this machine: it has no memory to share, and must not reach that of
    others."""
    host = (scope.get("client") or ("",))[0]
    if not is_local(host):
        raise Forbidden(
            f"shared memory is for clients on the same machine, over the loopback interface; this request came from "
            f"{host or 'nowhere'}"
        )


class SharedMemory:
    """Answers. `regions` is None where the extension is off."""

    def __init__(self, regions: Regions | None, settings: Settings) -> None:
        self.regions = regions
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, template: str, region: str) -> Any:
        """The document to answer with; None is an empty body."""
        regions = self.regions
        if regions is None:
            raise Unsupported(
                "the extension of systemsharedmemory is not offered by this service; ATTENTION_SHARED_MEMORY=true "
                "switches it on"
            )
        check_local(scope)
        match template:
            case "/v2/systemsharedmemory/status":
                return [_described(one) for one in regions.all()]
            case "/v2/systemsharedmemory/unregister":
                return regions.clear()
        if template == ONE_STATUS:
            return [_described(regions.get(region))]
        if template == ONE_UNREGISTER:
            return regions.unregister(region)
        body = await upload.read(scope, receive, self.settings.max_body_bytes, self.settings.body_seconds)
        return regions.register(region, *_asked(body))


def _described(region: Region) -> dict[str, Any]:
    return {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}


def _asked(body: bytes | bytearray) -> tuple[str, int, int]:
    """Key, offset and size."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON{media.not_json(body, error)}") from None
    if not isinstance(document, dict):
        raise MalformedBody(f"the body must be an object with {', '.join(MEMBERS)}")
    for name in document:
        if name not in MEMBERS:
            raise UnknownName("member", name, MEMBERS, pointer=f"/{name[:80]}")
    key = document.get("key")
    if not isinstance(key, str):
        raise MalformedBody("key must be the name of a shared memory object, such as /embeddings", pointer="/key")
    size = count(document, "byte_size", "the body")
    if size < 1:
        raise InvalidInput("byte_size must be the region's size in bytes, from 1 on", pointer="/byte_size")
    return key, count(document, "offset", "the body"), size
