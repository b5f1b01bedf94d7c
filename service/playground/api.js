/** The service, as the page talks to it. */
import * as timing from "./timing.js";

/** The address that the page came from, without its file and its fragment. */
export const HOME = new URL(".", location.href).href.replace(/\/$/, "");

const STORED = "api-key"; // for as long as the tab is open

let key = null;
try {
  key = sessionStorage.getItem(STORED);
} catch {
  // Storage may be forbidden; then a key holds until the page is left.
}

/** From now on every request carries this API key. */
export function useKey(given) {
  key = given;
  try {
    sessionStorage.setItem(STORED, given);
  } catch {
    // As above.
  }
}

/** Whether requests carry a key. */
export function keyed() {
  return key !== null;
}

/** What went wrong: the service's problem document, or that there was no answer. */
export class Problem extends Error {
  constructor({ status = 0, title, detail, pointer = null, requestId = null, retryAfter = null }) {
    super(detail);
    Object.assign(this, { status, title, detail, pointer, requestId, retryAfter });
  }
}

/**
 * @param {string} path with its query
 * @param {{body?: BodyInit, type?: string, accept?: string, signal?: AbortSignal}} how POST where there is a body
 * @returns {Promise<{response: Response, buffer: ArrayBuffer, about: object}>}
 * Raises Problem; AbortError where it was aborted.
 */
export async function ask(path, { body, type, accept = "application/json", signal } = {}) {
  const began = performance.now();
  let response;
  let buffer;
  try {
    response = await fetch(`${HOME}/${path}`, {
      method: body === undefined ? "GET" : "POST",
      body,
      signal,
      headers: {
        Accept: accept,
        ...(type ? { "Content-Type": type } : {}),
        ...(key ? { Authorization: `Bearer ${key}` } : {}),
      },
    });
    buffer = await response.arrayBuffer();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "No answer", detail: "The service did not answer. Is it still running?" });
  }
  const about = {
    requestId: response.headers.get("X-Request-ID"),
    stages: timing.read(response.headers.get("Server-Timing")),
    bytes: buffer.byteLength,
    milliseconds: performance.now() - began,
  };
  if (!response.ok) throw problem(response, buffer, about.requestId);
  return { response, buffer, about };
}

function problem(response, buffer, requestId) {
  let said = {};
  try {
    said = JSON.parse(new TextDecoder().decode(buffer));
  } catch {
    said = { detail: "What answered is not the service: its answer is no problem document." };
  }
  const after = Number(response.headers.get("Retry-After"));
  return new Problem({
    status: response.status,
    title: said.title ?? response.statusText,
    detail: said.detail ?? "",
    pointer: said.pointer ?? null,
    requestId: said.request_id ?? requestId,
    retryAfter: after > 0 ? after : null,
  });
}

export async function json(path, how) {
  const { buffer } = await ask(path, how);
  return JSON.parse(new TextDecoder().decode(buffer));
}
