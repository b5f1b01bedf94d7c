/** All panels side by side, with one crosshair and one window. */
import { find, h } from "./dom.js";
import { Panel } from "./panel.js";
import { pictureOf, referenceOf } from "./picture.js";
import { listen } from "./pointer.js";
import { unanswered } from "./runner.js";

export class Panels {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.panels = new Map();
    this.picture = null;
    this.focused = null;
    this.element = find("panels");
    this.blank = h("p", { class: "empty blank", textContent: "Asking the service…" });
    this.element.append(this.blank);
    store.on(["problem", "busy", "stopped"], (state) => {
      this.blank.textContent = unanswered(state)
        ? "Nothing to show yet: the message above says why."
        : "Asking the service…";
      this.element.classList.toggle("outdated", state.busy || unanswered(state));
    });
    const drawn = ["run", "settings", "sort", "hidden", "flick", "theme", "cards", "size"];
    store.on(drawn, (state, changed) => this.update(state, changed));
    store.on([...drawn, "hover", "locked", "drag", "focus"], (state) => this.crosshair(state));
    let width = 0;
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width !== width) store.set({ size: (width = contentRect.width) });
    }).observe(this.element);
  }

  update(state, changed) {
    const { run, settings, cards } = state;
    if (!run) return;
    if (
      !changed.has("run") &&
      !changed.has("hidden") &&
      !changed.has("flick") &&
      !changed.has("theme") &&
      !changed.has("cards") &&
      !changed.has("size") &&
      !changed.has("sort") &&
      same(this.drawn, settings)
    )
      return;
    this.arrange(state);
    this.picture = pictureOf(run, settings);
    const order = ordered(run, settings, state.sort);
    const flickered = state.flick && referenceOf(run, settings);
    for (const panel of this.shown) {
      panel.describe(cards.get(encodingOf(panel.name)), run.result(panel.name));
      const source = flickered && state.flick === panel.name ? new Proxied(this.picture, flickered) : this.picture;
      panel.draw(state, source);
      panel.tag.hidden = panel.tag.hidden && source === this.picture;
      if (source !== this.picture) panel.tag.textContent = `shows ${flickered}`;
      panel.strip.build(run, order);
      panel.strip.mark(settings.head);
    }
    const scaled = ["run", "reference", "view", "scale", "map", "vmax"];
    const restrip =
      changed.has("run") ||
      changed.has("sort") ||
      !this.drawn ||
      scaled.some((name) => this.drawn[name] !== settings[name]) ||
      ((["logits"].includes(settings.scale) || settings.view === "diff") && this.drawn.head !== settings.head) ||
      changed.has("hidden");
    if (restrip) for (const panel of this.shown) panel.strip.draw(run, settings);
    this.drawn = settings;
    performance.mark("painted"); // for whoever measures
    this.store.set({ picture: this.picture, clipped: this.shown.reduce((sum, panel) => sum + panel.clipped, 0) });
  }

  /** One panel for each encoding that was answered, in the order of the settings. */
  arrange({ run, settings, hidden }) {
    const wanted = settings.encodings.filter((name) => run.result(name));
    for (const [name, panel] of this.panels) {
      if (wanted.includes(name)) continue;
      panel.element.remove();
      this.panels.delete(name);
    }
    this.shown = wanted
      .filter((name) => !hidden.has(name))
      .map((name) => {
        if (!this.panels.has(name)) {
          const panel = new Panel(name, { act: this.act });
          listen(panel, this.store, this.act);
          panel.map.addEventListener("focus", () => this.store.set({ focus: name }));
          panel.map.addEventListener("blur", () => this.store.set({ focus: null }));
          this.panels.set(name, panel);
        }
        return this.panels.get(name);
      });
    const elements = this.shown.map((panel) => panel.element);
    for (const element of [...this.element.children]) if (!elements.includes(element)) element.remove();
    // What stands in its place stays there: taken out and put back, it would lose the focus.
    elements.forEach(
      (element, i) =>
        this.element.children[i] !== element && this.element.insertBefore(element, this.element.children[i] ?? null),
    );
    if (!elements.length)
      this.element.append(
        h("p", { class: "empty blank", textContent: "Every encoding is hidden: press its number again, or run anew." }),
      );
  }

  crosshair(state) {
    for (const panel of this.shown ?? []) panel.drawCrosshair(state, state.focus === panel.name);
  }
}

/** A picture in which one panel shows the reference's matrix. */
class Proxied {
  constructor(picture, reference) {
    Object.assign(this, picture);
    this.panel = () => picture.panel(reference);
  }
}

export const encodingOf = (name) => name.split("@")[0];

/** The heads in the order of a metric of the reference, the largest first, or of their index. */
export function ordered(run, settings, sort) {
  const heads = Array.from({ length: run.heads }, (_, head) => head);
  const values = run.result(referenceOf(run, settings)).summary?.[sort]?.mean;
  return values ? heads.sort((a, b) => (values[b] ?? -Infinity) - (values[a] ?? -Infinity) || a - b) : heads;
}

/** Whether two settings draw the same, but for the crosshair. */
function same(a, b) {
  return Boolean(a) && Object.keys(b).every((name) => name === "cell" || name === "tab" || a[name] === b[name]);
}
