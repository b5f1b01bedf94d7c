/** Elements without markup: whatever a user or the service says is only ever text. */

/**
 * @param {string} tag
 * @param {Record<string, any>} [given] properties; `class`, `data`, `aria-*`, `role`, `for` and `on` + event as well
 * @param {...(Node|string|null|false|undefined)} children
 */
export function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "on")
      for (const [event, listen] of Object.entries(value)) element.addEventListener(event, listen);
    else if (name in element && !name.startsWith("aria-") && name !== "role" && name !== "list") element[name] = value;
    else if (value !== false || name.startsWith("aria-")) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts `children` in the place of what `root` has; where the focus was in it, it is on what stands there now. */
export function refill(root, ...children) {
  const path = [];
  for (let at = document.activeElement; at !== root; at = at.parentNode) {
    if (!at || !root.contains(at)) {
      path.length = 0;
      break;
    }
    path.unshift([...at.parentNode.childNodes].indexOf(at));
  }
  root.replaceChildren(...children);
  let found = path.length ? root : null;
  for (const index of path) found = found?.childNodes[index] ?? null;
  found?.focus?.({ preventScroll: true });
}

const typed = new WeakSet();
addEventListener("input", ({ target }) => typed.add(target), true);
for (const over of ["change", "focusout"]) addEventListener(over, ({ target }) => typed.delete(target), true);

/** Whether a field holds what somebody is typing, which nobody was told of yet. */
export const typing = (field) => typed.has(field);

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, given = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** @returns {HTMLElement} */
export const find = (id) => document.getElementById(id);

export function option(value, text, selected = false, disabled = false) {
  return h("option", { value, textContent: text, selected, disabled });
}

/** A link that leaves the page, where the address is one that a browser may follow. */
export function outside(address, text) {
  return h("a", { href: address, rel: "noopener noreferrer", target: "_blank", textContent: text });
}

/** Hands the user a file. */
export function download(name, content, type = "application/octet-stream") {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
