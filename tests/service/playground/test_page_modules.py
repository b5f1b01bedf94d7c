"""The page's pure modules, run in the browser, against NumPy, SciPy and the service's own code."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from scipy.spatial.distance import jensenshannon

from service.pictures import heat_maps
from service.pictures.colours import Scale
from service.pictures.heat_maps import Cells, Panel
from tests.service.playground.browser import Watched


def call(modules: Watched, code: str, *given: Any) -> Any:
    """The value of an expression of the modules' names, and of `a`, `b`, `c`: what is given."""
    return modules.page.evaluate(
        f"""async ([a, b, c]) => {{
          const home = "/playground/";
          const names = ["half", "safetensors", "npy", "given", "mask", "metrics", "cells", "paint", "scale", "ticks",
            "urlstate", "timing", "csv", "question", "words"];
          const loaded = await Promise.all(names.map((name) => import(home + name + ".js")));
          const m = Object.fromEntries(names.map((name, i) => [name, loaded[i]]));
          return {code};
        }}""",
        [*given, *[None] * (3 - len(given))],
    )


def random_rows(queries: int, keys: int, causal: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights whose rows sum to 1 over the visible keys, in float32, and what is visible."""
    scores = 2 * np.random.default_rng(seed).standard_normal((queries, keys))
    visible = np.tril(np.ones((queries, keys), bool)) if causal else np.ones((queries, keys), bool)
    weights = np.exp(np.where(visible, scores, -np.inf))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32), visible


MASK = "new m.mask.Mask({q}, {k}, {seen} && Uint8Array.from({seen}))"


def mask(queries: int, keys: int, name: str) -> str:
    return MASK.format(q=queries, k=keys, seen=name)


def test_every_float16_is_read_as_numpy_reads_it(modules: Watched) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    found = call(modules, "Array.from(m.half.fromHalf(Uint16Array.from({ length: 65536 }, (_, i) => i)), String)")
    found = np.array([math.nan if one == "NaN" else float(one.replace("Infinity", "inf")) for one in found], np.float32)
    assert np.array_equal(found, bits.view(np.float16).astype(np.float32), equal_nan=True)


def test_safetensors_of_the_library_are_read_and_what_is_written_the_library_reads(modules: Watched) -> None:
    arrays: dict[str, np.ndarray] = {
        "half": np.arange(5, dtype=np.float16) / 3,
        "single": np.arange(6, dtype=np.float32).reshape(2, 3),
        "whole": np.array([[-2, 7]], np.int32),
    }
    content = list(safetensors.numpy.save(arrays, metadata={"metadata": '{"model": "é"}'}))
    found = call(
        modules,
        """(() => {
          const { about, arrays } = m.safetensors.read(Uint8Array.from(a).buffer);
          return { about, arrays: [...arrays].map(([name, { shape, data }]) => [name, shape, [...data]]) };
        })()""",
        content,
    )
    assert found["about"] == {"model": "é"}
    for name, shape, data in found["arrays"]:
        assert tuple(shape) == arrays[name].shape
        assert np.array_equal(np.array(data).reshape(shape), arrays[name].astype(np.float64))
    written = call(
        modules,
        """[...m.safetensors.write({
          embeddings: { shape: [2, 2], data: Float32Array.of(1, 2.5, -3, 4) },
          mask: { shape: [3], data: Uint8Array.of(1, 0, 1) },
          positions: { shape: [2], data: Float64Array.of(0.5, 1e9) },
        })]""",
    )
    again = safetensors.numpy.load(bytes(written))
    assert np.array_equal(again["embeddings"], np.array([[1, 2.5], [-3, 4]], np.float32))
    assert np.array_equal(again["mask"], [True, False, True])
    assert np.array_equal(again["positions"], [0.5, 1e9])


@pytest.mark.parametrize("cut", [4, 40, 100])
def test_an_answer_that_was_cut_short_is_refused(modules: Watched, cut: int) -> None:
    content = list(safetensors.numpy.save({"x": np.ones(20, np.float32)}))[:cut]
    said = call(
        modules,
        "(() => { try { m.safetensors.read(Uint8Array.from(a).buffer); } catch (e) { return e.message; } })()",
        content,
    )
    assert said is not None


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_of_every_kind_are_read(modules: Watched, dtype: str, order: str) -> None:
    x = np.random.default_rng(0).integers(0, 2, (4, 3)).astype(dtype, order=order)  # type: ignore[call-overload]
    content = io.BytesIO()
    np.save(content, x)
    shape, data = call(
        modules, "(({ shape, data }) => [shape, [...data]])(m.npy.read(Uint8Array.from(a)))", list(content.getvalue())
    )
    assert np.array_equal(np.array(data).reshape(shape), x.astype(np.float64))


def test_npy_files_of_other_kinds_are_refused_with_a_way_out(modules: Watched) -> None:
    attempt = "(() => { try { m.npy.read(Uint8Array.from(a)); } catch (e) { return e.message; } })()"
    for array, message in ((np.zeros(2, "c16"), "c16"), (np.zeros(2, ">f4"), "big-endian")):
        content = io.BytesIO()
        np.save(content, array)
        assert message in call(modules, attempt, list(content.getvalue()))


@pytest.mark.parametrize("causal", [False, True])
def test_the_divergence_of_two_matrices_is_scipys(modules: Watched, causal: bool) -> None:
    a, visible = random_rows(17, 17, causal, 1)
    b, _ = random_rows(17, 17, causal, 2)
    seen = visible.astype(int).ravel().tolist() if causal else None
    found = call(
        modules,
        f"m.metrics.jsd(Float32Array.from(a), Float32Array.from(b), {mask(17, 17, 'c')})",
        a.ravel().tolist(),
        b.ravel().tolist(),
        seen,
    )
    counted = visible.sum(-1) > 1
    expected = np.mean([jensenshannon(p, q, base=2) ** 2 for p, q in zip(a[counted], b[counted], strict=True)])
    assert found == pytest.approx(expected, abs=1e-6)


def test_ranks_and_largest_keys_are_those_of_a_stable_sort(modules: Watched) -> None:
    row = np.array([0.1, 0.3, 0.1, 0.3, 0.2, 0.0], np.float32)
    order = np.argsort(-row, kind="stable")
    assert (
        call(modules, f"m.metrics.topKeys(Float32Array.from(a), 4, {mask(1, 6, 'null')}, 0)", row.tolist())
        == order[:4].tolist()
    )
    ranks = call(
        modules,
        f"[0, 1, 2, 3, 4, 5].map((k) => m.metrics.rank(Float32Array.from(a), k, {mask(1, 6, 'null')}, 0))",
        row.tolist(),
    )
    assert [ranks[key] for key in order] == [1, 2, 3, 4, 5, 6]
    hidden = [1, 0, 1, 1, 1, 1]
    assert call(modules, f"m.metrics.rank(Float32Array.from(a), 1, {mask(1, 6, 'b')}, 0)", row.tolist(), hidden) is None


@pytest.mark.parametrize(("high", "signed"), [(0.5, False), (0.02, False), (3.0, True)])
def test_a_number_has_the_colour_that_the_services_pictures_give_it(
    modules: Watched, high: float, signed: bool
) -> None:
    values = np.linspace(-1.2 * high, 1.2 * high, 301) + 1e-5
    make = f"m.scale.diverging('diff', {high}, '')" if signed else f"m.scale.sequential('shared', 0, {high})"
    found = np.array(call(modules, f"a.map((value) => m.scale.colour({make}, value))", values.tolist()))
    scale = Scale("signed" if signed else "sequential", -high if signed else 0.0, high)
    assert np.array_equal(found, scale.table[scale.entries(values)])


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0431, 0.05), (0.5, 0.5), (0.51, 1), (7e-4, 1e-3), (13, 20), (0, 1), (0.2, 0.2)]
)
def test_a_scale_ends_at_1_2_or_5_times_a_power_of_ten(modules: Watched, value: float, expected: float) -> None:
    assert call(modules, "m.scale.roundedUp(a)", value) == expected


@pytest.mark.parametrize("signed", [False, True])
def test_pooling_keeps_the_largest_and_what_is_broken_as_the_services_pictures_do(
    modules: Watched, signed: bool
) -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((30, 24)).astype(np.float32)
    values = values if signed else np.abs(values)
    values[9, 7] = 40  # one cell
    values[20, 3] = np.nan
    visible = np.tril(np.ones((30, 24), bool))
    expected, seen = heat_maps.pooled(values, visible, 3, 4, magnitude=signed)
    found = call(
        modules,
        "[...m.cells.project(Float32Array.from(a, (x) => x ?? NaN), "
        f"{mask(30, 24, 'b')}, {{ q0: 0, k0: 0, q1: 30, k1: 24 }}, {{ high: 10, wide: 6 }}, {{ magnitude: c }})"
        ".numbers].map(String)",
        [None if math.isnan(x) else x for x in values.ravel().tolist()],
        visible.astype(int).ravel().tolist(),
        signed,
    )
    numbers = np.array([float(one.replace("Infinity", "inf")) for one in found]).reshape(10, 6)
    assert np.array_equal(numbers == -np.inf, ~seen)
    assert np.array_equal(np.isnan(numbers), np.isnan(expected) & seen)
    both = seen & np.isfinite(expected)
    assert np.array_equal(numbers[both], expected[both])
    assert (numbers == 40).sum() == 1


@pytest.mark.parametrize("kind", ["row", "log", "lift"])
def test_the_scales_are_what_they_are_called(modules: Watched, kind: str) -> None:
    a, visible = random_rows(8, 8, True)
    found = call(
        modules,
        f"[...m.cells.project(Float32Array.from(a), {mask(8, 8, 'b')}, "
        "{ q0: 0, k0: 0, q1: 8, k1: 8 }, { high: 99, wide: 99 }, "
        "{ kind: c }).numbers].map(String)",
        a.ravel().tolist(),
        visible.astype(int).ravel().tolist(),
        kind,
    )
    numbers = np.array([float(one.replace("Infinity", "inf")) for one in found]).reshape(8, 8)
    counts = visible.sum(-1, keepdims=True)
    expected = {
        "row": a / a.max(-1, keepdims=True),
        "log": np.log10(np.maximum(a, 1e-6)),
        "lift": np.log2(np.maximum(a, 1e-6) * counts),
    }[kind]
    assert numbers[visible] == pytest.approx(expected[visible], abs=1e-5)
    assert (numbers[~visible] == -np.inf).all()


def test_masked_pixels_are_those_of_the_services_pictures(modules: Watched) -> None:
    """The hatch is the same, pixel by pixel."""
    values, visible = np.array([[0.25, 0.75]]), np.array([[True, False]])
    found = call(
        modules,
        """(() => {
          const image = new ImageData(24, 12);
          const numbers = Float32Array.of(0.25, -Infinity);
          m.paint.paint({ high: 1, wide: 2, numbers }, m.scale.sequential("shared", 0, 1), image, 1);
          return [...image.data];
        })()""",
    )
    image = np.array(found, np.uint8).reshape(12, 24, 4)
    panel = Panel("", values, visible)
    expected = heat_maps.pixels(panel, Scale("sequential", 0.0, 1.0), Cells(12, 12, 1, 1))
    assert np.array_equal(image[..., :3], expected)
    assert (image[..., 3] == 255).all()


def test_settings_come_back_from_their_link(modules: Watched) -> None:
    link = (
        "#v=1&preset=repeat&n=128&seed=4294967295&heads=4&enc=rope,alibi,rope@long&ref=rope&h=mean&mask=causal&view=diff&scale=lift"
        "&map=grey&vmax=0.1&z=0,0,12,128&tab=pairs&q=17&k=4&rope@long.theta=500000"
    )
    again = call(modules, "m.urlstate.write(m.urlstate.read(a).settings)", link)
    assert sorted(again[1:].split("&")) == sorted(link[1:].split("&"))


@pytest.mark.parametrize(
    "part",
    [
        "enc=",
        "enc=rope,<b>",
        "h=x",
        "vmax=-1",
        "z=5,5,5,9",
        "z=1,2,3",
        "scale=jet",
        "mask=half",
        "n=1e9",
        "n=-1",
        "tab=x",
    ],
)
def test_what_is_not_valid_in_a_link_is_left_at_its_default_with_a_note(modules: Watched, part: str) -> None:
    settings, notes = call(
        modules, "(({ settings, notes }) => [settings, notes])(m.urlstate.read(a))", f"#v=1&{part}&later=1"
    )
    defaults = call(modules, "m.urlstate.read('').settings")
    assert settings == defaults
    assert len(notes) == 1


def test_server_timing_is_read(modules: Watched) -> None:
    stages = call(modules, "m.timing.read(a)", 'decode;dur=1.5, queue;desc="x";dur=3.25, total;dur=12')
    assert stages == {"decode": 1.5, "queue": 3.25, "total": 12}
    assert call(modules, "m.timing.read(null)") == {}


def test_csv_is_quoted_and_no_name_becomes_a_formula(modules: Watched) -> None:
    text = call(modules, "m.csv.write(a)", [["a,b", 'say "x"', "=1+1", 0.5, None], ["-", 2, "", 1e-9, "é"]])
    assert text == '"a,b","say ""x""",\'=1+1,0.5,\r\n\'-,2,,1e-9,é\r\n'


@pytest.mark.parametrize(
    ("first", "last", "size", "room", "expected"),
    [
        (0, 10, 20, 11, list(range(10))),
        (0, 100, 2.5, 13, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]),
        (3, 9, 8, 13, [4, 6, 8]),
    ],
)
def test_labels_stand_at_round_numbers(
    modules: Watched, first: int, last: int, size: float, room: float, expected: list[int]
) -> None:
    assert call(modules, f"m.ticks.places({first}, {last}, a, b)", size, room) == expected
