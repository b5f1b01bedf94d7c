/** The keys, for whoever asks. */
import { find, h } from "./dom.js";
import { HELP } from "./keys.js";

/** @returns {() => boolean} opens it */
export function help() {
  const dialog = find("help-dialog");
  find("help-keys").replaceChildren(
    ...HELP.flatMap(([keys, what]) => [h("dt", {}, h("kbd", { textContent: keys })), h("dd", { textContent: what })]),
  );
  const open = () => {
    dialog.showModal();
    return true;
  };
  find("help").addEventListener("click", open);
  return open;
}
