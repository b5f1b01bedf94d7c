/** Inputs that the service makes: the same name and numbers give the same bytes everywhere. */
import { ask, json } from "./api.js";
import { input } from "./given.js";
import { presetPath, SAFETENSORS } from "./question.js";
import { read } from "./safetensors.js";

/** What there is: name, title, description, arguments. */
export async function list() {
  return (await json("presets")).presets;
}

/** @returns {Promise<import("./given.js").Input>} */
export async function fetchInput(asked, signal) {
  const { buffer } = await ask(presetPath(asked), { accept: SAFETENSORS, signal });
  const { about, arrays } = read(buffer);
  return { ...input(arrays.get("embeddings")), tokens: about.tokens ?? null };
}
