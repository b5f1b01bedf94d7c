/** The cell under the crosshair, under every encoding. */
import { dashed } from "./identity.js";
import { find, h, refill } from "./dom.js";
import { rank, rowOf, timesUniform, topKeys } from "./metrics.js";
import { digits } from "./scale.js";
import { named, percent, times } from "./words.js";

const TOP = 8;
const MOST_READ = 48; // tokens that are shown as a text

export function inspector(store, act) {
  const root = find("inspector-body");
  store.on(["run", "settings", "hover", "details", "hidden", "locked"], (state) => {
    const { run, hover, settings, hidden, locked } = state;
    const cell = hover ?? settings.cell;
    if (!run || !cell || cell.q >= run.queries || cell.k >= run.keys) {
      root.replaceChildren(h("p", { class: "muted", textContent: "Point at a cell." }));
      return;
    }
    const shown = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
    refill(root, heading(run, cell, settings, locked, act), ...shown.map((name) => block(state, name, cell, act)));
  });
}

function heading(run, { q, k }, { head }, locked, act) {
  const part = (word, name, index) =>
    h(
      "div",
      { class: `part ${word}` },
      h("span", { textContent: word }),
      h("strong", { textContent: named(name, index), title: name ?? "" }),
    );
  return h(
    "div",
    { class: "cell-heading" },
    h(
      "div",
      { class: "parts" },
      part("query", run.query(q), q),
      h("span", { class: "arrow", "aria-hidden": "true", textContent: "→" }),
      part("key", run.key(k), k),
    ),
    h(
      "p",
      { class: "muted" },
      head === "mean" ? "mean of all heads" : `head ${head}`,
      ` · sees ${run.mask.counts[q]} ${run.mask.counts[q] === 1 ? "key" : "keys"} · `,
      h("button", {
        type: "button",
        class: "link",
        textContent: locked ? "free (Esc)" : "lock",
        on: { click: () => act.toggleLock() },
      }),
    ),
  );
}

function block({ run, settings, details }, name, { q, k }, act) {
  const result = run.result(name);
  const row = rowOf(run.matrix(result, settings.head), q, run.keys);
  const mine =
    details && details.run === run && details.row === q && details.head === settings.head ? details.of.get(name) : null;
  const scores = run.matrix(result, settings.head, "scores");
  const score = mine ? mine.scores[k] : scores ? scores[q * run.keys + k] : null;
  const visible = run.mask.has(q, k);
  const place = rank(row, k, run.mask, q);
  const facts = visible
    ? [
        ["A", percent(row[k])],
        ["S", score === null ? "…" : digits(score)],
        ["rank", place === null ? "none" : `${place}/${run.mask.counts[q]}`],
        ["uniform", times(timesUniform(row[k], run.mask.counts[q]))],
      ]
    : [["A", "masked"]];
  const titles = {
    A: "attention weight",
    S: "score before mask and softmax",
    rank: "among the keys that this query sees",
    uniform: "times the share of equal weights",
  };
  const failed = details?.error && details.row === q && details.run === run ? details.error : null;
  return h(
    "section",
    { class: "inspected", data: { name } },
    h("h4", {}, dashed(name), name),
    h(
      "dl",
      { class: "facts" },
      ...facts.map(([term, text]) =>
        h("div", { title: titles[term] }, h("dt", { textContent: term }), h("dd", { textContent: text })),
      ),
    ),
    mine && settings.head !== "mean" ? terms(mine, k) : null,
    failed && h("p", { class: "muted", textContent: `Its terms could not be had: ${failed}` }),
    sentence(run, row, q, k),
    bars(run, row, q, k, act),
  );
}

/** The tokens in their order, each as dark as its weight: what the query reads. Only where they are few. */
function sentence(run, row, q, k) {
  if (!run.keyNames || run.keys > MOST_READ) return null;
  const visible = row.filter((weight, key) => run.mask.has(q, key) && Number.isFinite(weight));
  const most = Math.max(1e-9, ...visible);
  return h(
    "p",
    { class: "sentence", "aria-hidden": "true" },
    ...run.keyNames.flatMap((name, key) => {
      const seen = run.mask.has(q, key) && Number.isFinite(row[key]);
      const word = h("span", {
        class: `${key === k ? "looked-at" : ""} ${key === q && run.queryNames ? "looks" : ""} ${seen ? "" : "unseen"}`,
        textContent: name,
      });
      if (seen)
        word.style.backgroundColor = `color-mix(in srgb, var(--heat) ${Math.round((100 * row[key]) / most)}%, transparent)`;
      return [word, " "];
    }),
  );
}

/** The keys of the row that weigh most, and the one that is looked at. */
function bars(run, row, q, k, act) {
  const keys = topKeys(row, TOP, run.mask, q);
  const most = keys.length ? row[keys[0]] : 1;
  return h(
    "ol",
    { class: "bars", "aria-label": "The keys that weigh most" },
    ...keys.map((key) => {
      const bar = h("span", { class: "bar" });
      bar.style.width = `${most > 0 ? (100 * row[key]) / most : 0}%`;
      return h(
        "li",
        { class: key === k ? "chosen" : "" },
        h(
          "button",
          {
            type: "button",
            class: "bar-row",
            title: "Look at this key",
            on: { click: () => act.setCell({ q, k: key }) },
          },
          h("span", { class: "name", textContent: named(run.key(key), key), title: run.key(key) ?? "" }),
          h("span", { class: "track" }, bar),
          h("span", { class: "value", textContent: percent(row[key]) }),
        ),
      );
    }),
  );
}

/** What the score is the sum of. */
function terms({ scores, terms: all }, k) {
  if (all.length < 2) return null;
  const most = Math.max(1e-9, ...all.map(([, values]) => Math.abs(values[k])));
  return h(
    "ul",
    { class: "terms", "aria-label": `Terms of the score ${digits(scores[k])}` },
    ...all.map(([name, values]) => {
      const value = values[k];
      const bar = h("span", { class: value < 0 ? "bar below" : "bar above" });
      bar.style.width = `${(50 * Math.abs(value)) / most}%`;
      return h(
        "li",
        {},
        h("span", { class: "name", textContent: name, title: name }),
        h("span", { class: "track" }, bar),
        h("span", { class: "value", textContent: `${value >= 0 ? "+" : ""}${digits(value)}` }),
      );
    }),
  );
}
