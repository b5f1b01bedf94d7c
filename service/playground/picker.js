/** Which encodings are shown. */
import { find, h, refill } from "./dom.js";
import { dashed } from "./identity.js";
import { MOST_ENCODINGS } from "./urlstate.js";

export function picker(store, act) {
  const chips = find("chips");
  const list = find("picker-list");
  const filter = find("picker-filter");
  filter.addEventListener("input", () => show(store.state));
  find("add").addEventListener("click", () => {
    filter.value = "";
    show(store.state);
    find("picker").showModal();
    filter.focus();
  });
  store.on(["settings", "catalogue", "hidden"], (state) => {
    const { encodings } = state.settings;
    refill(
      chips,
      ...encodings.map((name) =>
        h(
          "li",
          { class: state.hidden.has(name) ? "chip off" : "chip" },
          dashed(name),
          h("button", {
            type: "button",
            class: "chip-name",
            textContent: name,
            "aria-pressed": String(!state.hidden.has(name)),
            title: "Show or hide it",
            on: { click: () => act.toggleEncoding(encodings.indexOf(name)) },
          }),
          encodings.length > 1
            ? h("button", {
                type: "button",
                class: "quiet",
                textContent: "×",
                "aria-label": `Remove ${name}`,
                title: `Remove ${name}`,
                on: { click: () => act.removeEncoding(name) },
              })
            : null,
        ),
      ),
    );
    find("add").disabled = encodings.length >= MOST_ENCODINGS;
    show(state);
  });

  function show({ settings, catalogue }) {
    const wanted = filter.value.trim().toLowerCase();
    const served = catalogue.filter(({ models }) => models.includes(settings.model));
    const found = served.filter(({ id, title, summary, aliases }) =>
      `${id} ${title} ${summary} ${aliases.join(" ")}`.toLowerCase().includes(wanted),
    );
    refill(
      list,
      ...found.map(({ id, title, summary, causal }) =>
        h(
          "li",
          {},
          h(
            "label",
            {},
            h("input", {
              type: "checkbox",
              checked: settings.encodings.includes(id),
              on: { change: (event) => (event.target.checked ? act.addEncoding(id) : act.removeEncoding(id)) },
            }),
            h(
              "span",
              { class: "choice" },
              h("strong", { textContent: id }),
              ` ${title}${causal === "required" ? " (causal only)" : ""}`,
              h("span", { class: "muted", textContent: summary }),
            ),
          ),
        ),
      ),
      ...(found.length ? [] : [h("li", { class: "muted", textContent: "None is called that." })]),
    );
  }
}
