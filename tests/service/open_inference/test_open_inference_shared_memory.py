"""Tensors in shared memory: `tritonclient`, unmodified, against services that run, of one process and of two."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as aio
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from tests.service import counts
from tests.service.open_inference.bodies import DATATYPES, WIDE, X
from tests.service.open_inference.memory import Region, lying, outputs, read, region, wanted
from tests.service.process import Process, serving

Array = np.ndarray[Any, np.dtype[Any]]
PATIENCE = 30.0
ROPE = "identity.rope"


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two processes"])
def service(request: pytest.FixtureRequest) -> Iterator[Process]:
    with serving(processes=request.param, shared_memory="true") as process:
        yield process
        assert not [line for line in process.output if "failed" in line or "Traceback" in line], "".join(process.output)


@pytest.fixture(scope="module")
def client(service: Process) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{service.port}", concurrency=8) as client:
        yield client


def sent(name: str, array: Array) -> Any:
    return triton.InferInput(name, list(array.shape), DATATYPES[array.dtype.name]).set_data_from_numpy(array)


def plain(client: Any, model: str, inputs: dict[str, Array], **parameters: Any) -> dict[str, Array]:
    """What is sent, and comes, over the connection."""
    answer = client.infer(model, [sent(name, array) for name, array in inputs.items()], parameters=parameters)
    return {one["name"]: answer.as_numpy(one["name"]) for one in answer.get_response()["outputs"]}


def shapes(arrays: dict[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


def refused(status: str, call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(InferenceServerException) as raised:
        call(*arguments, **more)
    assert raised.value.status() == status, raised.value.message()
    message: str = raised.value.message()
    return message


def workers(service: Process) -> list[int]:
    """The processes that serve."""
    children = psutil.Process(service.child.pid).children()
    return [child.pid for child in children] or [service.child.pid]


def ask(service: Process, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, str]:
    """Over a connection of its own: the status, the answer, and the name of the process that gave it."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        name = (answer.getheader("x-request-id") or "").rpartition("-")[0]
        return answer.status, json.loads(content) if content else None, name
    finally:
        connection.close()


def body(x: Array, where: Region, size: int, **parameters: Any) -> dict[str, Any]:
    """A request for the scores of what lies at the beginning of a region, to be put behind it."""
    inside = {"shared_memory_region": where.name}
    embeddings = {"name": "embeddings", "shape": list(x.shape), "datatype": "FP32"}
    return {
        "inputs": [embeddings | {"parameters": {**inside, "shared_memory_byte_size": x.nbytes}}],
        "outputs": [
            {
                "name": "scores",
                "parameters": {**inside, "shared_memory_byte_size": size, "shared_memory_offset": x.nbytes},
            }
        ],
        "parameters": parameters,
    }


def test_regions_are_registered_told_of_and_unregistered(client: Any) -> None:
    assert "system_shared_memory" in client.get_server_metadata()["extensions"]
    with region(8192) as first, region(4096) as second:
        client.register_system_shared_memory(first.name, first.key, 8192)
        client.register_system_shared_memory("with/ß and slash", second.key.removeprefix("/"), 96, offset=4000)
        one = {"name": first.name, "key": first.key, "offset": 0, "byte_size": 8192}
        other = {"name": "with/ß and slash", "key": second.key.removeprefix("/"), "offset": 4000, "byte_size": 96}
        assert client.get_system_shared_memory_status() == [one, other]
        assert client.get_system_shared_memory_status(first.name) == [one]
        assert client.get_system_shared_memory_status("with/ß and slash") == [other]
        client.unregister_system_shared_memory(first.name)
        assert client.get_system_shared_memory_status() == [other]
        client.register_system_shared_memory(first.name, second.key, 4096)
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []


def test_every_model_answers_as_it_does_over_the_connection(client: Any) -> None:
    with region(1 << 18, client) as memory:
        for entry in client.get_model_repository_index():
            name = entry["name"]
            x, heads = (X, {"heads": 2}) if name.startswith("identity.") else (WIDE, {})
            expected = plain(client, name, {"embeddings": x}, **heads, causal=True)
            asked = outputs(shapes(expected), memory, 4096)
            for _ in range(3):  # the second time what it comes to is known
                memory.bytes[:] = 255
                answer = client.infer(
                    name, [lying("embeddings", x, memory)], outputs=asked, parameters={**heads, "causal": True}
                )
                assert_same(read(answer, memory), expected)


