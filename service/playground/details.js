/** The row that is looked at, in full: scores, and the terms they are the sum of. Asked for when the pointer rests. */
import { ask } from "./api.js";
import { decode } from "./decode.js";
import { body, query, SAFETENSORS } from "./question.js";

const REST = 180; // milliseconds

export class Details {
  constructor(store) {
    this.store = store;
    this.timer = 0;
    this.controller = null;
    this.rows = new Map();
    this.run = null;
    store.on(["hover", "settings", "run"], (state) => this.look(state));
  }

  look({ run, hover, settings }) {
    const cell = hover ?? settings.cell;
    if (!run || !cell || settings.head === "mean") return;
    if (this.run !== run) {
      this.run = run;
      this.rows.clear();
    }
    const key = `${cell.q} ${settings.head}`;
    if (key === this.key && this.store.state.details?.run === run) return;
    this.key = key;
    clearTimeout(this.timer);
    this.controller?.abort();
    if (this.rows.has(key)) this.store.set({ details: this.rows.get(key) });
    else this.timer = setTimeout(() => this.fetch(run, cell.q, settings.head, key), REST);
  }

  async fetch(run, row, head, key) {
    const controller = new AbortController();
    this.controller = controller;
    try {
      const path = `attention?${query(run.settings, { returns: ["scores", "terms"], rows: row, head })}`;
      const { buffer } = await ask(path, { ...body(run.input), accept: SAFETENSORS, signal: controller.signal });
      const { arrays } = await decode(buffer);
      if (this.run !== run || this.controller !== controller) return;
      const details = { run, row, head, of: new Map(run.results.map(({ name }) => [name, of(name, arrays)])) };
      this.rows.set(key, details);
      if (this.key === key) this.store.set({ details });
    } catch (error) {
      if (error.name !== "AbortError" && this.key === key)
        this.store.set({ details: { run, row, head, of: new Map(), error: error.message } });
    }
  }
}

function of(name, arrays) {
  const before = `${name}/terms/`;
  const terms = [...arrays]
    .filter(([key]) => key.startsWith(before))
    .map(([key, { data }]) => [key.slice(before.length), data]);
  return { scores: arrays.get(`${name}/scores`).data, terms };
}
