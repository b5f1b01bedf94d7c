/** The tab with the numbers themselves: the text alternative of a matrix. */
import { h, option, refill } from "./dom.js";
import { shown } from "./picture.js";
import { digits } from "./scale.js";
import { named } from "./words.js";
import { whole } from "./figure.js";

export const needs = ["run", "settings", "hidden"];
export const MOST = 32;
let chosen = null;

export function draw(root, state) {
  const { run, settings, hidden } = state;
  if (!run) return;
  const names = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
  if (!names.length) return;
  if (!names.includes(chosen)) [chosen] = names;
  const kind = settings.scale === "logits" && run.result(chosen).scores ? "logits" : "weights";
  const matrix = shown(run, run.result(chosen), settings.head, kind);
  const { q0, k0, q1, k1 } = around(settings.zoom ?? whole(run), settings.cell);
  const keys = range(k0, k1);
  const text = (q, k) =>
    !run.mask.has(q, k)
      ? "masked"
      : Number.isFinite(matrix[q * run.keys + k])
        ? digits(Number(matrix[q * run.keys + k].toPrecision(3)))
        : "not a number";
  const { cell } = settings;
  refill(
    root,
    h(
      "div",
      { class: "tab-head" },
      h("p", {
        class: "lead",
        textContent: `${kind === "logits" ? "Row-centred scores" : "Weights"} of queries ${q0} to ${q1 - 1} and keys ${k0} to ${k1 - 1}${run.queries > MOST || run.keys > MOST ? `, at most ${MOST} of each: zoom or move the cell for others` : ""}.`,
      }),
      h(
        "label",
        {},
        "Encoding ",
        h(
          "select",
          {
            on: {
              change: (event) => {
                chosen = event.target.value;
                draw(root, state);
              },
            },
          },
          ...names.map((name) => option(name, name, name === chosen)),
        ),
      ),
    ),
    h(
      "div",
      { class: "scroll tall", tabIndex: 0, role: "region", "aria-label": `Numbers of ${chosen}` },
      h(
        "table",
        { class: "cells-table" },
        h("caption", { class: "visually-hidden", textContent: `${chosen}: queries down, keys across` }),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("td", { textContent: "query \\ key" }),
            ...keys.map((k) => h("th", { scope: "col", textContent: named(run.key(k), k) })),
          ),
        ),
        h(
          "tbody",
          {},
          ...range(q0, q1).map((q) =>
            h(
              "tr",
              {},
              h("th", { scope: "row", textContent: named(run.query(q), q) }),
              ...keys.map((k) =>
                h("td", { class: cell?.q === q && cell?.k === k ? "current" : "", textContent: text(q, k) }),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

/** At most 32 rows and columns of the window, with the cell among them where it can be. */
export function around({ q0, k0, q1, k1 }, cell) {
  const side = (low, high, at) => {
    if (high - low <= MOST) return [low, high];
    const start = Math.max(low, Math.min(high - MOST, (at ?? low) - MOST / 2));
    return [start, start + MOST];
  };
  const [a, b] = side(q0, q1, cell?.q);
  const [c, d] = side(k0, k1, cell?.k);
  return { q0: a, k0: c, q1: b, k1: d };
}

const range = (low, high) => Array.from({ length: high - low }, (_, i) => low + i);
