/** What the colours mean: a bar for each scale, and the marks of cells without a number. */
import { find, h } from "./dom.js";
import { paint } from "./paint.js";
import { digits, ticks } from "./scale.js";
import { HIDDEN } from "./cells.js";

export function legend(store) {
  const root = find("legend");
  store.on(["picture", "clipped", "run"], ({ picture, clipped, run, settings }) => {
    if (!picture || !run) return;
    const notes = [];
    if (run.mask.seen) notes.push(mark("masked", "masked"));
    if (run.nonfinite) notes.push(mark("nan", `not a number: ${run.nonfinite.toLocaleString("en")} cells in all`));
    if (clipped)
      notes.push(
        h("span", {
          class: "clipped",
          textContent: `▸ ${clipped.toLocaleString("en")} ${clipped === 1 ? "cell" : "cells"} beyond the scale`,
        }),
      );
    if (settings.vmax !== null) notes.push(h("span", { textContent: "pinned" }));
    root.replaceChildren(
      ...picture.scales.map((scale, i) => bar(scale, i === 0 && clipped > 0)),
      h("div", { class: "marks" }, ...notes),
    );
  });
}

function bar(scale, overflows) {
  const canvas = h("canvas", { class: "bar", width: 256, height: 1, role: "img", "aria-label": described(scale) });
  const context = canvas.getContext("2d");
  context.putImageData(strip(scale, context), 0, 0);
  const labels = h("div", { class: "bar-labels", "aria-hidden": "true" });
  for (const [value, text] of ticks(scale)) {
    const label = h("span", { textContent: text });
    label.style.left = `${(100 * (value - scale.low)) / (scale.high - scale.low)}%`;
    labels.append(label);
  }
  return h(
    "figure",
    { class: "scale" },
    h("figcaption", { textContent: scale.unit }),
    h("div", { class: overflows ? "bar-frame overflows" : "bar-frame" }, canvas),
    labels,
  );
}

/** All 256 colours of a scale, one pixel each. */
export function strip(scale, context) {
  const image = context.createImageData(256, 1);
  for (let i = 0; i < 256; i++) {
    image.data.set(scale.table.subarray(3 * i, 3 * i + 3), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  return image;
}

function described(scale) {
  return `Colours of ${scale.unit}, from ${digits(scale.low)} to ${digits(scale.high)}`;
}

/** How a cell without a number looks, with its meaning. */
export function mark(kind, text) {
  const canvas = h("canvas", { class: "mark", width: 36, height: 24, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(36, 24);
  paint(
    { high: 1, wide: 1, numbers: Float32Array.of(kind === "masked" ? HIDDEN : NaN) },
    { table: new Uint8Array(768), signed: false, low: 0, high: 1 },
    image,
    2,
  );
  context.putImageData(image, 0, 0);
  return h("span", { class: "marked" }, canvas, text);
}