def test_one_output_lies_there_another_is_sent(client: Any) -> None:
    expected = plain(client, ROPE, {"embeddings": X})
    with region(1 << 16, client) as memory:
        as_json = triton.InferRequestedOutput("scores", binary_data=False)
        as_bytes = triton.InferRequestedOutput("output")
        there = wanted("term.slow", memory, 200)
        answer = client.infer(ROPE, [sent("embeddings", X)], outputs=[as_json, there, as_bytes])
        assert answer.as_numpy("scores").tobytes() == expected["scores"].tobytes()
        assert answer.as_numpy("output").tobytes() == expected["output"].tobytes()
        assert memory.get((2, 1, 5, 5)).tobytes() == expected["term.slow"].tobytes()
        answer = client.infer(ROPE, [lying("embeddings", X, memory)])
        assert answer.as_numpy("weights").tobytes() == expected["weights"].tobytes()


def test_every_input_may_lie_there_and_stands_for_what_it_was(client: Any) -> None:
    inputs = {
        "queries": X[:, :2].copy(),
        "keys": X,
        "query_positions": np.array([3.0, 9.0]),
        "key_positions": np.array([0, 2, 4, 6, 8], np.int32),
        "mask": np.array([[1, 1, 1, 1, 0], [1, 0, 1, 1, 1]], bool),
        "parameter.bias": np.linspace(-2, 2, 64, dtype=np.float32).reshape(32, 2),
    }
    expected = plain(client, "identity.t5", inputs, heads=2)
    with region(1 << 16, client) as memory:
        lie = [lying(name, array, memory, 1024 * i) for i, (name, array) in enumerate(inputs.items())]
        asked = outputs(shapes(expected), memory, 8192)
        for _ in range(2):
            answer = client.infer("identity.t5", lie, outputs=asked, parameters={"heads": 2})
            assert_same(read(answer, memory), expected)
        # What others share is kept by what it was, not by where it lay.
        memory.put(np.array([4.0, 9.0]), 2048)
        moved = {**inputs, "query_positions": np.array([4.0, 9.0])}
        answer = client.infer("identity.t5", lie, outputs=asked, parameters={"heads": 2})
        assert_same(read(answer, memory), plain(client, "identity.t5", moved, heads=2))
        assert_same(plain(client, "identity.t5", inputs, heads=2), expected)


def test_new_numbers_in_the_same_place_are_a_new_question(client: Any) -> None:
    with region(1 << 16, client) as memory:
        for seed in range(5):
            x = np.random.default_rng(seed).standard_normal((6, 8)).astype(np.float32)
            expected = plain(client, ROPE, {"embeddings": x})
            there = outputs(shapes(expected), memory, 512)
            answer = client.infer(ROPE, [lying("embeddings", x, memory)], outputs=there)
            assert_same(read(answer, memory), expected)
        x[3, 4] = np.inf
        message = refused("400", client.infer, ROPE, [lying("embeddings", x, memory)], outputs=there)
        assert "/embeddings/3/4 is inf" in message


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_other_types_of_input_and_half_precision_out(client: Any, dtype: str) -> None:
    x = np.round(4 * X).astype(dtype)
    expected = plain(client, ROPE, {"embeddings": x}, dtype="FP16")
    assert {array.dtype for array in expected.values()} == {np.dtype(np.float16)}
    with region(1 << 16, client) as memory:
        asked = outputs(shapes(expected), memory, 1024, itemsize=2)
        answer = client.infer(ROPE, [lying("embeddings", x, memory)], outputs=asked, parameters={"dtype": "FP16"})
        assert_same(read(answer, memory), expected)


