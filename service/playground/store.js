/** The page's state. Changes are told once a frame, together. */

export class Store {
  constructor(state) {
    this.state = state;
    this.listeners = [];
    this.changed = new Set();
    this.scheduled = false;
  }

  /** @param {object} patch what is now so */
  set(patch) {
    for (const [name, value] of Object.entries(patch)) {
      if (this.state[name] === value) continue;
      this.state[name] = value;
      this.changed.add(name);
    }
    if (this.changed.size && !this.scheduled) {
      this.scheduled = true;
      requestAnimationFrame(() => this.flush());
    }
  }

  /**
   * @param {string[]} names
   * @param {(state: object, changed: Set<string>) => void} listener is called when one of the names has changed
   */
  on(names, listener) {
    this.listeners.push([names, listener]);
  }

  flush() {
    const changed = this.changed;
    this.changed = new Set();
    this.scheduled = false;
    for (const [names, listener] of this.listeners)
      if (names.some((name) => changed.has(name))) listener(this.state, changed);
  }
}
