/** Where a matrix and its axes stand, and the drawing of them: on the screen, and in a picture that is saved. */
import { places, shortened } from "./ticks.js";

const LABEL = 11; // CSS pixels
const LEAST_LABEL = 9.5; // to which names shrink before they thin out
const MOST_NAME = 74;
const GAP = 5;
const TOP = 6; // half a label, and the focus ring
const EDGE = 3;

export const FONT = `${LABEL}px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif`;

/**
 * @typedef {object} Frame in CSS pixels, from the figure's left and top
 * @property {number} left
 * @property {number} top
 * @property {number} width
 * @property {number} height
 * @property {number} wholeWidth of the figure
 * @property {number} wholeHeight
 */

/**
 * The room of a matrix whose figure has `width` pixels. It does not depend on the window that is shown, so zooming moves
 * nothing.
 * @param {{queries: number, keys: number, queryNames: string[]|null, keyNames: string[]|null}} run
 * @param {(text: string) => number} measure
 * @param {number} tallest
 * @param {number} grain device pixels to a CSS pixel
 * @returns {Frame}
 */
export function frame(run, width, measure, tallest, grain) {
  const longest = (names, count) =>
    names ? Math.min(MOST_NAME, Math.max(...names.slice(0, 400).map(measure))) : measure(String(count - 1));
  const left = Math.ceil(18 + longest(run.queryNames, run.queries) + GAP);
  const below = Math.ceil((run.keyNames ? longest(run.keyNames, run.keys) : LABEL) + GAP + 17);
  let side = Math.max(40, Math.min(width - left - EDGE, tallest));
  const cell = (side * grain) / run.keys;
  if (cell >= 4) side = (Math.floor(cell) * run.keys) / grain; // whole pixels to each cell
  const shape = Math.min(1.25, Math.max(0.2, run.queries / run.keys));
  const height = Math.round(side * shape);
  return { left, top: TOP, width: side, height, wholeWidth: left + side + EDGE, wholeHeight: TOP + height + below };
}

/**
 * Labels and ticks of the window.
 * @param {CanvasRenderingContext2D} context in CSS pixels, its origin at the figure's corner
 * @param {Frame} at
 * @param {import("./cells.js").Window} window
 * @param {{ink: string, muted: string}} colours
 * @returns {{row: [number, string, number][], column: [number, string, number][]}} the labels that were drawn, with their places
 */
export function axes(context, at, window, run, colours) {
  const measure = (text) => context.measureText(text).width;
  context.font = FONT;
  const high = at.height / (window.q1 - window.q0);
  const wide = at.width / (window.k1 - window.k0);
  const drawn = { row: [], column: [] };

  context.fillStyle = colours.ink;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const sized = (cell, names) => (named(names, cell) ? Math.max(LEAST_LABEL, Math.min(LABEL, cell - 1)) : LABEL);
  const rowSize = sized(high, run.queryNames);
  context.font = FONT.replace(/^\d+/, rowSize);
  for (const q of places(window.q0, window.q1, high, rowSize + 1)) {
    const y = at.top + (q - window.q0 + 0.5) * high;
    const text = named(run.queryNames, high) ? shortened(run.queryNames[q], MOST_NAME, measure) : String(q);
    context.fillText(text, at.left - GAP, y);
    drawn.row.push([q, text, y]);
  }
  const upright = !named(run.keyNames, wide);
  const columnSize = sized(wide, run.keyNames);
  context.font = FONT.replace(/^\d+/, columnSize);
  const room = upright ? measure(String(run.keys - 1)) + 10 : columnSize + 1;
  for (const k of places(window.k0, window.k1, wide, room)) {
    const x = at.left + (k - window.k0 + 0.5) * wide;
    const text = !upright ? shortened(run.keyNames[k], MOST_NAME, measure) : String(k);
    context.save();
    // The last number may be wider than what is left of the figure.
    const beyond = upright ? Math.max(0, x + measure(text) / 2 - at.wholeWidth) : 0;
    context.translate(x - beyond, at.top + at.height + GAP);
    if (upright) {
      context.textAlign = "center";
      context.textBaseline = "top";
    } else {
      context.rotate(-Math.PI / 2);
    }
    context.fillText(text, 0, 0);
    context.restore();
    drawn.column.push([k, text, x]);
  }

  context.font = FONT;
  context.fillStyle = colours.muted;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  context.fillText("key (looked at)", at.left + at.width / 2, at.wholeHeight - 4);
  context.save();
  context.translate(11, at.top + at.height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("query (looks)", 0, 0);
  context.restore();
  return drawn;
}

/** Whether there is room for every name; else numbers stand at some. */
function named(names, cell) {
  return names !== null && cell >= LEAST_LABEL + 0.5;
}

/** The window of the whole matrix. */
export function whole(run) {
  return { q0: 0, k0: 0, q1: run.queries, k1: run.keys };
}
