/** An answer's arrays: small ones are read at once, large ones in a worker. */
import { read } from "./safetensors.js";

export const LARGE = 2 ** 21; // bytes
let worker = null;
let last = 0;
const waiting = new Map();

/** @param {ArrayBuffer} buffer is handed over @returns {Promise<{about: object, arrays: Map<string, {shape: number[], data: any}>}>} */
export function decode(buffer) {
  if (buffer.byteLength < LARGE) return Promise.resolve().then(() => read(buffer));
  if (!worker) {
    worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    worker.addEventListener("message", ({ data: { id, about, entries, error } }) => {
      const { resolve, reject } = waiting.get(id);
      waiting.delete(id);
      if (error) reject(new Error(error));
      else resolve({ about, arrays: new Map(entries) });
    });
    worker.addEventListener("error", (event) => {
      for (const { reject } of waiting.values()) reject(new Error(event.message || "the worker failed"));
      waiting.clear();
      worker = null;
    });
  }
  const id = ++last;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, buffer }, [buffer]);
  });
}