def test_what_is_computed_in_blocks_comes_to_its_place(client: Any) -> None:
    x = np.random.default_rng(1).standard_normal((1500, 16)).astype(np.float32)
    asked = [triton.InferRequestedOutput(name) for name in ("weights", "scores")]
    sent_answer = client.infer(ROPE, [sent("embeddings", x)], outputs=asked, parameters={"heads": 2})
    expected = {name: sent_answer.as_numpy(name) for name in ("weights", "scores")}
    size = sum(array.nbytes for array in expected.values())
    with region(x.nbytes + size, client) as memory:
        there = outputs(shapes(expected), memory, x.nbytes)
        answer = client.infer(ROPE, [lying("embeddings", x, memory)], outputs=there, parameters={"heads": 2})
        assert_same(read(answer, memory), expected)


def test_what_a_worker_computes_comes_to_its_place(client: Any) -> None:
    x = np.random.default_rng(1).standard_normal((300, 64)).astype(np.float32)
    expected = plain(client, ROPE, {"embeddings": x}, heads=8)
    with region(x.nbytes + sum(array.nbytes for array in expected.values()), client) as memory:
        there = outputs(shapes(expected), memory, x.nbytes)
        for _ in range(4):
            answer = client.infer(ROPE, [lying("embeddings", x, memory)], outputs=there, parameters={"heads": 8})
            assert_same(read(answer, memory), expected)


def test_a_region_may_be_a_part_of_an_object(client: Any) -> None:
    expected = plain(client, ROPE, {"embeddings": X})
    with region(40_000) as memory:
        client.register_system_shared_memory(memory.name, memory.key, 20_000, offset=12_340)
        try:
            memory.put(X, 12_340 + 100)
            x = triton.InferInput("embeddings", list(X.shape), "FP32").set_shared_memory(memory.name, X.nbytes, 100)
            client.infer(ROPE, [x], outputs=[wanted("scores", memory, 200, 5000)])
            found = memory.get((2, 1, 5, 5), offset=12_340 + 5000)
            assert found.tobytes() == expected["scores"].tobytes()
        finally:
            client.unregister_system_shared_memory(memory.name)


@settings(max_examples=60)
@given(
    batch=st.integers(0, 3),
    tokens=st.integers(1, 20),
    heads=st.integers(1, 3),
    gaps=st.tuples(*[st.integers(0, 3000)] * 3),
    room=st.integers(0, 500),
)
def test_nothing_is_written_but_the_outputs(
    client: Any, batch: int, tokens: int, heads: int, gaps: tuple[int, int, int], room: int
) -> None:
    shape = (tokens, 8 * heads) if not batch else (batch, tokens, 8 * heads)
    x = np.random.default_rng(tokens).standard_normal(shape).astype(np.float32)
    expected = plain(client, "identity.alibi", {"embeddings": x}, heads=heads)
    size = expected["scores"].nbytes
    begins = gaps[0], gaps[0] + x.nbytes + gaps[1]
    with region(begins[1] + size + gaps[2], client) as memory:
        memory.bytes[:] = 170
        before = memory.bytes.copy()
        given_size = size + min(room, gaps[2])
        arguments = [lying("embeddings", x, memory, begins[0])], [wanted("scores", memory, given_size, begins[1])]
        before[begins[0] : begins[0] + x.nbytes] = x.reshape(-1).view(np.uint8)
        if begins[0] % 4 or begins[1] % 4:
            message = refused(
                "400", client.infer, "identity.alibi", arguments[0], outputs=arguments[1], parameters={"heads": heads}
            )
            assert "multiple" in message
        else:
            client.infer("identity.alibi", arguments[0], outputs=arguments[1], parameters={"heads": heads})
            before[begins[1] : begins[1] + size] = expected["scores"].reshape(-1).view(np.uint8)
        assert (memory.bytes == before).all()


