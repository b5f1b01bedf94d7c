/** Numbers as people read them. */
import { digits } from "./scale.js";

/** 0.1732 is 17.3 %. */
export function percent(share) {
  if (!Number.isFinite(share)) return "not a number";
  const value = 100 * share;
  if (value === 0) return "0 %";
  if (value < 0.001) return `${value.toExponential(1)} %`;
  return `${value >= 99.95 ? Math.round(value) : value.toPrecision(value < 1 ? 2 : 3)} %`;
}

/** 2.31 is ×2.3. */
export function times(factor) {
  return `×${digits(Number(factor.toPrecision(2)))}`;
}

/** A token with its place, or the place alone. */
export function named(name, index) {
  return name === null || name === undefined ? String(index) : `${name} (${index})`;
}
