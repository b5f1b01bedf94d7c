/** The user's own vectors: pasted, chosen or dropped. They are checked here, and sent to the service alone. */
import { find } from "./dom.js";
import { fromBytes, fromText } from "./given.js";

export function ownData(store, act) {
  const dialog = find("own-dialog");
  const area = find("own-text");
  const said = find("own-said");
  const use = find("own-use");
  let ready = null;

  const show = (input, what) => {
    ready = input;
    use.disabled = false;
    const [rows, width] = input.queries.shape;
    said.textContent = `${what}: ${rows} tokens, ${width} numbers each${input.keys ? `, and ${input.keys.shape[0]} keys` : ""}${input.tokens ? ", with names" : ""}${input.mask ? ", with a mask" : ""}${input.positions ? ", with positions" : ""}.`;
    said.classList.remove("wrong");
  };
  const refuse = (message) => {
    ready = null;
    use.disabled = true;
    said.textContent = message;
    said.classList.add("wrong");
  };
  const attempt = (make, what) => {
    try {
      show(make(), what);
    } catch (error) {
      refuse(error.message);
    }
  };
  const readFile = async (file) => {
    const bytes = new Uint8Array(await file.arrayBuffer());
    attempt(() => fromBytes(bytes), file.name);
  };

  area.addEventListener("input", () => attempt(() => fromText(area.value), "Read"));
  find("own-file").addEventListener("change", (event) => event.target.files[0] && readFile(event.target.files[0]));
  use.addEventListener("click", async () => {
    if (!ready) return;
    const input = { ...ready, own: true, digest: await digest(ready.queries.data) };
    dialog.close();
    act.useOwn(input);
  });

  addEventListener("dragover", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && document.body.classList.remove("dropping"));
  addEventListener("drop", async (event) => {
    document.body.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    if (!file) return;
    event.preventDefault();
    if (!dialog.open) dialog.showModal();
    await readFile(file);
  });
  return () => dialog.showModal();
}

/** The first 12 digits of the SHA-256 of the numbers; null where the browser does not compute it (plain HTTP from afar). */
async function digest(data) {
  if (!crypto.subtle) return null;
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return [...bytes.subarray(0, 6)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
