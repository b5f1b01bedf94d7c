/** How an encoding is told from another in charts: a hue and a dash, never the hue alone. In matrices hue is value. */
import { svg } from "./dom.js";

export const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 4", "12 3"];
const known = new Map();

/** A number that stays with the name for as long as the page is open. */
export function identity(name) {
  if (!known.has(name)) known.set(name, known.size);
  return known.get(name);
}

/** A short line as the charts draw it. */
export function dashed(name) {
  const index = identity(name);
  return svg(
    "svg",
    { class: "swatch", width: 22, height: 10, "aria-hidden": "true" },
    svg("line", {
      x1: 1,
      y1: 5,
      x2: 21,
      y2: 5,
      class: `line hue-${index % 8}`,
      "stroke-dasharray": DASHES[index % DASHES.length],
    }),
  );
}