def test_what_does_not_fit_is_refused_with_the_bytes(client: Any) -> None:
    with region(4096, client) as memory, region(4096, client) as other:
        there = lying("embeddings", X, memory)
        cases: list[tuple[Any, list[Any], tuple[str, ...]]] = [
            (there, [wanted("scores", memory, 199, 1024)], ("/outputs/scores takes 200 bytes", "is 199")),
            (there, [wanted("scores", memory, 200, 4000)], ("4200", "has 4096")),
            (there, [wanted("scores", memory, 1 << 60, 1 << 60)], ("has 4096",)),
            (there, [wanted("scores", memory, 200, 1026)], ("byte 1026", "4 bytes", "multiple")),
            (there, [wanted("scores", memory, 200, 160)], ("/outputs/scores", "/embeddings", "overlap")),
            (
                there,
                [wanted("scores", memory, 200, 1024), wanted("weights", memory, 200, 1220)],
                ("/outputs/scores", "/outputs/weights", "overlap"),
            ),
            (lying("embeddings", X, memory, size=16), [], ("is 16", f"takes {X.nbytes} bytes")),
            (lying("embeddings", X, memory, 2), [], ("/embeddings begins at byte 2", "multiple")),
            (
                triton.InferInput("embeddings", list(X.shape), "FP32").set_shared_memory(memory.name, X.nbytes, 4000),
                [],
                (str(4000 + X.nbytes), "has 4096"),
            ),
            (
                triton.InferInput("embeddings", list(X.shape), "FP32").set_shared_memory("regio", X.nbytes),
                [],
                ("unknown shared memory region 'regio'", memory.name, other.name),
            ),
        ]
        for x, asked, expected in cases:
            message = refused("400", client.infer, ROPE, [x], outputs=asked or None)
            for part in expected:
                assert part in message


def test_two_names_of_one_object_overlap_all_the_same(client: Any) -> None:
    with region(4096, client) as memory:
        client.register_system_shared_memory("the same", memory.key, 2048, offset=1024)
        try:
            again = triton.InferRequestedOutput("weights")
            again.set_shared_memory("the same", 200, 100)
            message = refused(
                "400",
                client.infer,
                ROPE,
                [lying("embeddings", X, memory)],
                outputs=[wanted("scores", memory, 200, 1024), again],
            )
            assert "overlap" in message
        finally:
            client.unregister_system_shared_memory("the same")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shared_memory_region": 7}, "name of a registered region"),
        ({"shared_memory_byte_size": -1}, "number of bytes"),
        ({"shared_memory_byte_size": None}, "string, a number"),
        ({"shared_memory_offset": 1.5}, "number of bytes"),
        ({"binary_data_size": 320}, "both"),
        ({"shared_memory_ofset": 0}, "shared_memory_offset"),
    ],
)
def test_parameters_that_make_no_sense_are_named(service: Process, change: dict[str, Any], expected: str) -> None:
    with region(4096) as memory:
        asked = body(X, memory, 200)
        asked["inputs"][0]["parameters"] |= change
        status, answer, _ = ask(service, "POST", "/v2/models/identity.rope/infer", asked)
        assert status == 400
        assert expected in answer["error"]


def test_what_cannot_be_registered_is_refused_with_the_reason(client: Any, service: Process, tmp_path: Path) -> None:
    register = client.register_system_shared_memory
    link, pipe = Path(f"/dev/shm/attention-link-{os.getpid()}"), Path(f"/dev/shm/attention-pipe-{os.getpid()}")
    (tmp_path / "secret").write_bytes(bytes(100))
    link.symlink_to(tmp_path / "secret")
    os.mkfifo(pipe)
    try:
        assert "is a link" in refused("400", register, "a", f"/{link.name}", 100)
        assert "no shared memory object" in refused("400", register, "a", f"/{pipe.name}", 100)
    finally:
        link.unlink()
        pipe.unlink()
    with region(1000, client) as memory:
        for key in ("", "/", "/.", "..", "/a/b", "/../tmp/secret", "//a", "/a\0b"):
            assert "slash" in refused("400", register, "a", key, 8), key
        assert "there is no shared memory object /none" in refused("400", register, "a", "/none", 8)
        assert "has 1000 bytes" in refused("400", register, "a", memory.key, 1001)
        assert "need 1001" in refused("400", register, "a", memory.key, 501, offset=500)
        assert "from 1 on" in refused("400", register, "a", memory.key, 0)
        assert "number of bytes" in refused("400", register, "a", memory.key, 1, offset=-1)
        assert "already" in refused("400", register, memory.name, memory.key, 8)
        assert "characters" in refused("400", register, "a" * 300, memory.key, 8)
    assert "none is registered" in refused("404", client.get_system_shared_memory_status, memory.name)
    assert "unknown" in refused("404", client.unregister_system_shared_memory, memory.name)
    path = "/v2/systemsharedmemory/region/a/register"
    assert "JSON" in ask(service, "POST", path, None)[1]["error"]
    assert "key" in ask(service, "POST", path, {"kee": "/a", "byte_size": 8})[1]["error"]
    assert ask(service, "GET", path)[0] == 405
    assert "GPU" in refused("501", client.get_cuda_shared_memory_status)


