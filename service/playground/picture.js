/** What is drawn of a run: each panel's matrix, and the scales. */
import { rowCentred } from "./metrics.js";
import { diverging, KINDS, quantile, roundedUp, sequential } from "./scale.js";

const SHARE = 0.995; // of the numbers, which the scale spans unless it is pinned; the rest is clipped

/**
 * @typedef {object} Panel
 * @property {Float32Array} matrix
 * @property {{kind: string, minus: Float32Array|null, magnitude: boolean}} how as `project` takes it
 * @property {import("./scale.js").Scale} scale
 * @property {boolean} reference
 */

const kept = new WeakMap(); // of each run, what was worked out for it

function once(run, key, make) {
  if (!kept.has(run)) kept.set(run, new Map());
  const known = kept.get(run);
  if (!known.has(key)) known.set(key, make());
  return known.get(key);
}

/** The matrix that a scale is of: weights, or centred scores. Null where the run has none. */
export function shown(run, result, head, kind) {
  if (kind !== "logits") return run.matrix(result, head);
  const scores = run.matrix(result, head, "scores");
  return scores && once(run, `centred ${result.name} ${head}`, () => rowCentred(scores, run.mask));
}

/** The name of the encoding that others are compared with. */
export function referenceOf(run, settings) {
  return run.result(settings.reference) ? settings.reference : run.results[0].name;
}

/**
 * @param {import("./runner.js").Run} run
 * @param {object} settings
 * @param {number|"mean"} head
 * @returns {{scales: import("./scale.js").Scale[], panel: (name: string) => Panel}}
 */
export function pictureOf(run, settings, head = settings.head) {
  const { view, map, vmax } = settings;
  const kind = settings.scale === "logits" && !run.results.every((one) => one.scores) ? "shared" : settings.scale;
  const diff = view === "diff" && run.results.length > 1;
  const reference = run.result(referenceOf(run, settings));
  const plainKind = diff && kind !== "logits" ? "shared" : kind;
  const plain = plainScale(run, plainKind, settings.head, map, diff ? null : vmax);
  const difference = diff ? differenceScale(run, reference, kind, settings.head, vmax) : null;
  return {
    kind,
    diff,
    reference: reference.name,
    scales: difference ? [difference, plain] : [plain],
    panel(name) {
      const result = run.result(name);
      const compared = diff && result !== reference;
      return {
        matrix: shown(run, result, head, kind),
        how: {
          kind: plainKind === "logits" || compared ? "shared" : plainKind,
          minus: compared ? shown(run, reference, head, kind) : null,
          magnitude: compared || kind === "logits",
        },
        scale: compared ? difference : plain,
        reference: result === reference,
      };
    },
  };
}

function plainScale(run, kind, head, map, vmax) {
  switch (kind) {
    case "row":
      return sequential("row", 0, 1, map);
    case "log":
      return sequential("log", -6, 0, map);
    case "lift": {
      const most = vmax ? Math.log2(vmax) : once(run, "lift", () => liftLimit(run));
      return diverging("lift", Math.max(1, most), KINDS.lift.unit);
    }
    case "logits":
      return diverging(
        "logits",
        vmax ??
          once(run, `logits ${head}`, () =>
            limit(
              run,
              run.results.map((one) => shown(run, one, head, kind)),
            ),
          ),
        KINDS.logits.unit,
      );
    default:
      return sequential(
        "shared",
        0,
        vmax ??
          Math.min(
            1,
            once(run, "shared", () =>
              limit(
                run,
                run.results.map((one) => one.weights),
              ),
            ),
          ),
        map,
      );
  }
}

function differenceScale(run, reference, kind, head, vmax) {
  const unit = `${kind === "logits" ? "logit" : "weight"} less ${reference.name}'s`;
  const found =
    vmax ??
    once(run, `diff ${reference.name} ${kind} ${head}`, () => {
      const own = shown(run, reference, head, kind);
      return limit(
        run,
        run.results
          .filter((one) => one !== reference)
          .map((one) => shown(run, one, head, kind).map((value, i) => value - own[i])),
      );
    });
  return diverging("diff", found, unit);
}

function limit(run, matrices) {
  return roundedUp(quantile(matrices, run.mask, SHARE));
}

/** The power of two that nearly all weights stay below, as multiples of the uniform share. */
function liftLimit(run) {
  const { counts, keys, queries } = run.mask;
  const lifted = run.results.map((one) => {
    const step = Math.max(1, Math.floor(one.weights.length / 65536)) | 1;
    const found = new Float32Array(Math.ceil(one.weights.length / step));
    for (let i = 0, at = 0; i < one.weights.length; i += step)
      found[at++] = one.weights[i] * counts[Math.floor(i / keys) % queries];
    return found;
  });
  const largest = quantile(lifted, { queries: 1, keys: 1, seen: null }, SHARE);
  return Math.max(1, Math.ceil(Math.log2(Math.max(largest, 1)) - 1e-6));
}
