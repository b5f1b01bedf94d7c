/** What stands below the panels, one thing at a time. */
import { find } from "./dom.js";
import { TABS } from "./urlstate.js";

/**
 * @param {import("./store.js").Store} store
 * @param {Record<string, {needs: string[], draw: (root: HTMLElement, state: object) => void}>} parts what each draws, and of which parts of the state
 */
export function tabs(store, act, parts) {
  const button = (name) => find(`tab-${name}`);
  const panel = (name) => find(`tabpanel-${name}`);
  const stale = new Set(TABS);
  for (const name of TABS) {
    button(name).addEventListener("click", () => act.openTab(name));
    button(name).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = TABS[(TABS.indexOf(name) + step + TABS.length) % TABS.length];
      act.openTab(next);
      button(next).focus();
    });
    store.on(parts[name].needs, () => stale.add(name));
  }
  store.on([...new Set(["settings", ...TABS.flatMap((name) => parts[name].needs)])], (state) => {
    const { tab } = state.settings;
    for (const name of TABS) {
      button(name).setAttribute("aria-selected", String(name === tab));
      button(name).tabIndex = name === tab ? 0 : -1;
      panel(name).hidden = name !== tab;
    }
    if (stale.delete(tab)) parts[tab].draw(panel(tab), state);
  });
}
