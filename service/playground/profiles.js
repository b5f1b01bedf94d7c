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
    root.replaceChildren(
      h("p", { class: "muted", textContent: "There are no distances: the positions of the keys are in no order." }),
    );
    return;
  }
  const plot = h("div", { class: "plot" });
  root.replaceChildren(
    h("p", {
      class: "lead",
      textContent: `The mean weight that ${headWords(settings.head)} gives to the key at each distance. ${run.causal ? "" : "Left of 0 are keys that come later. "}The dotted line is what equal weights would give.`,
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
    yTitle: "mean weight",
    fromZero: true,
    label: `Distance profiles of ${names.join(", ")}`,
  });
}

/** As the service says; the mean of all heads is the mean of theirs. Null where key positions are in no order. */
function profile(run, name, head) {
  const said = run.result(name).profile;
  if (!said) return null;
  const of = (rows) =>
    head === "mean"
      ? said.distances.map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length)
      : rows[head];
  return { distances: said.distances, weights: of(said.weights), uniform: of(said.uniform) };
}

export function headWords(head) {
  return head === "mean" ? "the mean of all heads" : `head ${head}`;
}

export function legendOf(names) {
  return h("ul", { class: "chart-legend" }, ...names.map((name) => h("li", {}, dashed(name), name)));
}
