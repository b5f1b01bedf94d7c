/** The tab on position's own doing: the service's probes of the input that is shown. */
import { ask } from "./api.js";
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { dashed } from "./identity.js";
import { headWords, legendOf } from "./profiles.js";
import { body, question } from "./question.js";
import { digits } from "./scale.js";
import { percent } from "./words.js";

export const needs = ["run", "settings", "hidden", "size", "theme"];
const PROBES = ["position_only", "position_share", "shift_gap", "order_gap"];
const OFFSETS = [16, 1024];
const known = new WeakMap(); // of each run, what was asked
let turn = 0;

export async function draw(root, { run, settings, hidden }) {
  if (!run) return;
  const mine = ++turn;
  if (!known.has(run)) {
    root.replaceChildren(h("p", { class: "muted", textContent: "Probing…" }));
    known.set(run, probed(run));
  }
  const answer = await known.get(run).catch((error) => ({ error }));
  if (mine !== turn) return;
  if (answer.error) {
    known.delete(run);
    root.replaceChildren(
      h("p", { class: "muted", textContent: `The probes could not be had: ${answer.error.message}` }),
      h("button", {
        type: "button",
        class: "plain",
        textContent: "Try again",
        on: { click: () => draw(root, { run, settings, hidden }) },
      }),
    );
    return;
  }
  const shown = answer.results.filter(({ name }) => settings.encodings.includes(name) && !hidden.has(name));
  shown.sort((a, b) => settings.encodings.indexOf(a.name) - settings.encodings.indexOf(b.name));
  const alone = shown.filter(({ probes }) => !probes.position_only.reason);
  const plot = h("div", { class: "plot" });
  root.replaceChildren(
    h("p", {
      class: "lead",
      textContent: `Give every position the same vector, as large as the input's: content no longer matters, and what is left of ${headWords(settings.head)}'s scores is position's own doing. The curves show the mean score at each distance less that at 0.`,
    }),
    legendOf(alone.map(({ name }) => name)),
    plot,
    table(answer, shown, settings.head),
  );
  if (alone.length) chart(plot, curves(alone, settings.head));
}

async function probed(run) {
  const asked = question(run.settings, { probe: PROBES.join(","), offsets: OFFSETS.join(",") });
  const { buffer } = await ask(`attention/probe?${asked}`, body(run.input));
  return JSON.parse(new TextDecoder().decode(buffer));
}

function curves(alone, head) {
  const series = alone.map(({ name, probes }) => ({
    name,
    xs: probes.position_only.distances,
    ys: ofHead(probes.position_only.curve, head),
  }));
  return {
    series,
    xTitle: "distance: query position less key position",
    yTitle: "score less that at distance 0",
    label: `Position-only curves of ${series.map(({ name }) => name).join(", ")}`,
  };
}

/** The numbers of one head, or the mean of all. */
function ofHead(rows, head) {
  if (head !== "mean") return rows[head];
  if (!Array.isArray(rows[0])) return rows.reduce((sum, value) => sum + value, 0) / rows.length;
  return rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
}

/** What distance explains, and what moves attention. */
function table({ probes }, shown, head) {
  const column = (text, definition) => h("th", { scope: "col", textContent: text, title: definition });
  const cell = (text, title = "") => h("td", { textContent: text, title });
  const reasoned = (found, make) => (found.reason ? cell("–", found.reason) : make(found));
  const gap = (found) =>
    reasoned(found, ({ jsd, identical }) => {
      const value = ofHead(jsd.mean, head);
      const same = head === "mean" ? identical?.every(Boolean) : identical?.[head];
      return cell(value === null ? "–" : same ? "0" : `${digits(Number(value.toPrecision(2)))} bits`);
    });
  return h(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Probes" },
    h(
      "table",
      { class: "probes" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col", textContent: "encoding" }),
          column("share of the scores that distance explains", probes.position_share.definition),
          column("by chance", probes.position_share.definition),
          ...OFFSETS.map((offset) =>
            column(`moves when all positions grow by ${offset.toLocaleString("en")}`, probes.shift_gap.definition),
          ),
          column("moves when tokens change places", probes.order_gap.definition),
        ),
      ),
      h(
        "tbody",
        {},
        ...shown.map(({ name, probes: found }) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, dashed(name), ` ${name}`),
            reasoned(found.position_share, ({ share }) => cell(percent(ofHead(share, head)))),
            reasoned(found.position_share, ({ chance }) => cell(percent(ofHead(chance, head)))),
            ...OFFSETS.map((_, i) => reasoned(found.shift_gap, ({ offsets }) => gap(offsets[i]))),
            gap(found.order_gap),
          ),
        ),
      ),
    ),
  );
}
