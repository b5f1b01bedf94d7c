/** The tab of curves that position alone makes: scores of equal tokens by distance. */
import { ask } from "./api.js";
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { headWords, legendOf } from "./profiles.js";
import { SAFETENSORS } from "./question.js";
import { read } from "./safetensors.js";

export const needs = ["run", "settings", "hidden", "size", "theme"];
const LENGTH = 128;
const known = new Map();
let turn = 0;

export async function draw(root, { run, settings, hidden }) {
  if (!run) return;
  const mine = ++turn;
  const head = settings.head === "mean" ? 0 : settings.head;
  const names = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
  if (!root.firstChild) root.replaceChildren(h("p", { class: "muted", textContent: "Asking…" }));
  const curves = await Promise.all(
    names.map((name) => curve(name, run, head).catch((error) => ({ error: error.message }))),
  );
  if (mine !== turn) return;
  const drawn = names.filter((_, i) => !curves[i].error);
  const failed = names.map((name, i) => curves[i].error && `${name}: ${curves[i].error}`).filter(Boolean);
  const plot = h("div", { class: "plot" });
  root.replaceChildren(
    h("p", {
      class: "lead",
      textContent: `Give every position the same vector, all ones: content no longer matters, and what is left of ${headWords(head)}'s scores is position's own doing. The curves show the score at each distance less that at distance 0, for the query at position ${LENGTH - 1}.`,
    }),
    legendOf(drawn),
    plot,
    ...failed.map((text) => h("p", { class: "muted", textContent: text })),
  );
  if (drawn.length) {
    chart(plot, {
      series: drawn.map((name) => ({ name, ...curves[names.indexOf(name)] })),
      xTitle: "distance from the query back to the key",
      yTitle: "score less that at distance 0",
      label: `Position-only curves of ${drawn.join(", ")}`,
    });
  }
}

async function curve(name, run, head) {
  const [id] = name.split("@");
  const given = { queries: LENGTH, view: "similarity", causal: run.causal };
  if (run.settings.model === "identity") Object.assign(given, { heads: run.heads, width: run.heads * run.headDim });
  else given.model = run.settings.model;
  for (const [key, value] of Object.entries(run.settings.parameters)) {
    if (key.slice(0, key.lastIndexOf(".")) === name) given[key.slice(key.lastIndexOf(".") + 1)] = value;
  }
  const path = `encodings/${id}/positions?${new URLSearchParams(given)}`;
  if (!known.has(path)) {
    const { buffer } = await ask(path, { accept: SAFETENSORS });
    const { shape, data } = read(buffer).arrays.get("similarity");
    // The last row of each head is all that is drawn.
    const rows = Array.from({ length: shape[0] }, (_, i) =>
      data.slice((i + 1) * shape[1] * shape[2] - shape[2], (i + 1) * shape[1] * shape[2]),
    );
    if (known.size > 64) known.clear();
    known.set(path, rows);
  }
  const row = known.get(path)[head];
  const xs = Array.from(row, (_, distance) => distance);
  return { xs, ys: xs.map((distance) => row[LENGTH - 1 - distance] - row[LENGTH - 1]) };
}
