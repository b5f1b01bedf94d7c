/** The tab of the service's metrics: a line for each encoding and head. */
import { write } from "./csv.js";
import { download, h, refill } from "./dom.js";

export const needs = ["run", "settings", "hidden"];

const MEANINGS = {
  effective_keys: "exp of the entropy: how many keys share the weight",
  entropy: "in nats",
  entropy_norm: "entropy / its largest: 1 is uniform",
  max_weight: "the largest weight of a row",
  mean_distance: "in tokens",
  mean_distance_ratio: "mean distance / that of uniform rows",
  previous_token: "weight of the key before the query",
  self_token: "weight of the query's own key",
  first_token: "weight of the first key",
  sink_mass_4: "weight of the first four keys",
  alpha_0: "weight of the first key, over all rows",
  jsd: "Jensen-Shannon divergence to the reference, in bits",
  tv: "share of the weight that moved",
  w1: "how many tokens far the weight moved",
  argmax_agree: "share of rows with the same largest key",
  logit_rmse: "difference of the row-centred scores",
  logit_r: "correlation of the row-centred scores",
  frobenius_rel: "norm of the difference / norm of the reference",
  row_sum_error: "how far a row is from summing to 1",
  duplicate_token: "weight of earlier keys that are the same token",
  induction: "weight of keys that follow the same token",
};
let order = { column: null, down: false }; // none: as the panels stand

/** @returns {{columns: string[], rows: (string|number|null)[][]}} */
export function table(run, names) {
  const columns = new Set();
  const found = names.flatMap((name) => {
    const against = run.comparison?.against?.[name];
    const metrics = { ...numbers(run.result(name).summary), ...numbers(against) };
    Object.keys(metrics).forEach((key) => columns.add(key));
    return Array.from({ length: run.heads }, (_, head) => ({ name, head, metrics }));
  });
  return {
    columns: ["encoding", "head", ...columns],
    rows: found.map(({ name, head, metrics }) => [
      name,
      head,
      ...[...columns].map((key) => metrics[key]?.[head] ?? null),
    ]),
  };
}

/** One number for each head. */
function numbers(summary) {
  const answer = {};
  for (const [name, metric] of Object.entries(summary ?? {})) {
    if (metric?.mean) answer[name] = metric.mean;
  }
  return summary?.row_sum_error ? { ...answer, row_sum_error: summary.row_sum_error } : answer;
}

export function draw(root, state) {
  const { run, settings, hidden } = state;
  if (!run) return;
  const names = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
  const { columns, rows } = table(run, names);
  if (columns.length === 2) {
    root.replaceChildren(h("p", { class: "muted", textContent: "The service returned no summary for this run." }));
    return;
  }
  const at = columns.indexOf(order.column);
  const sorted = at < 0 ? rows : [...rows].sort((a, b) => compare(a[at], b[at]) * (order.down ? -1 : 1));
  const best = run.comparison?.reference;
  refill(
    root,
    h(
      "div",
      { class: "tab-head" },
      h("p", {
        class: "lead",
        textContent: `Means over the rows of each head${best ? `; from jsd on, compared with ${best}` : ""}. Select a heading to sort.`,
      }),
      h("button", {
        type: "button",
        class: "plain",
        textContent: "CSV",
        on: { click: () => download("metrics.csv", write([columns, ...rows]), "text/csv") },
      }),
    ),
    h(
      "div",
      { class: "scroll tall", tabIndex: 0, role: "region", "aria-label": "Metrics" },
      h(
        "table",
        { class: "metrics" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ...columns.map((column, i) =>
              h(
                "th",
                {
                  scope: "col",
                  "aria-sort": i === at ? (order.down ? "descending" : "ascending") : "none",
                  title: MEANINGS[column] ?? "",
                },
                h("button", {
                  type: "button",
                  textContent: column.replaceAll("_", " "),
                  on: {
                    click: () => {
                      order = { column, down: order.column === column ? !order.down : i > 1 };
                      draw(root, state);
                    },
                  },
                }),
              ),
            ),
          ),
        ),
        h(
          "tbody",
          {},
          ...sorted.map((row) =>
            h(
              "tr",
              { class: row[1] === settings.head ? "current" : "" },
              ...row.map((value, i) =>
                i === 0
                  ? h("th", { scope: "row", textContent: value })
                  : h("td", { textContent: i === 1 ? String(value) : value === null ? "–" : value.toPrecision(3) }),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function compare(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? -1 : 1;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}
