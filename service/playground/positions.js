/** The tab on position's own doing: the service's probes of the input that is shown. */
import { ask } from "./api.js";
import { chart } from "./chart.js";
import { decode } from "./decode.js";
import { h } from "./dom.js";
import { dashed } from "./identity.js";
import { headWords, legendOf, ofHead } from "./profiles.js";
import { alike, body, query, question, SAFETENSORS } from "./question.js";
import { profileOf } from "./runner.js";
import { digits } from "./scale.js";
import { percent } from "./words.js";

export const needs = ["run", "settings", "hidden", "size", "theme"];
const PROBES = ["position_only", "position_share", "shift_gap", "order_gap"];
const OFFSETS = [16, 1024];
const known = new WeakMap(); // of each run, what was asked
let turn = 0;

export async function draw(root, { run, settings, hidden, models }) {
  if (!run) return;
  const mine = ++turn;
  if (!known.has(run)) {
    root.replaceChildren(h("p", { class: "muted", textContent: "Probing…" }));
    const width = models.find(({ name }) => name === run.settings.model)?.width;
    known.set(run, probed(run, width));
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
        on: { click: () => draw(root, { run, settings, hidden, models }) },
      }),
    );
    return;
  }
  const shown = answer.results.filter(({ name }) => settings.encodings.includes(name) && !hidden.has(name));
  shown.sort((a, b) => settings.encodings.indexOf(a.name) - settings.encodings.indexOf(b.name));
  const alone = shown.filter(({ probes }) => !probes.position_only.reason);
  const weighed = shown.filter(({ name }) => answer.weights.get(name));
  const [scores, weights] = [h("div", { class: "plot" }), h("div", { class: "plot" })];
  const { papers, about } = papersOf(alone, settings.head);
  root.replaceChildren(
    h("p", {
      class: "lead",
      textContent: `Give every position the same vector, as large as the input's: content no longer matters, and what is left of what ${headWords(settings.head)} does is position's own doing. The dotted grey line is what equal weights would give.`,
    }),
    legendOf(shown.map(({ name }) => name)),
    h(
      "div",
      { class: "plots" },
      h("div", {}, h("h3", { textContent: "Scores: the mean at each distance less that at 0" }), scores),
      h("div", {}, h("h3", { textContent: "Weights: the share that goes to each distance" }), weights),
    ),
    about.length ? h("ul", { class: "papers" }, ...about) : "",
    table(answer, shown, settings.head),
  );
  if (alone.length) chart(scores, { ...curves(alone, settings.head), papers });
  if (weighed.length) chart(weights, profiles(weighed, answer.weights, settings.head));
}

/** What the probes find; as `weights`, by encoding, the profile of the attention that equal tokens pay. */
async function probed(run, width) {
  const asked = question(run.settings, { probe: PROBES.join(","), offsets: OFFSETS.join(",") });
  const { buffer } = await ask(`attention/probe?${asked}`, body(run.input));
  const found = JSON.parse(new TextDecoder().decode(buffer));
  const same = alike(run.input, width, run.queries, found.probes.position_only.component);
  const path = `attention?${query(run.settings, { returns: ["summary"], metrics: ["distance_profile"] })}`;
  const { arrays } = await decode((await ask(path, { ...body(same), accept: SAFETENSORS })).buffer);
  return { ...found, weights: new Map(found.results.map(({ name }) => [name, profileOf(name, arrays)])) };
}

/** What papers say of the curves, drawn and in words. A bound that lies above all curves is in words alone. */
function papersOf(alone, head) {
  const said = alone.flatMap(({ name, probes }) =>
    probes.position_only.references.map((reference) => ({ name, distances: probes.position_only.distances, reference })),
  );
  const papers = said.map(({ name, distances, reference }) => ({
    name,
    kind: reference.kind,
    xs: reference.distances ?? distances,
    ys: reference.values && ofHead(reference.values, head),
  }));
  const WAYS = { formula: "dots", "upper bound": "thin line", steps: "marks on the axis" };
  const highest = Math.max(...alone.flatMap(({ probes }) => ofHead(probes.position_only.curve, head)));
  const about = said.map(({ name, reference }, i) => {
    const { kind, ys } = papers[i];
    const least = ys ? Math.min(...ys) : -Infinity;
    const above = kind === "upper bound" && least > highest;
    const where = above ? `above the picture, at ${digits(least)} and more` : WAYS[kind];
    return h(
      "li",
      { title: reference.label },
      h("span", {}, dashed(name)),
      h("span", {}, `${reference.name} (${kind}; ${where}): ${reference.label.split(/[;:]/)[0]}`),
    );
  });
  return { papers, about };
}

function profiles(shown, weights, head) {
  const [first] = shown.map(({ name }) => weights.get(name));
  return {
    series: [
      { name: "uniform", xs: first.distances, ys: ofHead(first.uniform, head), hint: true },
      ...shown.map(({ name }) => {
        const { distances, weights: rows } = weights.get(name);
        return { name, xs: distances, ys: ofHead(rows, head) };
      }),
    ],
    xTitle: "distance: query position less key position",
    yTitle: "share of the weight",
    fromZero: true,
    label: `Position-only distance profiles of ${shown.map(({ name }) => name).join(", ")}`,
  };
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
    yTitle: "score",
    label: `Position-only curves of ${series.map(({ name }) => name).join(", ")}`,
  };
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
            h("th", { scope: "row" }, h("span", {}, dashed(name), name)),
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
