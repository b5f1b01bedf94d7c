/** Lines over one axis, each told by hue, dash and a label of its own. */
import { svg } from "./dom.js";
import { DASHES, identity } from "./identity.js";
import { digits } from "./scale.js";

const MARGIN = { left: 58, right: 16, top: 14, bottom: 40 };

const DOTS = 24; // at most, of a formula, or they would hide the line that they lie on

/**
 * @param {HTMLElement} root is emptied
 * @param {{series: {name: string, xs: ArrayLike<number>, ys: ArrayLike<number>, hint?: boolean}[], papers?: Paper[], xTitle: string, yTitle: string, fromZero?: boolean, label: string}} chart
 * @typedef {{name: string, kind: "formula"|"upper bound"|"steps", xs: ArrayLike<number>, ys?: ArrayLike<number>}} Paper what a paper says
 * of a series: dots, a thin line, or marks on the axis. The axes span the series and formulas; of a bound there is what lies within.
 */
export function chart(root, { series, papers = [], xTitle, yTitle, fromZero = false, label }) {
  const width = Math.max(280, root.clientWidth);
  const height = Math.max(200, Math.min(320, width * 0.45));
  const [x0, x1] = range(series.map(({ xs }) => xs));
  const formulas = papers.filter(({ kind }) => kind === "formula");
  let [y0, y1] = range([...series, ...formulas].map(({ ys }) => ys));
  if (fromZero) y0 = Math.min(0, y0);
  if (y1 - y0 < 1e-9) y1 = y0 + 1;
  const px = (x) => MARGIN.left + ((x - x0) / Math.max(1e-9, x1 - x0)) * (width - MARGIN.left - MARGIN.right);
  const py = (y) => height - MARGIN.bottom - ((y - y0) / (y1 - y0)) * (height - MARGIN.top - MARGIN.bottom);
  const path = (xs, ys, drawn) => {
    const points = [];
    for (let i = 0, pen = "M"; i < xs.length; i++) {
      if (drawn(ys[i])) points.push(`${pen}${px(xs[i]).toFixed(1)} ${py(ys[i]).toFixed(1)}`);
      pen = drawn(ys[i]) ? "L" : "M";
    }
    return points.join("");
  };
  const picture = svg("svg", {
    class: "chart",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": label,
  });
  const text = (x, y, content, anchor, more = {}) => {
    const element = svg("text", { x, y, "text-anchor": anchor, ...more });
    element.textContent = content;
    picture.append(element);
  };
  for (const y of rounds(y0, y1, 5)) {
    picture.append(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: py(y), y2: py(y) }));
    text(MARGIN.left - 8, py(y) + 4, digits(Number(y.toPrecision(6))), "end");
  }
  for (const x of rounds(x0, x1, width / 90)) {
    picture.append(
      svg("line", { class: "grid", x1: px(x), x2: px(x), y1: height - MARGIN.bottom, y2: height - MARGIN.bottom + 5 }),
    );
    text(px(x), height - MARGIN.bottom + 18, digits(Number(x.toPrecision(6))), "middle");
  }
  text((MARGIN.left + width - MARGIN.right) / 2, height - 4, xTitle, "middle", { class: "axis-title" });
  text(14, (MARGIN.top + height - MARGIN.bottom) / 2, yTitle, "middle", {
    class: "axis-title",
    transform: `rotate(-90 14 ${(MARGIN.top + height - MARGIN.bottom) / 2})`,
  });
  for (const { name, xs, ys, hint } of series) {
    const index = identity(name);
    const line = svg("path", {
      d: path(xs, ys, Number.isFinite),
      class: hint ? "line hint" : `line hue-${index % 8}`,
      "stroke-dasharray": hint ? "1 4" : DASHES[index % DASHES.length],
    });
    picture.append(titled(line, name));
  }
  for (const { name, kind, xs, ys } of papers) {
    const hue = `hue-${identity(name) % 8}`;
    const group = titled(svg("g", { class: "paper", "data-kind": kind }), `${name}: ${kind} of the paper`);
    const add = (tag, given) => group.append(svg(tag, given));
    if (kind === "steps") {
      const foot = height - MARGIN.bottom;
      for (const x of xs) add("line", { class: `line paper-line ${hue}`, x1: px(x), x2: px(x), y1: foot, y2: foot - 9 });
    } else if (kind === "formula") {
      const step = Math.ceil(xs.length / DOTS);
      for (let i = 0; i < xs.length; i += step)
        add("circle", { class: `line paper-dot ${hue}`, cx: px(xs[i]).toFixed(1), cy: py(ys[i]).toFixed(1), r: 3 });
    } else {
      const d = path(xs, ys, (y) => y >= y0 && y <= y1);
      if (d) add("path", { class: `line paper-line ${hue}`, d, "stroke-dasharray": "1 3" });
    }
    picture.append(group);
  }
  root.replaceChildren(picture);
}

function titled(element, text) {
  const title = svg("title", {});
  title.textContent = text;
  element.append(title);
  return element;
}

function range(lists) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (let i = 0; i < list.length; i++) {
      if (list[i] < low) low = list[i];
      if (list[i] > high && list[i] < Infinity) high = list[i];
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

/** About `count` round numbers from `low` to `high`. */
function rounds(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * (1 - 1e-9));
  const answer = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) answer.push(at * step);
  return answer;
}
