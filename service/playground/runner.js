/** Runs: from settings to an answer that is shown. Only the last one asked for is ever shown. */
import { ask, Problem } from "./api.js";
import { decode } from "./decode.js";
import { Mask } from "./mask.js";
import { headMean } from "./metrics.js";
import { fetchInput } from "./presets.js";
import { body, presetPath, query, SAFETENSORS, single } from "./question.js";

const EXTRAS = ["summary", "comparison"];
const METRICS = ["default", "distance_profile", "duplicate_token", "induction"];
export const MOST_CELLS = 2 ** 26; // numbers in the weights of one run: 256 MiB
const SCORED_CELLS = 2 ** 20; // up to which the scores come along; above, a row's are asked for when they are looked at
const HALF_CELLS = 2 ** 22; // above which weights come as float16

/** One answered request. */
export class Run {
  constructor(settings, input, { about, arrays }, transfer) {
    this.settings = settings;
    this.input = input;
    this.transfer = transfer;
    this.heads = about.shape.heads;
    this.queries = about.shape.queries;
    this.keys = about.shape.keys;
    this.headDim = about.shape.head_dim;
    this.causal = about.causal;
    this.half = about.dtype === "float16";
    this.mask = input.queries
      ? Mask.of(input, about.causal)
      : Mask.of({ queries: { shape: [this.queries] }, keys: { shape: [this.keys] } }, about.causal);
    this.keyNames = about.tokens ?? input.tokens;
    this.queryNames = input.keys ? null : this.keyNames;
    this.comparison = about.comparison ?? null;
    this.timings = about.timings;
    this.results = about.results.map((one) => ({
      ...one,
      weights: arrays.get(`${one.name}/weights`).data,
      scores: arrays.get(`${one.name}/scores`)?.data ?? null,
      profile: profileOf(one.name, arrays),
      means: {},
    }));
  }

  /** The result of that name, or undefined. */
  result(name) {
    return this.results.find((one) => one.name === name);
  }

  /** The matrix of one head, a view, or of "mean", the mean of all. Null where the run has none of that kind. */
  matrix(result, head, kind = "weights") {
    const all = result[kind];
    if (!all) return null;
    if (head === "mean") {
      result.means[kind] ??= headMean(all, this.heads);
      return result.means[kind];
    }
    const cells = this.queries * this.keys;
    return all.subarray(head * cells, (head + 1) * cells);
  }

  key(index) {
    return this.keyNames?.[index] ?? null;
  }

  query(index) {
    return this.queryNames?.[index] ?? null;
  }

  get nonfinite() {
    return this.results.reduce((sum, one) => sum + (one.nonfinite_cells ?? 0), 0);
  }
}

export class Runner {
  constructor(store) {
    this.store = store;
    this.controller = null;
    this.preset = null;
  }

  /** Asks for what the settings say, in place of whatever is under way. */
  async run() {
    this.controller?.abort();
    const controller = new AbortController();
    this.controller = controller;
    const { store } = this;
    store.set({ busy: true, stopped: false, problem: null });
    try {
      const run = await this.answer(controller.signal);
      if (this.controller !== controller) return;
      store.set({ run, busy: false, problem: null, ...fitting(store.state, run) });
    } catch (error) {
      if (this.controller !== controller || error.name === "AbortError") return;
      const problem =
        error instanceof Problem ? error : new Problem({ title: "The page failed", detail: error.message });
      problem.asked = this.asked;
      store.set({ busy: false, problem });
    }
  }

  /** Stops what is under way: the settings stay without an answer. */
  cancel() {
    this.controller?.abort();
    this.controller = null;
    this.store.set({ busy: false, stopped: true });
  }

