/** Numbers of rows and cells. What a whole matrix is like, and how two compare, the service says. */

/** The row of one query: a view. */
export function rowOf(matrix, query, keys) {
  return matrix.subarray(query * keys, (query + 1) * keys);
}

/** 1 for the largest visible weight; of equal ones the first key comes first. Null where the key is not seen. */
export function rank(row, key, mask, query) {
  const value = row[key];
  if (!mask.has(query, key) || !Number.isFinite(value)) return null;
  let before = 0;
  for (let k = 0; k < row.length; k++) {
    if (mask.has(query, k) && (row[k] > value || (row[k] === value && k < key))) before++;
  }
  return before + 1;
}

/** How many times the share that it would have if the query gave every key it sees the same. */
export function timesUniform(value, visible) {
  return value * visible;
}

/** The keys that weigh most, the largest first; of equal ones the first. @returns {number[]} */
export function topKeys(row, count, mask, query) {
  const kept = [];
  for (let k = 0; k < row.length; k++) {
    if (!mask.has(query, k) || Number.isNaN(row[k])) continue;
    if (kept.length === count && row[k] <= row[kept[count - 1]]) continue;
    let at = kept.length;
    while (at > 0 && row[kept[at - 1]] < row[k]) at--;
    kept.splice(at, 0, k);
    if (kept.length > count) kept.pop();
  }
  return kept;
}

/**
 * The Jensen-Shannon divergence of two matrices in bits: of each row that sees two keys or more and is finite in both,
 * then their mean. NaN where there is no such row.
 */
export function jsd(a, b, mask) {
  const { queries, keys, counts } = mask;
  let sum = 0;
  let rows = 0;
  for (let q = 0; q < queries; q++) {
    if (counts[q] < 2) continue;
    let divergence = 0;
    for (let i = q * keys; i < (q + 1) * keys; i++) {
      const p = a[i];
      const r = b[i];
      const middle = (p + r) / 2;
      if (p > 0) divergence += p * Math.log2(p / middle);
      if (r > 0) divergence += r * Math.log2(r / middle);
      if (p !== p || r !== r) divergence = NaN;
    }
    if (!Number.isFinite(divergence)) continue;
    sum += Math.min(1, Math.max(0, divergence / 2));
    rows++;
  }
  return rows ? sum / rows : NaN;
}

/** The mean of all heads. @param {Float32Array} weights [heads * cells] */
export function headMean(weights, heads) {
  const cells = weights.length / heads;
  const mean = new Float32Array(cells);
  for (let h = 0; h < heads; h++) {
    for (let i = 0; i < cells; i++) mean[i] += weights[h * cells + i];
  }
  for (let i = 0; i < cells; i++) mean[i] /= heads;
  return mean;
}

/** Scores less the mean of the keys that the query sees: what the softmax can tell apart. */
export function rowCentred(scores, mask) {
  const { queries, keys, counts } = mask;
  const centred = new Float32Array(scores.length);
  for (let q = 0; q < queries; q++) {
    let sum = 0;
    for (let k = 0; k < keys; k++) if (mask.has(q, k)) sum += scores[q * keys + k];
    const mean = sum / counts[q];
    for (let k = 0; k < keys; k++) centred[q * keys + k] = scores[q * keys + k] - mean;
  }
  return centred;
}

/** How many numbers of the visible cells are not finite. */
export function broken(matrix, mask) {
  let count = 0;
  const cells = mask.queries * mask.keys;
  for (let i = 0; i < matrix.length; i++) {
    if (!Number.isFinite(matrix[i]) && (!mask.seen || mask.seen[i % cells])) count++;
  }
  return count;
}
