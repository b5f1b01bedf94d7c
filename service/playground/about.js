/** The tab on the chosen encodings: what each does, where it comes from, and its parameters. */
import { h, option, outside, refill, typing } from "./dom.js";
import { dashed } from "./identity.js";
import { encodingOf } from "./panels.js";

export const needs = ["cards", "encodings", "parameters"];

export function about(act) {
  let late = false;
  return function draw(root, state) {
    const { settings, cards } = state;
    const field = document.activeElement;
    if (root.contains(field) && typing(field)) {
      const after = () =>
        requestAnimationFrame(() => {
          late = false;
          draw(root, state);
        });
      if (!late) field.addEventListener("focusout", after, { once: true });
      late = true;
      return;
    }
    const open = new Set([...root.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    refill(
      root,
      h("p", {
        class: "lead",
        textContent:
          "What each encoding adds to attention, as the service computes it. Change a parameter and the panels follow; add a variant to see both side by side.",
      }),
      h(
        "div",
        { class: "cards" },
        ...settings.encodings.map((name) => card(name, cards.get(encodingOf(name)), settings, act, open)),
      ),
    );
  };
}

function card(name, said, settings, act, open) {
  if (!said)
    return h(
      "section",
      { class: "card", id: `card-${name}` },
      h("h3", {}, dashed(name), name),
      h("p", { class: "muted", textContent: "Asking…" }),
    );
  const more = (key, title, ...content) =>
    h(
      "details",
      { data: { key: `${name} ${key}` }, open: open.has(`${name} ${key}`) },
      h("summary", { textContent: title }),
      ...content,
    );
  const { paper } = said;
  return h(
    "section",
    { class: "card", id: `card-${name}`, tabIndex: -1, "aria-label": name },
    h("h3", {}, dashed(name), name),
    h("p", { class: "card-title", textContent: said.title }),
    h("p", { textContent: said.summary }),
    h("pre", { class: "formula", tabIndex: 0, "aria-label": "Formula", textContent: said.formula.plain }),
    paper
      ? h(
          "p",
          { class: "paper" },
          paper.arxiv
            ? outside(`https://arxiv.org/abs/${encodeURIComponent(paper.arxiv).replaceAll("%2F", "/")}`, paper.title)
            : paper.title,
          ` ${paper.authors}, ${paper.year}`,
        )
      : null,
    more(
      "terms",
      `Terms of the score (${said.terms.length})`,
      h(
        "dl",
        {},
        ...said.terms.flatMap((one) => [h("dt", { textContent: one.name }), h("dd", { textContent: one.description })]),
      ),
    ),
    more(
      "conventions",
      "Conventions",
      h(
        "dl",
        {},
        ...Object.entries(said.conventions).flatMap(([key, text]) => [
          h("dt", { textContent: key }),
          h("dd", { textContent: text }),
        ]),
      ),
    ),
    said.seed_article ? more("article", "What articles get wrong", h("p", { textContent: said.seed_article })) : null,
    parameters(name, said, settings, act),
  );
}

function parameters(name, said, settings, act) {
  const own = said.parameters.filter(({ kind }) => kind !== "array");
  const label = h("input", {
    type: "text",
    maxLength: 32,
    pattern: "[A-Za-z0-9_\\-]{1,32}",
    placeholder: "long",
    size: 8,
    "aria-label": `Label of a variant of ${encodingOf(name)}`,
  });
  return h(
    "form",
    {
      class: "parameters",
      on: {
        submit: (event) => {
          event.preventDefault();
          if (own.some(({ name: parameter }) => document.activeElement?.name === `${name}.${parameter}`)) return; // Enter in a parameter
          if (label.value && label.checkValidity()) act.addVariant(name, label.value);
          else label.focus();
        },
      },
    },
    ...own.map((one) => field(name, one, settings, act)),
    h(
      "div",
      { class: "variant" },
      "Another variant: ",
      h("span", { class: "prefix", textContent: `${encodingOf(name)}@` }),
      label,
      h("button", { type: "submit", class: "plain", textContent: "Add" }),
    ),
  );
}

function field(name, { name: parameter, kind, choices, default: own, description, minimum, maximum }, settings, act) {
  const key = `${name}.${parameter}`;
  const given = settings.parameters[key] ?? "";
  const change = (event) => act.setParameter(key, event.target.value.trim());
  const selectable = kind === "choice" ? choices : kind === "flag" ? ["true", "false"] : null;
  const shownDefault = own === null || own === undefined ? "off" : Array.isArray(own) ? own.join(", ") : String(own);
  const control = selectable
    ? h(
        "select",
        { name: key, on: { change } },
        option("", `${shownDefault} (default)`, given === ""),
        ...selectable.map((one) => option(one, one, one === given)),
      )
    : h("input", {
        type: "text",
        name: key,
        inputMode: kind === "numbers" ? "text" : "decimal",
        value: given,
        placeholder: shownDefault,
        on: { change },
      });
  const range = minimum !== null && maximum !== null && minimum !== undefined ? ` From ${minimum} to ${maximum}.` : "";
  return h("label", { title: `${description}.${range}` }, h("span", { textContent: parameter }), control);
}
