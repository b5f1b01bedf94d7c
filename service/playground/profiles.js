/** The tab of distance profiles: how much weight goes how far. */
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { dashed } from "./identity.js";

export const needs = ["run", "settings", "hidden", "size", "theme"];

export function draw(root, { run, settings, hidden }) {
  if (!run) return;
  const names = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
  const profiles = names.map((name) => profile(run, name, settings.head));
  if (!profiles.length || profiles.includes(null)) {
    root.replaceChildren(h("p", { class: "muted", textContent: `There is nothing to profile${why(run, names)}.` }));
    return;
  }
  const plot = h("div", { class: "plot" });
  root.replaceChildren(
    h("p", {
      class: "lead",
      textContent: `How far the weight of ${headWords(settings.head)} goes: the share of an average row at each distance, all of which sum to 1. ${run.causal ? "" : "Left of 0 are keys that come later. "}The dotted line is what equal weights would give.`,
    }),
    legendOf(names),
    plot,
  );
  chart(plot, {
    series: [
      { name: "uniform", xs: profiles[0].distances, ys: profiles[0].uniform, hint: true },
      ...profiles.map(({ distances, weights }, i) => ({ name: names[i], xs: distances, ys: weights })),
    ],
    xTitle: "distance: query position less key position",
    yTitle: "share of the weight",
    fromZero: true,
    label: `Distance profiles of ${names.join(", ")}`,
  });
}

/** In the service's words. */
function why(run, names) {
  const reasons = names.map((name) => run.result(name).summary?.reasons?.distance_profile);
  const [reason] = [...reasons.filter(Boolean), names.length ? "" : "every encoding is hidden"];
  return reason ? `: ${reason}` : "";
}

/** As the service says; the mean of all heads is the mean of theirs. Null where there are no distances. */
function profile(run, name, head) {
  const said = run.result(name).profile;
  if (!said) return null;
  return { distances: said.distances, weights: ofHead(said.weights, head), uniform: ofHead(said.uniform, head) };
}

/** Of one number, or one row of numbers, for each head: those of one head, or the mean of all. */
export function ofHead(rows, head) {
  if (head !== "mean") return rows[head];
  if (typeof rows[0] === "number") return rows.reduce((sum, value) => sum + value, 0) / rows.length;
  return Array.from(rows[0], (_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
}

export function headWords(head) {
  return head === "mean" ? "the mean of all heads" : `head ${head}`;
}

export function legendOf(names) {
  return h("ul", { class: "chart-legend" }, ...names.map((name) => h("li", {}, dashed(name), name)));
}
