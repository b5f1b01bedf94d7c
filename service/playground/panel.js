/** One encoding's matrix: its picture, its heads, its numbers. */
import { project } from "./cells.js";
import { h } from "./dom.js";
import { axes, FONT, frame, whole } from "./figure.js";
import { rank, rowOf, timesUniform } from "./metrics.js";
import { paint } from "./paint.js";
import { clipped } from "./scale.js";
import { dashed } from "./identity.js";
import { Strip } from "./strip.js";
import { percent, times } from "./words.js";

const MEASURES = [
  ["effective_keys", "effective keys", "exp of the entropy: how many keys share the weight"],
  ["mean_distance_ratio", "distance", "mean distance of the weight; 1 is that of uniform rows under the same mask"],
  ["alpha_0", "first key", "mean weight of the first key: an attention sink where it is large"],
];

export class Panel {
  /**
   * @param {string} name
   * @param {{act: object}} page `act` is what a panel may ask for
   */
  constructor(name, { act }) {
    this.name = name;
    this.act = act;
    this.frame = null;
    this.window = null;
    this.cells = null;
    this.clipped = 0;
    this.axesCanvas = h("canvas", { class: "axes", "aria-hidden": "true" });
    this.cellsCanvas = h("canvas", { class: "cells", "aria-hidden": "true" });
    this.overlay = h("canvas", { class: "overlay", "aria-hidden": "true" });
    this.map = h("div", {
      class: "map",
      tabIndex: 0,
      role: "application",
      "aria-roledescription": "attention matrix",
      "aria-describedby": "map-help",
    });
    this.empty = h("p", { class: "empty", hidden: true });
    // Where the axes meet there is room, so that it comes and goes without moving anything.
    this.unzoom = h("button", {
      type: "button",
      class: "unzoom",
      textContent: "all",
      title: "Show the whole matrix",
      hidden: true,
      on: { click: () => act.zoomTo(null) },
    });
    this.figure = h(
      "div",
      { class: "figure" },
      this.axesCanvas,
      this.cellsCanvas,
      this.overlay,
      this.map,
      this.unzoom,
      this.empty,
    );
    this.title = h("h3", {});
    this.subtitle = h("p", { class: "subtitle" });
    this.tag = h("span", { class: "tag", hidden: true });
    this.note = h("p", { class: "note", hidden: true });
    this.readout = h("p", { class: "readout" });
    this.measures = h("dl", { class: "measures" });
    this.strip = new Strip(name, act);
    const button = (text, label, click, extra = {}) =>
      h("button", {
        type: "button",
        class: "quiet",
        textContent: text,
        title: label,
        "aria-label": `${label}: ${name}`,
        on: { click },
        ...extra,
      });
    this.referenceButton = button("compare to", "Make this the reference", () => act.setReference(name));
    this.buttons = h(
      "div",
      { class: "panel-buttons" },
      this.referenceButton,
      button("about", "What it is, and its parameters", () => act.openAbout(name)),
      button("×", "Remove", () => act.removeEncoding(name), { class: "quiet close" }),
    );
    this.element = h(
      "article",
      { class: "panel", data: { name }, "aria-label": name },
      h("header", {}, h("div", { class: "heading" }, dashed(name), this.title, this.tag), this.buttons),
      this.subtitle,
      h("div", { class: "panel-body" }, this.figure, this.strip.element),
      this.measures,
      this.readout,
      this.note,
    );
  }

  /** What the service says of the encoding. */
  describe(card, result) {
    this.title.textContent = this.name;
    this.subtitle.textContent = card
      ? card.title.replace(/^[^:]*: /, "").replace(/^./, (letter) => letter.toUpperCase())
      : "";
    this.subtitle.title = card?.summary ?? "";
    const own = Object.entries(result?.parameters ?? {}).filter(([, value]) =>
      ["number", "string", "boolean"].includes(typeof value),
    );
    if (result?.label)
      this.subtitle.textContent = own
        .slice(0, 3)
        .map(([name, value]) => `${name} ${value}`)
        .join(", ");
  }