  async answer(signal) {
    const { state } = this.store;
    this.asked = { settings: state.settings, input: state.own };
    const input = state.own ?? (await this.input(state, signal));
    const settings = { ...state.settings, heads: headsFor(state, input) };
    this.asked = { settings, input };
    const [queries, keys] = sizeOf(input);
    const cells = settings.encodings.length * settings.heads * queries * keys;
    if (cells > MOST_CELLS) {
      throw new Problem({
        title: "Too much to draw",
        detail: `${settings.encodings.length} encodings × ${settings.heads} heads × ${queries.toLocaleString("en")} queries × ${keys.toLocaleString("en")} keys are ${cells.toLocaleString("en")} numbers; the page draws up to ${MOST_CELLS.toLocaleString("en")}. Choose fewer tokens, heads or encodings, or ask the service itself.`,
      });
    }
    const returns = ["weights", ...(cells <= SCORED_CELLS ? ["scores"] : []), ...EXTRAS];
    const path = `attention?${query(settings, { returns: single(settings, returns), metrics: METRICS, dtype: cells > HALF_CELLS ? "float16" : "float32" })}`;
    const { buffer, about } = await ask(path, { ...body(input), accept: SAFETENSORS, signal });
    return new Run(settings, input, await decode(buffer), { ...about, path });
  }

  async input(state, signal) {
    const { model, preset, n, d, seed } = state.settings;
    if (state.models.find((one) => one.name === model)?.takes_text) return { text: state.text };
    const asked = { preset, n, d, seed };
    const path = presetPath(asked);
    if (this.preset?.path !== path) this.preset = { path, input: await fetchInput(asked, signal) };
    return this.preset.input;
  }
}

/** Whether the last run asked for ended without an answer: what is drawn is then not what the settings say. */
export function unanswered({ busy, stopped, problem }) {
  return !busy && (stopped || Boolean(problem));
}

/** Mean weights by distance, and those of uniform rows, [heads][distances]; null where the service found none. */
export function profileOf(name, arrays) {
  const part = (of) => arrays.get(`${name}/summary/distance_profile/${of}`);
  if (!part("distances")?.data.length) return null;
  const distances = Array.from(part("distances").data, Number);
  const rows = ({ data }) =>
    Array.from({ length: data.length / distances.length }, (_, i) =>
      data.subarray(i * distances.length, (i + 1) * distances.length),
    );
  return { distances, weights: rows(part("weights")), uniform: rows(part("uniform")) };
}

/** How many heads: those asked for where they divide the width, else the input's own, or else the nearest fewer. */
export function headsFor({ settings, models }, input) {
  const model = models.find((one) => one.name === settings.model);
  if (model?.heads) return model.heads;
  const width = input.queries?.shape[1] ?? 64;
  const wanted = settings.heads ?? input.heads ?? 8;
  for (let heads = Math.min(wanted, width); heads > 1; heads--)
    if (width % heads === 0 && (width / heads) % 2 === 0) return heads;
  return 1;
}

/** How many queries and keys; of a text as many as it has bytes, for there are hardly more tokens. */
function sizeOf(input) {
  if (input.text !== undefined) return Array(2).fill(new TextEncoder().encode(input.text).length);
  return [input.queries.shape[0], (input.keys ?? input.queries).shape[0]];
}

/** What of the state must change so that it fits the run: a head, a cell and a window that there are. */
function fitting({ settings, locked }, run) {
  const { head, cell, zoom } = settings;
  const patch = {};
  if (head !== "mean" && head >= run.heads) patch.head = 0;
  if (zoom && (zoom.q1 > run.queries || zoom.k1 > run.keys)) patch.zoom = null;
  if (!cell || cell.q >= run.queries || cell.k >= run.keys || !locked)
    patch.cell = telling(run, cell, patch.head ?? head);
  return { settings: { ...settings, ...patch } };
}

/** A cell to begin with: where a token comes again, its last place, else the middle; and the key that it looks at most. */
function telling(run, cell, head) {
  if (cell && cell.q < run.queries && cell.k < run.keys) return cell;
  let q = Math.floor(run.queries / 2);
  for (let i = run.queries - 1; i > 0; i--) {
    const name = run.query(i);
    if (name !== null && run.queryNames.indexOf(name) < i && name.length > 3) {
      q = i;
      break;
    }
  }
  const matrix = run.matrix(run.results[0], head);
  let k = 0;
  for (let i = 1; i < run.keys; i++) if (matrix[q * run.keys + i] > matrix[q * run.keys + k]) k = i;
  return { q, k };
}
