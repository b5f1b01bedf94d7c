/** Which keys each query sees. */

export class Mask {
  /**
   * @param {number} queries
   * @param {number} keys
   * @param {Uint8Array|null} seen [queries * keys], 1 where a key is seen; null where all are
   */
  constructor(queries, keys, seen) {
    this.queries = queries;
    this.keys = keys;
    this.seen = seen;
    /** How many keys each query sees. */
    this.counts = new Int32Array(queries).fill(keys);
    if (seen) {
      for (let q = 0; q < queries; q++) {
        let count = 0;
        for (let k = q * keys; k < (q + 1) * keys; k++) count += seen[k];
        this.counts[q] = count;
      }
    }
  }

  /**
   * What the service masks: later keys where `causal` (by position), and those that `mask` hides.
   * @param {import("./given.js").Input} input
   * @param {boolean} causal
   */
  static of(input, causal) {
    const queries = input.queries.shape[0];
    const keys = (input.keys ?? input.queries).shape[0];
    if (!causal && !input.mask) return new Mask(queries, keys, null);
    const seen = new Uint8Array(queries * keys);
    const at = (i) => (input.positions ? input.positions[i] : i);
    const flat = input.mask?.shape.length === 1;
    for (let q = 0; q < queries; q++) {
      for (let k = 0; k < keys; k++) {
        const allowed = !input.mask || input.mask.data[flat ? k : q * keys + k];
        seen[q * keys + k] = allowed && (!causal || at(k) <= at(q)) ? 1 : 0;
      }
    }
    return new Mask(queries, keys, seen);
  }

  has(query, key) {
    return !this.seen || this.seen[query * this.keys + key] === 1;
  }
}