def test_there_is_an_end_to_regions(client: Any) -> None:
    with region(4096) as memory:
        try:
            for i in range(256):
                client.register_system_shared_memory(f"many {i}", memory.key, 16, offset=16 * i)
            assert "256" in refused("400", client.register_system_shared_memory, "one more", memory.key, 16)
            assert len(client.get_system_shared_memory_status()) == 256
        finally:
            client.unregister_system_shared_memory()


def test_every_process_knows_what_one_was_told(service: Process, client: Any) -> None:
    expected = plain(client, ROPE, {"embeddings": X})["scores"]
    with region(4096, client) as memory:
        memory.put(X)
        told = set()
        for _ in range(24):
            memory.bytes[X.nbytes :] = 0
            status, answer, name = ask(service, "POST", "/v2/models/identity.rope/infer", body(X, memory, 200))
            assert status == 200, answer
            assert memory.get((2, 1, 5, 5), offset=X.nbytes).tobytes() == expected.tobytes()
            told.add(name)
        assert len(told) == len(workers(service))
        client.unregister_system_shared_memory(memory.name)
        for _ in range(24):
            status, answer, _ = ask(service, "POST", "/v2/models/identity.rope/infer", body(X, memory, 200))
            assert (status, "unknown shared memory region" in answer["error"]) == (400, True)
    with region(4096) as fresh:
        # The same name, another object.
        client.register_system_shared_memory(memory.name, fresh.key, 4096)
        try:
            fresh.put(X)
            for _ in range(24):
                fresh.bytes[X.nbytes :] = 0
                status, answer, _ = ask(service, "POST", "/v2/models/identity.rope/infer", body(X, memory, 200))
                assert status == 200, answer
                assert fresh.get((2, 1, 5, 5), offset=X.nbytes).tobytes() == expected.tobytes()
        finally:
            client.unregister_system_shared_memory(memory.name)


