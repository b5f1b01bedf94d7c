/** Which rows and columns get a label, so that none touch. */

/** The smallest of 1, 2, 5, 10, 20, ... that is not below `least`. */
export function step(least) {
  if (least <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= least - 1e-9);
}

/**
 * The indices from `first` to `last` (excluded) that are labelled where each has `size` pixels and a label needs `room`.
 * @returns {number[]} multiples of a round number
 */
export function places(first, last, size, room) {
  const every = step(room / size);
  const start = Math.ceil(first / every) * every;
  const answer = [];
  for (let index = start; index < last; index += every) answer.push(index);
  return answer;
}

/** Shortened in the middle of nothing: the beginning, and an ellipsis where it does not fit. */
export function shortened(text, width, measure) {
  if (measure(text) <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(`${text.slice(0, middle)}…`) <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}
