/** Wires the parts together: what can be done, and what each thing done changes. */
import { json, useKey } from "./api.js";
import { about } from "./about.js";
import * as celltable from "./celltable.js";
import { controls } from "./controls.js";
import { Details } from "./details.js";
import { find } from "./dom.js";
import { exporter } from "./exporter.js";
import { help } from "./help.js";
import { inspector } from "./inspector.js";
import { listen as listenKeys } from "./keys.js";
import { legend } from "./legend.js";
import * as measures from "./measures.js";
import { notices, speaker } from "./notices.js";
import { ownData } from "./owndata.js";
import { picker } from "./picker.js";
import { encodingOf, ordered, Panels } from "./panels.js";
import * as pairs from "./pairs.js";
import { referenceOf } from "./picture.js";
import * as positions from "./positions.js";
import { list as listPresets } from "./presets.js";
import * as profiles from "./profiles.js";
import { Runner } from "./runner.js";
import { KINDS } from "./scale.js";
import { Store } from "./store.js";
import { tabs } from "./tabs.js";
import * as urlstate from "./urlstate.js";

/** What a model that takes text begins with. */
const SAMPLE = "The nurse told the girl that she had found the key, but the girl said she had no key.";

const { settings, notes } = urlstate.read(location.hash);
const store = new Store({
  settings,
  notes,
  run: null,
  busy: false,
  stopped: false,
  problem: null,
  own: null,
  text: SAMPLE,
  hover: null,
  locked: false,
  drag: null,
  focus: null,
  flick: null,
  hidden: new Set(),
  sort: "",
  picture: null,
  clipped: 0,
  details: null,
  presets: [],
  models: [],
  catalogue: [],
  cards: new Map(),
  encodings: null,
  parameters: null,
  size: 0,
  theme: 0,
});
const runner = new Runner(store);
let lastOwn = null; // for Back and Forward: the address has no room for it