def test_a_process_that_takes_the_place_of_another_knows_the_regions(service: Process) -> None:
    before = workers(service)
    if len(before) < 2:
        pytest.skip("one process has nobody that starts it again")
    with region(4096) as memory:
        memory.put(X)
        register = {"key": memory.key, "byte_size": 4096}
        path = f"/v2/systemsharedmemory/region/{memory.name.replace(' ', '%20')}"
        assert ask(service, "POST", f"{path}/register", register)[0] == 200
        os.kill(before[0], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        told: set[str] = set()
        first = True
        while len(told) < 2 or first:
            assert time.monotonic() < deadline
            try:
                status, answer, name = ask(service, "POST", "/v2/models/identity.rope/infer", body(X, memory, 200))
            except ConnectionError:
                continue
            assert status == 200, answer
            if first and before[0] not in workers(service) and len(workers(service)) == 2:
                told.clear()
                first = False
            told.add(name)
        assert ask(service, "POST", f"{path}/unregister")[0] == 200


def test_regions_that_go_while_they_are_used_harm_nobody(service: Process, client: Any) -> None:
    x = np.random.default_rng(1).standard_normal((200, 64)).astype(np.float32)
    expected = plain(client, ROPE, {"embeddings": x}, heads=4)["scores"]
    pids, over, seen = workers(service), threading.Event(), set()
    with region(x.nbytes + expected.nbytes) as memory:
        memory.put(x)

        def ask_on() -> None:
            while not over.is_set():
                status, answer, _ = ask(
                    service, "POST", "/v2/models/identity.rope/infer", body(x, memory, expected.nbytes, heads=4)
                )
                assert status == 200 or "unknown shared memory region" in answer["error"], answer
                seen.add(status)

        askers = [threading.Thread(target=ask_on) for _ in range(4)]
        for asker in askers:
            asker.start()
        for _ in range(60):
            client.register_system_shared_memory(memory.name, memory.key, memory.size)
            time.sleep(0.01)
            client.unregister_system_shared_memory(memory.name)
        over.set()
        for asker in askers:
            asker.join()
        assert seen == {200, 400}
        assert memory.get(expected.shape, offset=x.nbytes).tobytes() == expected.tobytes()
    assert workers(service) == pids


def test_an_object_that_shrinks_is_noticed_and_ends_no_process(service: Process, client: Any) -> None:
    x = np.random.default_rng(1).standard_normal((400, 64)).astype(np.float32)
    size = 4 * 4 * 400 * 400
    pids = workers(service)
    with region(x.nbytes + size, client) as memory:
        memory.put(x)
        path = "/v2/models/identity.rope/infer"
        assert ask(service, "POST", path, body(x, memory, size, heads=4))[0] == 200
        os.truncate(memory.path, 4096)
        for _ in range(4):
            status, answer, _ = ask(service, "POST", path, body(x, memory, size, heads=4))
            assert status == 400
            assert "has 4096" in answer["error"]
        os.truncate(memory.path, x.nbytes + size)
    # And while it is read and written: over and over, at whatever moment.
    with region(x.nbytes + size) as memory:
        over, seen = threading.Event(), []

        def ask_on() -> None:
            while not over.is_set():
                seen.append(ask(service, "POST", path, body(x, memory, size, heads=4))[:2])

        askers = [threading.Thread(target=ask_on) for _ in range(3)]
        for asker in askers:
            asker.start()
        try:
            for i in range(40):
                os.truncate(memory.path, memory.size)
                client.register_system_shared_memory(memory.name, memory.key, memory.size)
                time.sleep(0.005 + 0.0007 * i)
                os.truncate(memory.path, 8192)
                time.sleep(0.005)
                client.unregister_system_shared_memory(memory.name)
        finally:
            over.set()
            for asker in askers:
                asker.join()
            os.truncate(memory.path, memory.size)
        assert {status for status, _ in seen} == {200, 400}
    assert workers(service) == pids


def test_numbers_that_change_while_they_are_read_harm_nobody_else(service: Process, client: Any) -> None:
    mine = {"embeddings": X, "positions": np.array([0.0, 1.0, 5.0, 7.0, 9.0])}
    expected = plain(client, "identity.alibi", mine)
    pids, over = workers(service), threading.Event()
    refusals: list[tuple[str, str]] = []
    with region(1 << 16, client) as memory:
        lie = [lying(name, array, memory, 1024 * i) for i, (name, array) in enumerate(mine.items())]
        asked = outputs(shapes(expected), memory, 8192)

        def scribble() -> None:
            random = np.random.default_rng(0)
            while not over.is_set():
                memory.bytes[: X.nbytes] = random.integers(0, 256, X.nbytes)
                memory.put(random.permutation(5).astype(np.float64), 1024)
                memory.put(X)

        scribbler = threading.Thread(target=scribble)
        scribbler.start()
        try:
            for _ in range(150):
                try:
                    client.infer("identity.alibi", lie, outputs=asked)
                except InferenceServerException as error:
                    refusals.append((error.status(), error.message()))
        finally:
            over.set()
            scribbler.join()
    assert all(status == "400" and ("finite" in why or "float32" in why) for status, why in refusals), refusals
    assert_same(plain(client, "identity.alibi", mine), expected)
    assert workers(service) == pids


def test_memory_and_file_descriptors_stay_as_they_are(service: Process, client: Any) -> None:
    expected = plain(client, ROPE, {"embeddings": X})["scores"]
    processes = [psutil.Process(pid) for pid in workers(service)]

    def rounds(count: int) -> None:
        for _ in range(count):
            with region(1 << 20, client) as memory:
                memory.put(X)
                for _ in range(3):
                    status, answer, _ = ask(service, "POST", "/v2/models/identity.rope/infer", body(X, memory, 200))
                    assert status == 200, answer
                assert memory.get((2, 1, 5, 5), offset=X.nbytes).tobytes() == expected.tobytes()

    def taken() -> tuple[int, int, int]:
        time.sleep(2.5)  # each process looks once a second for what others have unregistered
        shared = sum("attention-" in one.path for process in processes for one in process.memory_maps(grouped=False))
        return sum(one.num_fds() for one in processes), shared, sum(one.memory_full_info().uss for one in processes)

    rounds(50)
    files, _, memory_before = taken()
    rounds(200)
    files_after, mapped, memory_after = taken()
    assert mapped == 0
    assert files_after <= files + 2
    assert memory_after < memory_before + (8 << 20)  # had 200 MiB been kept, they would be seen


def test_clients_elsewhere_are_refused(service: Process, client: Any) -> None:
    elsewhere = {"x-forwarded-for": "192.0.2.7"}
    with region(4096, client) as memory:
        memory.put(X)
        one = f"/v2/systemsharedmemory/region/{memory.name.replace(' ', '%20')}"
        calls: list[tuple[str, str, Any]] = [
            ("GET", "/v2/systemsharedmemory/status", None),
            ("GET", f"{one}/status", None),
            ("POST", f"{one}/register", {"key": memory.key, "byte_size": 8}),
            ("POST", f"{one}/unregister", None),
            ("POST", "/v2/systemsharedmemory/unregister", None),
            ("POST", "/v2/models/identity.rope/infer", body(X, memory, 200)),
        ]
        for _ in range(2):
            for method, path, content in calls:
                status, answer, _ = ask(service, method, path, content, **elsewhere)
                assert status == 403, path
                assert "192.0.2.7" in answer["error"]
                assert "loopback" in answer["error"]
        assert not memory.bytes[X.nbytes :].any()
        assert ask(service, "POST", "/v2/models/identity.rope/infer", body(X, memory, 200))[0] == 200
        embeddings = {"name": "embeddings", "shape": list(X.shape), "datatype": "FP32", "data": X.tolist()}
        path = "/v2/models/identity.rope/infer"
        assert ask(service, "POST", path, {"inputs": [embeddings]}, **elsewhere)[0] == 200


def test_requests_are_counted_like_all_others(service: Process, client: Any) -> None:
    def metrics() -> dict[counts.Key, float]:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return counts.parse(text)

    def statistics() -> tuple[int, int, int]:
        found = client.get_inference_statistics("identity.kerple")["model_stats"][0]
        return found["inference_count"], found["execution_count"], found["inference_stats"]["success"]["count"]

    before, counted = metrics(), statistics()
    with region(4096, client) as memory:
        for _ in range(10):
            there = [wanted("scores", memory, 200, 1024)]
            client.infer("identity.kerple", [lying("embeddings", X, memory)], outputs=there)
    assert statistics() == tuple(number + 10 for number in counted)
    after = metrics()
    infer = "/v2/models/{model}/infer"
    assert counts.changes(before, after, "attention_requests_total")["kerple", infer, "200"] == 10
    assert counts.changes(before, after, "attention_request_duration_seconds_count")["kerple", infer, "s"] == 10
    assert counts.changes(before, after, "attention_batches_total") == {("kerple", "idle"): 10}
    assert counts.changes(before, after, "attention_sequences_total") == {("kerple",): 20}
    for name in ("attention_request_bytes_count", "attention_response_bytes_count"):
        assert counts.changes(before, after, name)[infer, "json"] == 10


def test_a_deadline_is_kept(client: Any) -> None:
    with region(4096, client) as memory:
        asked = [wanted("scores", memory, 200, 1024)]
        for _ in range(2):
            assert "deadline" in refused(
                "504", client.infer, ROPE, [lying("embeddings", X, memory)], outputs=asked, timeout=1
            )


def test_the_client_for_asyncio_has_the_same_calls(service: Process, client: Any) -> None:
    expected = plain(client, ROPE, {"embeddings": X})

    async def main(memory: Region) -> None:
        async with aio.InferenceServerClient(f"127.0.0.1:{service.port}") as asked:
            await asked.register_system_shared_memory(memory.name, memory.key, memory.size)
            assert (await asked.get_system_shared_memory_status(memory.name))[0]["key"] == memory.key
            there = outputs(shapes(expected), memory, 4096)
            for _ in range(3):
                answer = await asked.infer(ROPE, [lying("embeddings", X, memory)], outputs=there)
                assert_same(read(answer, memory), expected)
            await asked.unregister_system_shared_memory(memory.name)
            assert await asked.get_system_shared_memory_status() == []
            await asked.unregister_system_shared_memory()

    with region(1 << 16) as memory:
        asyncio.run(main(memory))
