/**
 * From a matrix to the numbers of the cells that are drawn: a window of it, on a scale, and where the window has more
 * cells than there are pixels, the largest of each block. A mean would hide single cells.
 */

export const HIDDEN = -Infinity; // no key of the cell is seen
// NaN is a cell in which some visible number is not finite.

const FLOOR = 1e-6;

/** For each scale: how row `q` of `matrix`, from key `k0` to `k1`, is written to `line`. `n` is how many keys it sees. */
export const PROJECTIONS = {
  shared(matrix, at, line) {
    for (let i = 0; i < line.length; i++) line[i] = matrix[at + i];
  },
  row(matrix, at, line, n, largest) {
    for (let i = 0; i < line.length; i++) line[i] = largest > 0 ? matrix[at + i] / largest : 0 * matrix[at + i];
  },
  log(matrix, at, line) {
    for (let i = 0; i < line.length; i++) {
      const value = matrix[at + i];
      line[i] = value > FLOOR ? Math.log10(value) : value === value ? -6 : NaN;
    }
  },
  lift(matrix, at, line, n) {
    const least = FLOOR * n;
    for (let i = 0; i < line.length; i++) {
      const value = matrix[at + i] * n;
      line[i] = Math.log2(value < least ? least : value);
    }
  },
};

/**
 * @typedef {{q0: number, k0: number, q1: number, k1: number}} Window rows q0 to q1 and columns k0 to k1, ends excluded
 * @typedef {{high: number, wide: number, numbers: Float32Array}} Cells
 */

/**
 * @param {Float32Array} matrix [queries * keys]
 * @param {import("./mask.js").Mask} mask
 * @param {Window} window
 * @param {{high: number, wide: number}} most cells at most, down and across
 * @param {{kind?: string, minus?: Float32Array|null, magnitude?: boolean}} how the scale's name, a matrix to subtract, and
 * whether the number farthest from 0 stands for its block, not the largest
 * @returns {Cells}
 */
export function project(matrix, mask, window, most, { kind = "shared", minus = null, magnitude = false } = {}) {
  const { keys } = mask;
  const rows = window.q1 - window.q0;
  const columns = window.k1 - window.k0;
  const high = Math.max(1, Math.min(rows, Math.floor(most.high)));
  const wide = Math.max(1, Math.min(columns, Math.floor(most.wide)));
  const numbers = new Float32Array(high * wide).fill(HIDDEN);
  const line = new Float32Array(columns);
  const column = Int32Array.from({ length: columns }, (_, k) => Math.min(wide - 1, Math.floor((k * wide) / columns)));
  const write = PROJECTIONS[kind];
  for (let q = window.q0; q < window.q1; q++) {
    const at = q * keys + window.k0;
    if (minus) {
      for (let i = 0; i < columns; i++) line[i] = matrix[at + i] - minus[at + i];
    } else {
      write(matrix, at, line, mask.counts[q], kind === "row" ? rowLargest(matrix, mask, q) : 0);
    }
    const base = Math.min(high - 1, Math.floor(((q - window.q0) * high) / rows)) * wide;
    const { seen } = mask;
    for (let i = 0; i < columns; i++) {
      if (seen !== null && seen[at + i] === 0) continue;
      const value = line[i];
      const to = base + column[i];
      const there = numbers[to];
      if (value - value !== 0)
        numbers[to] = NaN; // not finite
      else if (there !== there) continue;
      else if (there === HIDDEN || (magnitude ? Math.abs(value) > Math.abs(there) : value > there)) numbers[to] = value;
    }
  }
  return { high, wide, numbers };
}

function rowLargest(matrix, mask, query) {
  let largest = 0;
  for (let k = 0; k < mask.keys; k++) {
    const value = matrix[query * mask.keys + k];
    if (value > largest && value < Infinity && mask.has(query, k)) largest = value;
  }
  return largest;
}
