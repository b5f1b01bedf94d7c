/** The settings that a link holds: `#v=1&preset=sentence&enc=rope,alibi&h=3`. Own data is never among them. */
import { KINDS, MAPS } from "./scale.js";

/** @typedef {{name: string, encoding: string, label: string|null, parameters: Record<string, string>}} Variant */

export const DEFAULTS = Object.freeze({
  model: "identity",
  preset: "sentence",
  n: null,
  d: null,
  seed: null,
  heads: null,
  encodings: ["none", "rope", "alibi", "sinusoidal"],
  reference: null,
  head: 0,
  causal: false,
  view: "weights",
  scale: "shared",
  map: "viridis",
  vmax: null,
  cell: null,
  zoom: null,
  tab: "distance",
});
export const TABS = ["distance", "positions", "pairs", "metrics", "table", "about"];
export const MOST_ENCODINGS = 12;

const NAME = /^[a-z][a-z0-9-]*(@[A-Za-z0-9_-]{1,32})?$/;
const whole = (text, least = 0) => (/^\d{1,10}$/.test(text) && Number(text) >= least ? Number(text) : undefined);
const positive = (text) => (Number(text) > 0 && Number.isFinite(Number(text)) ? Number(text) : undefined);
const among = (allowed) => (text) => (allowed.includes(text) ? text : undefined);

/** For each key: the setting, how it is read (undefined where it is not valid) and how it is written. */
const KEYS = {
  model: ["model", (text) => (/^[\w.-]{1,64}$/.test(text) ? text : undefined), String],
  preset: ["preset", (text) => (/^[\w-]{1,64}$/.test(text) ? text : undefined), String],
  n: ["n", (text) => whole(text, 1), String],
  d: ["d", (text) => whole(text, 1), String],
  seed: ["seed", (text) => whole(text), String],
  heads: ["heads", (text) => whole(text, 1), String],
  enc: ["encodings", names, (list) => list.join(",")],
  ref: ["reference", (text) => (NAME.test(text) ? text : undefined), String],
  h: ["head", (text) => (text === "mean" ? "mean" : whole(text)), String],
  mask: ["causal", (text) => ({ causal: true, full: false })[text], (causal) => (causal ? "causal" : "full")],
  view: ["view", among(["weights", "diff"]), String],
  scale: ["scale", among(Object.keys(KINDS)), String],
  map: ["map", among(MAPS), String],
  vmax: ["vmax", positive, String],
  z: ["zoom", window, (zoom) => [zoom.q0, zoom.k0, zoom.q1, zoom.k1].join(",")],
  tab: ["tab", among(TABS), String],
};

function names(text) {
  const list = [...new Set(text.split(",").filter(Boolean))];
  return list.length && list.length <= MOST_ENCODINGS && list.every((name) => NAME.test(name)) ? list : undefined;
}

function window(text) {
  const [q0, k0, q1, k1, ...rest] = text.split(",").map((part) => whole(part));
  return rest.length === 0 && q1 > q0 && k1 > k0 ? { q0, k0, q1, k1 } : undefined;
}

/**
 * Unknown keys are ignored; a value that is not valid is left at its default, with a note.
 * @param {string} fragment with or without its #
 * @returns {{settings: typeof DEFAULTS & {parameters: Record<string, string>}, notes: string[]}}
 */
export function read(fragment) {
  const settings = { ...DEFAULTS, parameters: {} };
  const notes = [];
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  for (const [key, text] of given) {
    if (key in KEYS) {
      const [name, parse] = KEYS[key];
      const value = parse(text);
      if (value === undefined) notes.push(`the link's ${key}=${text.slice(0, 40)} is not valid and was left out`);
      else settings[name] = value;
    } else if (/^[a-z][a-z0-9-]*(@[\w-]+)?\.\w+$/.test(key)) {
      settings.parameters[key] = text.slice(0, 4096);
    }
  }
  const [q, k] = [whole(given.get("q") ?? ""), whole(given.get("k") ?? "")];
  if (q !== undefined && k !== undefined) settings.cell = { q, k };
  return { settings, notes };
}

/** The fragment, with its #. What is as by default is left out, but for the encodings. */
export function write(settings) {
  const given = new URLSearchParams({ v: "1" });
  for (const [key, [name, , format]] of Object.entries(KEYS)) {
    const value = settings[name];
    if (value === null || value === undefined || value === "") continue;
    if (key !== "enc" && key !== "preset" && value === DEFAULTS[name]) continue;
    given.set(key, format(value));
  }
  if (settings.cell) {
    given.set("q", String(settings.cell.q));
    given.set("k", String(settings.cell.k));
  }
  for (const [name, value] of Object.entries(settings.parameters)) {
    if (settings.encodings.includes(name.slice(0, name.lastIndexOf(".")))) given.set(name, value);
  }
  return `#${given.toString().replaceAll("%2C", ",").replaceAll("%40", "@")}`;
}
