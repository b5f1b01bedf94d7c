/** The keyboard on a matrix. Single keys count only while one has the focus. */

/** Each key with what it does, for the help. */
export const HELP = [
  ["Arrows", "move the cell (with Shift by 10)"],
  ["Home, End", "first or last key of the row"],
  ["Page Up, Page Down", "16 queries up or down"],
  ["Enter", "lock or free the cell"],
  ["Esc", "free the cell, then show the whole matrix"],
  ["[ and ]", "previous or next head"],
  ["c", "next scale"],
  ["d", "difference to the reference, or weights"],
  ["r", "make this the reference"],
  ["Space (hold)", "show the reference in its place"],
  ["1 to 9", "hide or show an encoding"],
  ["e", "export"],
  ["?", "this help"],
];

const BLOCK = 16;

/** @param {Element} root of the panels */
export function listen(root, store, act) {
  root.addEventListener("keydown", (event) => {
    const map = event.target.closest(".map");
    if (!map || event.ctrlKey || event.metaKey || event.altKey || !store.state.run) return;
    const name = map.closest(".panel").dataset.name;
    if (press(event, name, store, act)) event.preventDefault();
  });
  root.addEventListener("keyup", (event) => {
    if (event.key === " " && store.state.flick) store.set({ flick: null });
  });
  root.addEventListener("focusout", () => store.state.flick && store.set({ flick: null }));
}

function press(event, name, store, act) {
  const { run, settings } = store.state;
  const { q, k } = settings.cell ?? { q: 0, k: 0 };
  const far = event.shiftKey ? 10 : 1;
  const move = (query, key) => act.moveTo({ q: clamp(query, run.queries), k: clamp(key, run.keys) });
  switch (event.key) {
    case "ArrowUp":
      return move(q - far, k);
    case "ArrowDown":
      return move(q + far, k);
    case "ArrowLeft":
      return move(q, k - far);
    case "ArrowRight":
      return move(q, k + far);
    case "Home":
      return move(q, 0);
    case "End":
      return move(q, run.keys - 1);
    case "PageUp":
      return move(q - BLOCK, k);
    case "PageDown":
      return move(q + BLOCK, k);
    case "Enter":
      return act.toggleLock();
    case "Escape":
      return act.free();
    case "[":
      return act.stepHead(-1);
    case "]":
      return act.stepHead(1);
    case "c":
      return act.nextScale();
    case "d":
      return act.toggleDifference();
    case "r":
      return act.setReference(name);
    case "e":
      return act.openExport();
    case "?":
      return act.openHelp();
    case " ":
      if (!event.repeat) store.set({ flick: name });
      return true;
    default:
      return /^[1-9]$/.test(event.key) ? act.toggleEncoding(Number(event.key) - 1) : false;
  }
}

function clamp(value, count) {
  return Math.max(0, Math.min(count - 1, value));
}
