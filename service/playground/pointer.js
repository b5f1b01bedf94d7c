/** Mouse, pen and touch on a matrix: hover, click to lock, drag to zoom, double click to see all, Ctrl and wheel. */
import { whole } from "./figure.js";

const DRAG = 5; // pixels, below which a drag is a click

export function listen(panel, store, act) {
  const { map } = panel;
  let from = null;

  map.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    from = { x: event.clientX, y: event.clientY, cell: panel.cellAt(event.clientX, event.clientY) };
    map.setPointerCapture(event.pointerId);
  });

  map.addEventListener("pointermove", (event) => {
    if (!panel.window || event.pointerType === "touch") return;
    const cell = panel.cellAt(event.clientX, event.clientY);
    if (from && Math.hypot(event.clientX - from.x, event.clientY - from.y) > DRAG) {
      store.set({ drag: between(from.cell, cell) });
    } else if (!store.state.locked && !from) {
      const { hover } = store.state;
      if (hover?.q !== cell.q || hover?.k !== cell.k) store.set({ hover: cell });
    }
  });

  map.addEventListener("pointerup", (event) => {
    const { drag } = store.state;
    if (event.pointerType === "touch" || from === null) return;
    from = null;
    if (drag) {
      store.set({ drag: null });
      act.zoomTo(drag);
    }
  });

  map.addEventListener("pointercancel", () => {
    from = null;
    store.set({ drag: null });
  });

  let dragged = false;
  map.addEventListener("pointerdown", () => {
    dragged = false;
  });
  map.addEventListener("pointermove", () => {
    dragged ||= Boolean(store.state.drag);
  });
  map.addEventListener("click", (event) => {
    if (!dragged && panel.window && event.detail <= 1) act.lock(panel.cellAt(event.clientX, event.clientY));
  });

  map.addEventListener("pointerleave", () => {
    const { hover, locked } = store.state;
    if (hover && !locked) act.setCell(hover);
    store.set({ hover: null });
  });

  map.addEventListener("dblclick", () => act.zoomTo(null));

  map.addEventListener(
    "wheel",
    (event) => {
      if (!(event.ctrlKey || event.metaKey) || !panel.window) return; // the page must scroll
      event.preventDefault();
      act.zoomTo(
        scaled(panel.window, panel.cellAt(event.clientX, event.clientY), event.deltaY > 0 ? 1.25 : 0.8, panel.run),
      );
    },
    { passive: false },
  );
}

/** The window between two cells, both included. */
export function between(a, b) {
  return { q0: Math.min(a.q, b.q), k0: Math.min(a.k, b.k), q1: Math.max(a.q, b.q) + 1, k1: Math.max(a.k, b.k) + 1 };
}

/** A window `factor` times as large around a cell, which stays where it is; null where that is the whole matrix. */
export function scaled(window, { q, k }, factor, run) {
  const all = whole(run);
  const side = (low, high, at, most) => {
    const size = Math.max(2, Math.min(most, Math.round((high - low) * factor) + (factor > 1 ? 1 : 0)));
    const start = Math.round(at + 0.5 - ((at + 0.5 - low) / (high - low)) * size);
    const first = Math.max(0, Math.min(most - size, start));
    return [first, first + size];
  };
  const [q0, q1] = side(window.q0, window.q1, q, all.q1);
  const [k0, k1] = side(window.k0, window.k1, k, all.k1);
  return q1 - q0 === all.q1 && k1 - k0 === all.k1 ? null : { q0, k0, q1, k1 };
}
