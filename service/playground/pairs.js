/** The tab that compares every encoding with every other. */
import { h } from "./dom.js";
import { jsd } from "./metrics.js";
import { headWords } from "./profiles.js";
import { colour, roundedUp, sequential } from "./scale.js";

export const needs = ["run", "settings", "hidden"];
const known = new WeakMap();

export function draw(root, { run, settings, hidden }) {
  if (!run) return;
  const names = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
  if (names.length < 2) {
    root.replaceChildren(h("p", { class: "muted", textContent: "Choose two encodings or more to compare them." }));
    return;
  }
  const value = (a, b) => (a === b ? 0 : distance(run, ...[a, b].sort(), settings.head));
  const most = Math.max(...names.flatMap((a) => names.map((b) => value(a, b))).filter(Number.isFinite));
  const scale = sequential("shared", 0, roundedUp(most), settings.map);
  const cell = (a, b) => {
    const number = value(a, b);
    const item = h("td", {
      textContent: Number.isFinite(number) ? (number === 0 ? "0" : number.toPrecision(2)) : "undefined",
    });
    if (Number.isFinite(number)) {
      const [red, green, blue] = colour(scale, number);
      item.style.backgroundColor = `rgb(${red}, ${green}, ${blue})`;
      item.style.color = legible(red, green, blue);
    }
    return item;
  };
  root.replaceChildren(
    h("p", {
      class: "lead",
      textContent: `How far apart ${headWords(settings.head)} is under each pair of encodings: the Jensen-Shannon divergence of their rows, in bits, averaged over the queries. 0 is the same attention, 1 is attention to different keys.`,
    }),
    h(
      "div",
      { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Divergence of each pair" },
      h(
        "table",
        { class: "pairs" },
        h("thead", {}, h("tr", {}, h("td", {}), ...names.map((name) => h("th", { scope: "col", textContent: name })))),
        h(
          "tbody",
          {},
          ...names.map((a) => h("tr", {}, h("th", { scope: "row", textContent: a }), ...names.map((b) => cell(a, b)))),
        ),
      ),
    ),
  );
}

/** Black or white, whichever stands out more. */
function legible(...parts) {
  const [red, green, blue] = parts.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function distance(run, a, b, head) {
  if (!known.has(run)) known.set(run, new Map());
  const found = known.get(run);
  const key = `${a} ${b} ${head}`;
  if (!found.has(key)) found.set(key, jsd(run.matrix(run.result(a), head), run.matrix(run.result(b), head), run.mask));
  return found.get(key);
}