  /** Takes the room that there is, and draws everything. */
  draw(state, picture) {
    const { run, settings } = state;
    const result = run.result(this.name);
    this.element.classList.toggle("stale", !result);
    if (!result) return;
    this.run = run;
    this.picture = picture;
    this.panel = picture.panel(this.name);
    this.tag.hidden = !this.panel.reference || run.results.length < 2;
    this.tag.textContent = "reference";
    this.referenceButton.hidden = this.panel.reference || run.results.length < 2;
    this.map.setAttribute(
      "aria-label",
      `${this.name}, ${settings.head === "mean" ? "mean of all heads" : `head ${settings.head} of ${run.heads}`}, ${run.queries} queries by ${run.keys} keys`,
    );
    this.window = settings.zoom ?? whole(run);
    this.unzoom.hidden = !settings.zoom;
    this.empty.hidden = run.queries > 0 && run.keys > 0;
    this.empty.textContent = "no data";
    this.layout();
    this.drawCells();
    this.drawMeasures(state);
  }

  layout() {
    const grain = devicePixelRatio || 1;
    const context = this.axesCanvas.getContext("2d");
    context.font = FONT;
    const width = this.figure.clientWidth;
    this.frame = frame(this.run, width, (text) => context.measureText(text).width, tallest(), grain);
    const { left, top, width: wide, height: high, wholeWidth, wholeHeight } = this.frame;
    sized(this.axesCanvas, wholeWidth, wholeHeight, grain);
    sized(this.cellsCanvas, wide, high, grain);
    sized(this.overlay, wholeWidth, wholeHeight, grain);
    place(this.cellsCanvas, left, top);
    place(this.map, left, top, wide, high);
    this.figure.style.height = `${wholeHeight}px`;
    const style = getComputedStyle(this.axesCanvas);
    context.setTransform(grain, 0, 0, grain, 0, 0);
    context.clearRect(0, 0, wholeWidth, wholeHeight);
    this.labels = axes(context, this.frame, this.window, this.run, { ink: style.color, muted: style.outlineColor });
  }

  drawCells() {
    const canvas = this.cellsCanvas;
    const { matrix, how, scale } = this.panel;
    this.cells = project(matrix, this.run.mask, this.window, { high: canvas.height, wide: canvas.width }, how);
    this.clipped = clipped(scale, this.cells.numbers);
    const context = canvas.getContext("2d");
    if (this.image?.width !== canvas.width || this.image?.height !== canvas.height) {
      this.image = context.createImageData(canvas.width, canvas.height);
    }
    paint(this.cells, scale, this.image, devicePixelRatio || 1);
    context.putImageData(this.image, 0, 0);
    const rows = this.window.q1 - this.window.q0;
    const columns = this.window.k1 - this.window.k0;
    const pooled = this.cells.high < rows || this.cells.wide < columns;
    this.note.hidden = !pooled;
    this.note.textContent = pooled
      ? `Each pixel is the ${how.magnitude ? "number farthest from 0" : "largest"} of up to ${Math.ceil(rows / this.cells.high)} × ${Math.ceil(columns / this.cells.wide)} cells. Drag to zoom.`
      : "";
  }

  drawMeasures({ run, settings }) {
    const result = run.result(this.name);
    const items = [];
    const head = settings.head;
    const value = (metric) => (head === "mean" ? metric?.layer : metric?.mean[head]) ?? null;
    for (const [key, text, meaning] of MEASURES) {
      const found = value(result.summary?.[key]);
      if (found !== null) items.push([text, found.toFixed(found >= 10 ? 1 : 2), meaning]);
    }
    const against = run.comparison?.against?.[this.name];
    const jsd = value(against?.jsd);
    if (jsd !== null)
      items.push([
        `jsd to ${run.comparison.reference}`,
        jsd.toFixed(jsd < 0.01 ? 4 : 3),
        "Jensen-Shannon divergence in bits: 0 is the same, 1 is disjoint",
      ]);
    this.measures.replaceChildren(
      ...items.map(([text, number, meaning]) =>
        h("div", { title: meaning }, h("dt", { textContent: text }), h("dd", { textContent: number })),
      ),
    );
  }

