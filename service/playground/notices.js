/** What went wrong, what was changed, and what a screen reader is told. */
import { HOME, keyed } from "./api.js";
import { find, h } from "./dom.js";
import { rank, rowOf } from "./metrics.js";
import { curl } from "./question.js";
import { unanswered } from "./runner.js";
import { digits } from "./scale.js";

const QUIET = 250; // milliseconds between two things said

export function notices(store, act) {
  failures(store, act);
  const root = find("notes");
  store.on(["notes", "run", "busy", "stopped", "problem"], (state) => {
    const { notes, run, stopped } = state;
    const all = [...notes];
    if (unanswered(state)) {
      const drawn = run ? "What is drawn is an earlier answer, not one to what is set above. " : "";
      if (stopped) all.push(`The run was stopped before it was answered. ${drawn}Run asks again.`);
      else if (run) all.push(drawn);
    }
    for (const one of run?.results ?? []) {
      if (one.nonfinite_cells)
        all.push(
          `${one.name} gave ${one.nonfinite_cells.toLocaleString("en")} numbers that are not finite. They are marked in magenta with a cross; everything else is as computed.`,
        );
    }
    root.replaceChildren(...all.map((text) => h("p", { class: "notice", textContent: text })));
    root.hidden = !all.length;
  });
}

function failures(store, act) {
  const root = find("problem");
  let timer = 0;
  store.on(["problem"], ({ problem }) => {
    clearInterval(timer);
    root.hidden = !problem;
    if (!problem) {
      root.replaceChildren();
      return;
    }
    const command = problem.asked
      ? curl(HOME, problem.asked.settings, problem.asked.input, keyed() || problem.status === 401)
      : "";
    const wait = h("span", { class: "countdown", "aria-hidden": "true" }); // said aloud each second it would drown the rest
    const where = [problem.pointer && `at ${problem.pointer}`, problem.requestId && `request ${problem.requestId}`];
    const parts = [
      h(
        "div",
        { class: "problem-head" },
        h("strong", { textContent: problem.status ? `${problem.status} ${problem.title}` : problem.title }),
        wait,
        h("button", { type: "button", class: "plain", textContent: "Try again", on: { click: () => act.run() } }),
      ),
      h("p", { class: "detail", textContent: problem.detail }),
      h("p", { class: "muted", textContent: where.filter(Boolean).join(" · ") }),
    ];
    if (problem.retryAfter) {
      const said = `The page asks again in ${problem.retryAfter} seconds.`;
      parts.push(h("p", { class: "visually-hidden", textContent: said }));
    }
    if (problem.status === 401) parts.push(keyForm(act));
    if (command) {
      const summary = h("summary", { textContent: "The same request from a command line" });
      parts.push(h("details", {}, summary, h("pre", { tabIndex: 0, textContent: command })));
    }
    root.replaceChildren(...parts);
    if (problem.retryAfter) timer = countdown(wait, problem.retryAfter, () => act.run());
  });
}

/** Where the service lets in only who has a key. */
function keyForm(act) {
  const field = h("input", { type: "password", autocomplete: "off", required: true, "aria-label": "API key" });
  const submit = (event) => {
    event.preventDefault();
    act.useKey(field.value.trim());
  };
  return h(
    "form",
    { class: "key-form", on: { submit } },
    h("label", {}, "API key ", field),
    h("button", { type: "submit", class: "primary", textContent: "Use it" }),
    h("span", { class: "muted", textContent: "It is kept in this tab alone, until it is closed." }),
  );
}

/** Tells the seconds that are left, then goes on. */
function countdown(root, seconds, then) {
  const until = Date.now() + 1000 * seconds;
  const tell = () => {
    const left = Math.ceil((until - Date.now()) / 1000);
    root.textContent = left > 0 ? `trying again in ${left} s` : "trying again";
    if (left > 0) return;
    clearInterval(timer);
    then();
  };
  const timer = setInterval(tell, 200);
  tell();
  return timer;
}

/** Says what stands in the cell, not more often than anyone can listen. */
export function speaker(store) {
  const root = find("live");
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      root.textContent = sentence(store.state);
    }, QUIET);
  };
}

function sentence({ run, settings, focus }) {
  const { cell, head } = settings;
  const name = focus ?? settings.encodings[0];
  const result = run?.result(name);
  if (!result || !cell) return "";
  const called = (index, token) => `${index}${token ? ` '${token}'` : ""}`;
  const where = `${name}: query ${called(cell.q, run.query(cell.q))}, key ${called(cell.k, run.key(cell.k))}`;
  if (!run.mask.has(cell.q, cell.k)) return `${where}, masked`;
  const row = rowOf(run.matrix(result, head), cell.q, run.keys);
  if (!Number.isFinite(row[cell.k])) return `${where}, not a number`;
  return `${where}, ${digits(Number(row[cell.k].toPrecision(3)))}, rank ${rank(row, cell.k, run.mask, cell.q)} of ${run.mask.counts[cell.q]}`;
}
