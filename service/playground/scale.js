/** Which colour a number has, and what the legend says of it. */
import { CENTRE, TABLES } from "./tables.js";

const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const COLOURS = Object.fromEntries(Object.entries(TABLES).map(([name, text]) => [name, bytes(text)]));
export const MAPS = ["viridis", "cividis", "grey"];

export const KINDS = {
  shared: {
    title: "Shared",
    unit: "attention weight",
    about: "one scale for every panel: the same weight has the same colour everywhere",
  },
  row: {
    title: "Per row",
    unit: "weight / largest weight of its row",
    about: "each row's largest weight is 1: who comes first, whatever the share",
  },
  log: {
    title: "Logarithmic",
    unit: "attention weight, logarithmic",
    about: "every factor of ten is as wide as the next: small weights come out",
  },
  lift: {
    title: "Times uniform",
    unit: "weight / uniform weight",
    about: "against a row that gives each key it sees the same: fair where a mask makes late rows thin",
  },
  logits: {
    title: "Logits",
    unit: "score less its row's mean",
    about: "before the softmax, which ignores what a whole row shares",
  },
};

/** @typedef {{kind: string, table: Uint8Array, signed: boolean, low: number, high: number, unit: string}} Scale */

/** @returns {Scale} */
export function sequential(kind, low, high, map = "viridis", unit = KINDS[kind].unit) {
  return { kind, table: COLOURS[map], signed: false, low, high, unit };
}

/** @returns {Scale} from -limit to limit, white at 0 */
export function diverging(kind, limit, unit) {
  return { kind, table: COLOURS.signed, signed: true, low: -limit, high: limit, unit };
}

/** The entry of the table for a finite number; one beyond the scale has the colour of its end. */
export function entry(scale, value) {
  if (scale.signed) return CENTRE + Math.round(Math.max(-1, Math.min(1, value / scale.high)) * (CENTRE - 1));
  return Math.max(0, Math.min(255, Math.floor(((value - scale.low) / (scale.high - scale.low)) * 256)));
}

/** @returns {[number, number, number]} */
export function colour(scale, value) {
  const at = 3 * entry(scale, value);
  return [scale.table[at], scale.table[at + 1], scale.table[at + 2]];
}

/** The least of 1, 2, 5 x 10^k that is not below `value`; 1 where there is nothing to show. */
export function roundedUp(value) {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value) + 1e-12);
  const factor = [1, 2, 5, 10].find((one) => one * power >= value * (1 - 1e-9));
  return Number((factor * power).toPrecision(1));
}

/** What `share` of the finite, visible numbers do not exceed, from up to `most` of them spread evenly. */
export function quantile(matrices, mask, share, most = 200_000) {
  const cells = mask.queries * mask.keys;
  const total = matrices.reduce((sum, matrix) => sum + matrix.length, 0);
  let step = Math.max(1, Math.floor(total / most));
  if (step > 1) while (mask.keys % step === 0 || step % 2 === 0) step++; // or it would meet the same columns in each row
  const found = [];
  for (const matrix of matrices) {
    for (let i = 0; i < matrix.length; i += step) {
      const value = matrix[i];
      if (Number.isFinite(value) && (!mask.seen || mask.seen[i % cells])) found.push(Math.abs(value));
    }
  }
  const sorted = Float64Array.from(found).sort();
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : 0;
}

/** How many finite numbers of the cells lie beyond the scale. */
export function clipped(scale, numbers) {
  let count = 0;
  const high = scale.high * (1 + 1e-6);
  const low = scale.signed ? -high : -Infinity;
  for (let i = 0; i < numbers.length; i++)
    if (numbers[i] < Infinity && (numbers[i] > high || (numbers[i] < low && numbers[i] > -Infinity))) count++;
  return count;
}

/** Where the legend has numbers: [value, text], the bounds first and last. */
export function ticks(scale) {
  if (scale.kind === "log") {
    const steps = [];
    for (let power = scale.low; power <= scale.high + 1e-9; power++)
      steps.push([power, power >= -2 ? String(10 ** power) : `1e${power}`]);
    return steps;
  }
  if (scale.kind === "lift") {
    const most = Math.round(scale.high);
    const step = Math.max(1, Math.ceil(most / 4));
    const steps = [];
    for (let power = -most; power <= most; power++) {
      if (power % step && Math.abs(power) !== most) continue;
      if (Math.abs(power) !== most && most - Math.abs(power) < step) continue;
      steps.push([power, power >= 0 ? `×${2 ** power}` : `÷${2 ** -power}`]);
    }
    return steps;
  }
  const count = scale.signed ? 4 : scale.high / roundedUp(scale.high / 5) > 4 ? 5 : 4;
  return Array.from({ length: count + 1 }, (_, i) => {
    const value = scale.low + ((scale.high - scale.low) * i) / count;
    return [value, digits(value)];
  });
}

/** Up to three digits, and no more zeros than needed. */
export function digits(value) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}