  /** The crosshair, and what stands in the cell under it. */
  drawCrosshair({ hover, settings, locked, drag }, focused) {
    const context = this.overlay.getContext("2d");
    const grain = devicePixelRatio || 1;
    context.setTransform(grain, 0, 0, grain, 0, 0);
    context.clearRect(0, 0, this.overlay.width, this.overlay.height);
    if (!this.frame || !this.run) return;
    const { left, top, width, height } = this.frame;
    const { q0, k0, q1, k1 } = this.window;
    const [wide, high] = [width / (k1 - k0), height / (q1 - q0)];
    const cell = hover ?? settings.cell;
    const style = getComputedStyle(this.overlay);
    if (cell && cell.q < this.run.queries && cell.k < this.run.keys) {
      const x = left + (cell.k - k0) * wide;
      const y = top + (cell.q - q0) * high;
      const inRow = cell.q >= q0 && cell.q < q1;
      const inColumn = cell.k >= k0 && cell.k < k1;
      const band = (bx, by, bw, bh) => {
        // A pale line within a dark one stands out on every colour.
        context.lineWidth = 3;
        context.strokeStyle = "rgba(0, 0, 0, 0.55)";
        context.strokeRect(bx, by, bw, bh);
        context.lineWidth = 1.25;
        context.strokeStyle = "rgba(255, 255, 255, 0.95)";
        context.strokeRect(bx, by, bw, bh);
      };
      context.save();
      context.beginPath();
      context.rect(left, top, width, height);
      context.clip();
      if (inRow) band(left, y, width, high);
      if (inColumn) band(x, top, wide, height);
      context.restore();
      if (inRow && inColumn) {
        context.lineWidth = 2;
        context.strokeStyle = style.outlineColor;
        context.strokeRect(x - 1, y - 1, Math.max(wide, 3) + 2, Math.max(high, 3) + 2);
      }
      this.readout.replaceChildren(...this.words(cell));
    } else {
      this.readout.replaceChildren();
    }
    if (drag) {
      context.fillStyle = "rgba(127, 127, 127, 0.28)";
      context.strokeStyle = style.outlineColor;
      context.lineWidth = 1.5;
      const x = left + (drag.k0 - k0) * wide;
      const y = top + (drag.q0 - q0) * high;
      context.fillRect(x, y, (drag.k1 - drag.k0) * wide, (drag.q1 - drag.q0) * high);
      context.strokeRect(x, y, (drag.k1 - drag.k0) * wide, (drag.q1 - drag.q0) * high);
    }
    this.map.classList.toggle("locked", Boolean(locked && !hover));
    if (focused) {
      context.strokeStyle = style.outlineColor;
      context.lineWidth = 2;
      context.strokeRect(left - 2, top - 1, width + 4, height + 3);
    }
  }

  words({ q, k }) {
    const { run } = this;
    const weights = this.run.matrix(run.result(this.name), this.head());
    const row = rowOf(weights, q, run.keys);
    const strong = (text) => h("strong", { textContent: text });
    if (!run.mask.has(q, k)) return [strong("masked"), ": this query does not see this key"];
    const weight = row[k];
    if (!Number.isFinite(weight)) return [strong("not a number"), ": the model gave none here"];
    const standing = rank(row, k, run.mask, q);
    return [
      strong(percent(weight)),
      ` rank ${standing} of ${run.mask.counts[q]}, ${times(timesUniform(weight, run.mask.counts[q]))} uniform`,
    ];
  }

  head() {
    return this.act.head();
  }

  /** The cell under a point of the map, in CSS pixels of the viewport. */
  cellAt(x, y) {
    const box = this.map.getBoundingClientRect();
    const { q0, k0, q1, k1 } = this.window;
    const within = (value, low, high) => Math.max(low, Math.min(high - 1, value));
    return {
      q: within(q0 + Math.floor(((y - box.top) / box.height) * (q1 - q0)), q0, q1),
      k: within(k0 + Math.floor(((x - box.left) / box.width) * (k1 - k0)), k0, k1),
    };
  }
}

function sized(canvas, width, height, grain) {
  const [wide, high] = [Math.round(width * grain), Math.round(height * grain)];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

function place(element, left, top, width, height) {
  element.style.left = `${left}px`;
  element.style.top = `${top}px`;
  if (width !== undefined) {
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
  }
}

function tallest() {
  return Math.max(220, Math.min(640, innerHeight * 0.72));
}
