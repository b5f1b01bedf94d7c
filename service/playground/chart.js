/** Lines over one axis, each told by hue, dash and a label of its own. */
import { svg } from "./dom.js";
import { DASHES, identity } from "./identity.js";
import { digits } from "./scale.js";

const MARGIN = { left: 58, right: 16, top: 14, bottom: 40 };

/**
 * @param {HTMLElement} root is emptied
 * @param {{series: {name: string, xs: ArrayLike<number>, ys: ArrayLike<number>, hint?: boolean}[], xTitle: string, yTitle: string, fromZero?: boolean, label: string}} chart
 */
export function chart(root, { series, xTitle, yTitle, fromZero = false, label }) {
  const width = Math.max(280, root.clientWidth);
  const height = Math.max(200, Math.min(320, width * 0.45));
  const [x0, x1] = range(series.map(({ xs }) => xs));
  let [y0, y1] = range(series.map(({ ys }) => ys));
  if (fromZero) y0 = Math.min(0, y0);
  if (y1 - y0 < 1e-9) y1 = y0 + 1;
  const px = (x) => MARGIN.left + ((x - x0) / Math.max(1e-9, x1 - x0)) * (width - MARGIN.left - MARGIN.right);
  const py = (y) => height - MARGIN.bottom - ((y - y0) / (y1 - y0)) * (height - MARGIN.top - MARGIN.bottom);
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
    const points = [];
    let pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (!Number.isFinite(ys[i])) {
        pen = "M";
        continue;
      }
      points.push(`${pen}${px(xs[i]).toFixed(1)} ${py(ys[i]).toFixed(1)}`);
      pen = "L";
    }
    const line = svg("path", {
      d: points.join(""),
      class: hint ? "line hint" : `line hue-${index % 8}`,
      "stroke-dasharray": hint ? "1 4" : DASHES[index % DASHES.length],
    });
    const title = svg("title", {});
    title.textContent = name;
    line.append(title);
    picture.append(line);
  }
  root.replaceChildren(picture);
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