/** What can be done. Keyboard actions return whether there was anything to do. */
const act = {
  head: () => store.state.settings.head,

  /** Settings that only change how the answer is drawn. */
  show(patch, push = false) {
    const now = { ...store.state.settings, ...patch };
    store.set({ settings: now });
    remember(push);
    return true;
  },

  /** Settings that change the question. */
  change(patch) {
    store.set({ settings: { ...store.state.settings, ...patch }, notes: [] });
    act.checked();
    remember(true);
    return runner.run();
  },

  /** Where an encoding takes causal attention only, the mask is that. */
  checked() {
    const { settings: now, catalogue: known, notes: before } = store.state;
    const only = now.encodings.filter((name) => known.find(({ id }) => id === encodingOf(name))?.causal === "required");
    if (!only.length || now.causal) return;
    const note = `${only.join(" and ")} ${only.length > 1 ? "are" : "is"} defined for causal attention only, so later keys are hidden for all.`;
    store.set({ settings: { ...now, causal: true }, notes: [...before, note] });
  },

  run() {
    if (store.state.busy) return; // each change of the question asks anew: what is under way is of these settings
    remember(true);
    runner.run();
  },
  stop: () => runner.cancel(),

  /** A value that was typed cannot be: the settings stay as they are. */
  refuse: (note) => store.set({ notes: [note] }),

  choosePreset(preset) {
    if (!preset) return;
    store.set({ own: null });
    act.change({ preset, n: null, d: null, seed: null, zoom: null, cell: null, heads: null });
  },
  useOwn(input) {
    lastOwn = input;
    store.set({ own: input });
    act.change({ zoom: null, cell: null, heads: null });
  },
  useText(text) {
    store.set({ text: text || SAMPLE, own: null });
    act.change({ zoom: null, cell: null });
  },
  chooseModel(name) {
    const model = store.state.models.find((one) => one.name === name);
    const kept = store.state.settings.encodings.filter((encoding) => model.encodings.includes(encodingOf(encoding)));
    const {
      presets,
      settings: { preset },
    } = store.state;
    const fits = (one) => !model.width || (one?.arguments.d?.maximum ?? 0) >= model.width;
    store.set({ own: null });
    act.change({
      preset: fits(presets.find((one) => one.name === preset)) ? preset : (presets.find(fits)?.name ?? preset),
      model: name,
      encodings: kept.length ? kept : [model.default_encoding],
      reference: null,
      causal: model.default_causal,
      heads: null,
      d: model.takes_text ? null : model.width,
      head: 0,
      zoom: null,
      cell: null,
    });
  },

  addEncoding(name) {
    const { encodings } = store.state.settings;
    if (encodings.includes(name) || encodings.length >= urlstate.MOST_ENCODINGS) return;
    act.change({ encodings: [...encodings, name] });
  },
  addVariant(name, label) {
    const { encodings, parameters } = store.state.settings;
    const variant = `${encodingOf(name)}@${label}`;
    if (encodings.includes(variant) || encodings.length >= urlstate.MOST_ENCODINGS) return;
    const own = Object.entries(parameters).filter(([key]) => key.slice(0, key.lastIndexOf(".")) === name);
    const copied = Object.fromEntries(own.map(([key, value]) => [`${variant}${key.slice(name.length)}`, value]));
    const at = encodings.indexOf(name) + 1;
    act.change({
      encodings: [...encodings.slice(0, at), variant, ...encodings.slice(at)],
      parameters: { ...parameters, ...copied },
    });
  },
  removeEncoding(name) {
    const { settings: before, run } = store.state;
    const encodings = before.encodings.filter((one) => one !== name);
    if (!encodings.length) return;
    const reference = before.reference === name ? null : before.reference;
    if (run && referenceOf(run, before) !== name && !store.state.busy) act.show({ encodings, reference }, true);
    else act.change({ encodings, reference });
  },
  setParameter(key, value) {
    const parameters = { ...store.state.settings.parameters, [key]: value };
    if (value === "") delete parameters[key];
    act.change({ parameters });
  },
  toggleEncoding(index) {
    const name = store.state.settings.encodings[index];
    if (!name) return false;
    const hidden = new Set(store.state.hidden);
    if (!hidden.delete(name)) hidden.add(name);
    store.set({ hidden });
    return true;
  },

  setReference(name) {
    const { run, settings: now } = store.state;
    if (run && referenceOf(run, now) === name) return true;
    act.change({ reference: name });
    return true;
  },
  toggleDifference: () => act.show({ view: store.state.settings.view === "diff" ? "weights" : "diff", vmax: null }),
  nextScale() {
    const names = Object.keys(KINDS);
    return act.show({ scale: names[(names.indexOf(store.state.settings.scale) + 1) % names.length], vmax: null });
  },
  setHead: (head) => act.show({ head }),
  stepHead(by) {
    const { run, settings: now, sort } = store.state;
    if (!run) return false;
    const heads = run.heads > 1 ? [...ordered(run, now, sort), "mean"] : [0];
    return act.show({ head: heads[(heads.indexOf(now.head) + by + heads.length) % heads.length] });
  },
  zoomTo: (zoom) => act.show({ zoom }),

  setCell(cell) {
    store.set({ hover: null });
    return act.show({ cell });
  },
  lock(cell) {
    store.set({ locked: true });
    speak();
    return act.setCell(cell);
  },
  moveTo(cell) {
    const { zoom } = store.state.settings;
    store.set({ locked: true });
    act.setCell(cell);
    if (zoom && (cell.q < zoom.q0 || cell.q >= zoom.q1 || cell.k < zoom.k0 || cell.k >= zoom.k1))
      act.zoomTo(following(zoom, cell));
    speak();
    return true;
  },
  toggleLock() {
    store.set({ locked: !store.state.locked });
    return true;
  },
  free() {
    if (store.state.locked) store.set({ locked: false });
    else act.zoomTo(null);
    return true;
  },

  useKey(key) {
    useKey(key);
    store.set({ problem: null, busy: true }); // the form is gone at once, so nothing typed into it can be lost
    describe(store.state);
    begin();
  },

  openTab: (tab) => act.show({ tab }),
  openAbout(name) {
    act.openTab("about");
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        const card = find(`card-${name}`);
        card?.scrollIntoView({
          block: "nearest",
          behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
        });
        card?.focus({ preventScroll: true });
      }),
    );
  },
};
const speak = speaker(store);
act.openOwn = ownData(store, act);
const openExport = exporter(store);
act.openExport = () => {
  openExport();
  return true;
};
act.openHelp = help();
find("export").addEventListener("click", openExport);

