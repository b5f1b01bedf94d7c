/** Reads large answers off the page's own thread. */
import { read } from "./safetensors.js";

addEventListener("message", ({ data: { id, buffer } }) => {
  try {
    const { about, arrays } = read(buffer);
    const entries = [...arrays];
    const buffers = new Set(entries.map(([, { data }]) => data.buffer));
    postMessage({ id, about, entries }, [...buffers]);
  } catch (error) {
    postMessage({ id, error: error.message });
  }
});
