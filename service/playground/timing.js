/** `Server-Timing`: queue;dur=3.1, compute;dur=6.0, total;dur=12.2 */

/** @param {string|null} header @returns {Record<string, number>} milliseconds */
export function read(header) {
  const stages = {};
  for (const part of (header ?? "").split(",")) {
    const found = /^\s*([\w-]+)\s*;.*?dur=([\d.]+)/.exec(part);
    if (found) stages[found[1]] = Number(found[2]);
  }
  return stages;
}

export function milliseconds(value) {
  return value >= 1000
    ? `${(value / 1000).toFixed(1)} s`
    : value >= 10
      ? `${Math.round(value)} ms`
      : `${value.toFixed(1)} ms`;
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