/** The same window, moved as little as shows the cell. */
function following({ q0, k0, q1, k1 }, { q, k }) {
  const side = (low, high, at) =>
    at < low ? [at, at + high - low] : at >= high ? [at + 1 - (high - low), at + 1] : [low, high];
  const [a, b] = side(q0, q1, q);
  const [c, d] = side(k0, k1, k);
  return { q0: a, k0: c, q1: b, k1: d };
}

/** The settings become the address; `push` where Back should lead to those before. */
function remember(push) {
  const fragment = urlstate.write(store.state.settings);
  if (fragment === location.hash && history.state?.own === Boolean(store.state.own)) return;
  const own = { own: Boolean(store.state.own) };
  if (push) history.pushState(own, "", fragment);
  else history.replaceState(own, "", fragment);
}

addEventListener("popstate", ({ state }) => {
  const found = urlstate.read(location.hash);
  store.set({
    settings: found.settings,
    notes: found.notes,
    own: state?.own ? lastOwn : null,
    locked: false,
    hover: null,
  });
  runner.run();
});

controls(store, act);
picker(store, act);
legend(store);
inspector(store, act);
notices(store, act);
listenKeys(find("panels"), store, act);
new Panels(store, act);
new Details(store);
const draw = ({ draw: of, needs }) => ({ needs, draw: of });
tabs(store, act, {
  distance: draw(profiles),
  positions: draw(positions),
  pairs: draw(pairs),
  metrics: draw(measures),
  table: draw(celltable),
  about: { needs: ["cards", "encodings", "parameters"], draw: about(act) },
});

// Parts of the settings that only some things depend on.
store.on(["settings"], ({ settings: now }) => store.set({ encodings: now.encodings, parameters: now.parameters }));
store.on(["settings"], describe);

/** Asks for the cards of the encodings that have none yet. */
function describe({ settings: now, cards }) {
  for (const id of new Set(now.encodings.map(encodingOf))) {
    if (cards.has(id)) continue;
    cards.set(id, null);
    json(`encodings/${id}`).then(
      (card) => store.set({ cards: new Map(store.state.cards).set(id, card) }),
      () => store.state.cards.delete(id),
    );
  }
}

const themed = matchMedia("(prefers-color-scheme: dark)");
themed.addEventListener("change", () => store.set({ theme: store.state.theme + 1 }));
find("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : themed.matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // Then it holds for this visit.
  }
  store.set({ theme: store.state.theme + 1 });
});

store.changed.add("settings");
store.flush();
begin();

/** Asks what there is, then for the first answer. */
function begin() {
  const [catalogue, presets, models] = [json("encodings"), listPresets(), json("models")];
  const ignored = () => {}; // the run tells of it
  catalogue.then(({ encodings }) => store.set({ catalogue: encodings }), ignored);
  presets.then((found) => store.set({ presets: found }), ignored);
  models.then(({ models: found }) => store.set({ models: found }), ignored);
  remember(false);
  // What a link asks for is checked against what there is; the first visit need not wait.
  if (location.hash === urlstate.write(urlstate.read("").settings)) runner.run();
  else {
    Promise.allSettled([catalogue, models]).then(() => {
      act.checked();
      runner.run();
    });
  }
}
