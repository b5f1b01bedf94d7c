/** The bar at the top and the one over the panels: every setting but the encodings. */
import { find, h, option, typing } from "./dom.js";
import { KINDS, MAPS } from "./scale.js";
import { referenceOf, pictureOf } from "./picture.js";
import { milliseconds, size } from "./timing.js";

export function controls(store, act) {
  input(store, act);
  display(store, act);
  chip(store);
  // A click on Run tells of the field it leaves first, and Enter of the one it is pressed in.
  find("fields").addEventListener("submit", (event) => {
    event.preventDefault();
    act.run();
  });
  find("stop").addEventListener("click", () => act.stop());
  store.on(["busy"], ({ busy }) => {
    if (!busy && document.activeElement === find("stop")) find("run").focus();
    document.body.classList.toggle("busy", busy);
  });
}

/** Tells of numbers that may be; of others it says what may be, and puts back `held()`, what holds. Empty is null. */
function numeric(field, { name, allowed, may, held, take, refuse }) {
  const tell = () => {
    const value = Number(field.value);
    const empty = field.value === "" && !field.validity.badInput;
    if (empty || (field.value !== "" && may(value))) return take(empty ? null : value);
    const came = field.value === "" ? "what was typed is no number" : `${field.value} came`;
    field.value = held();
    refuse(`${name} must be ${allowed()}: ${came}, so it stays ${field.value || field.placeholder || "as it was"}.`);
  };
  field.addEventListener("change", tell);
  // What is no number has the value of an empty field, so that in one it is no change.
  field.addEventListener("blur", () => field.validity.badInput && tell());
}

function input(store, act) {
  const preset = find("preset");
  const called = { n: "Tokens", d: "Width", seed: "Seed" };
  const numbers = Object.keys(called).map((name) => [name, find(name)]);
  preset.addEventListener("change", () => act.choosePreset(preset.value));
  for (const [name, field] of numbers) {
    numeric(field, {
      name: called[name],
      allowed: () => `a whole number from ${field.min} to ${field.max}`,
      may: () => field.checkValidity(),
      held: () => store.state.settings[name] ?? "",
      take: (value) => act.change({ [name]: value }),
      refuse: act.refuse,
    });
  }
  const heads = find("heads");
  heads.addEventListener("change", () => act.change({ heads: heads.value === "" ? null : Number(heads.value) }));
  for (const radio of document.querySelectorAll('input[name="mask"]')) {
    radio.addEventListener("change", () => act.change({ causal: radio.value === "causal" }));
  }
  const model = find("model");
  model.addEventListener("change", () => act.chooseModel(model.value));
  const text = find("text");
  text.addEventListener("change", () => act.useText(text.value));
  find("own").addEventListener("click", () => act.openOwn());

  store.on(
    ["settings", "presets", "models", "own", "run", "text"],
    ({ settings, presets, models, own, run, text: typed }) => {
      const chosen = presets.find((one) => one.name === settings.preset);
      const texts = Boolean(models.find((one) => one.name === settings.model)?.takes_text);
      preset.replaceChildren(
        ...(own ? [option("", "Your own data", true)] : []),
        ...presets.map((one) => option(one.name, one.title, !own && one.name === settings.preset)),
        ...(chosen || own || !presets.length ? [] : [option(settings.preset, settings.preset, true)]),
      );
      preset.title = own ? "" : (chosen?.description ?? "");
      for (const [name, field] of numbers) {
        const argument = own ? null : chosen?.arguments[name];
        field.parentElement.hidden = !argument || texts;
        if (argument)
          Object.assign(field, {
            min: argument.minimum,
            max: argument.maximum,
            placeholder: argument.default,
            title: argument.description,
            value: typing(field) ? field.value : (settings[name] ?? ""),
          });
      }
      find("about-input").textContent = own
        ? ownWords(own, run)
        : texts
          ? "The text is sent to this service only, and is never part of a link."
          : (chosen?.description ?? "");
      find("about-input").title = find("about-input").textContent;
      model.parentElement.hidden = models.length < 2;
      model.replaceChildren(...models.map((one) => option(one.name, one.name, one.name === settings.model)));
      text.parentElement.hidden = !texts;
      preset.parentElement.hidden = texts && !own;
      if (!typing(text)) text.value = typed;
      const fixed = models.find((one) => one.name === settings.model)?.heads;
      heads.disabled = Boolean(fixed);
      const width = run && run.input.queries ? run.input.queries.shape[1] : 64;
      const divisors = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32].filter((count) => width % count === 0);
      const now = fixed ?? settings.heads ?? run?.heads ?? null;
      heads.replaceChildren(
        ...[...new Set([...divisors, ...(now ? [now] : [])])]
          .sort((a, b) => a - b)
          .map((count) => option(String(count), String(count), count === now)),
      );
      for (const radio of document.querySelectorAll('input[name="mask"]'))
        radio.checked = (radio.value === "causal") === settings.causal;
    },
  );
}

function ownWords(own, run) {
  const [rows, width] = own.queries.shape;
  const digest = run?.input === own && own.digest ? `, SHA-256 ${own.digest}` : "";
  return `Your own data, ${rows} × ${width}${own.keys ? ` queries and ${own.keys.shape[0]} keys` : ""}${digest}. It is sent to this service only, and is never part of a link.`;
}

function display(store, act) {
  const scale = find("scale");
  const map = find("map");
  const vmax = find("vmax");
  const reference = find("reference");
  const head = find("head");
  const sort = find("sort");
  for (const name of Object.keys(KINDS)) scale.append(option(name, KINDS[name].title));
  for (const name of MAPS) map.append(option(name, name));
  scale.addEventListener("change", () => act.show({ scale: scale.value, vmax: null }));
  map.addEventListener("change", () => act.show({ map: map.value }));
  numeric(vmax, {
    name: "The end of the scale",
    allowed: () => "a number above 0",
    may: (value) => value > 0,
    held: () => pinnable(store.state.picture) ?? "",
    take: (value) => {
      store.set({ notes: [] });
      act.show({ vmax: value });
    },
    refuse: act.refuse,
  });
  reference.addEventListener("change", () => act.setReference(reference.value));
  head.addEventListener("change", () => act.setHead(head.value === "mean" ? "mean" : Number(head.value)));
  sort.addEventListener("change", () => store.set({ sort: sort.value }));
  find("head-before").addEventListener("click", () => act.stepHead(-1));
  find("head-after").addEventListener("click", () => act.stepHead(1));
  find("pin").addEventListener("click", () => {
    const { settings, picture } = store.state;
    act.show({ vmax: settings.vmax === null && picture ? pinnable(picture) : null });
  });
  for (const radio of document.querySelectorAll('input[name="view"]'))
    radio.addEventListener("change", () => act.show({ view: radio.value, vmax: null }));

  store.on(["settings", "run", "picture", "sort"], ({ settings, run, picture, sort: sorted }) => {
    find("display").classList.toggle("idle", !run);
    if (!run) return;
    const current = picture ?? pictureOf(run, settings);
    scale.value = settings.scale;
    const scored = run.results.every((one) => one.scores);
    for (const one of scale.options) {
      one.disabled =
        (one.value === "logits" && !scored) || (settings.view === "diff" && !["shared", "logits"].includes(one.value));
    }
    find("about-scale").textContent = current.diff
      ? `Each panel less ${current.reference}, on one scale for all: orange is more, blue is less. ${current.reference} itself is shown as it is.`
      : `${KINDS[current.kind].title}: ${KINDS[current.kind].about}.${settings.scale === "logits" && !scored ? " Logits do not come with so large a run." : ""}`;
    map.value = settings.map;
    const value = pinnable(current);
    vmax.disabled = value === null;
    find("pin").disabled = value === null;
    find("pin").setAttribute("aria-pressed", String(settings.vmax !== null));
    if (!typing(vmax)) vmax.value = value === null ? "" : String(value);
    reference.replaceChildren(
      ...settings.encodings
        .filter((name) => run.result(name))
        .map((name) => option(name, name, name === referenceOf(run, settings))),
    );
    head.replaceChildren(
      ...Array.from({ length: run.heads }, (_, i) => option(String(i), `head ${i}`, i === settings.head)),
      ...(run.heads > 1 ? [option("mean", "mean", settings.head === "mean")] : []),
    );
    const alone = run.results.length < 2;
    for (const radio of document.querySelectorAll('input[name="view"]'))
      Object.assign(radio, { checked: radio.value === (alone ? "weights" : settings.view), disabled: alone });
    reference.disabled = alone;
    const metrics = Object.entries(run.results[0].summary ?? {})
      .filter(([, metric]) => metric?.mean)
      .map(([name]) => name);
    sort.parentElement.hidden = run.heads < 2 || !metrics.length;
    sort.replaceChildren(
      option("", "by number", !sorted),
      ...metrics.map((name) => option(name, `by ${name.replaceAll("_", " ")}`, name === sorted)),
    );
  });
}

/** The end of the scale, where it may be pinned. */
function pinnable({ kind, diff, scales }) {
  if (!diff && (kind === "row" || kind === "log")) return null;
  const { high } = scales[0];
  return kind === "lift" && !diff ? Math.round(2 ** high * 1000) / 1000 : Number(high.toPrecision(6));
}

function chip(store) {
  const root = find("latency");
  store.on(["run", "busy", "stopped", "problem"], ({ run, busy, stopped, problem }) => {
    root.dataset.state = problem ? "failed" : busy ? "busy" : stopped ? "stopped" : "done";
    if (busy) root.replaceChildren("asking…");
    else if (problem && problem.status === 0)
      root.replaceChildren(problem.title === "No answer" ? "service unreachable" : "failed");
    else if (problem) root.replaceChildren(`error ${problem.status}`);
    else if (stopped) root.replaceChildren("cancelled");
    else if (run) {
      const { stages, bytes, requestId } = run.transfer;
      const encode = (stages.postprocess ?? 0) + (stages.serialize ?? 0);
      root.replaceChildren(
        h("strong", { textContent: `server ${milliseconds(stages.total ?? 0)}` }),
        h("span", {
          class: "stages",
          textContent: ` queue ${milliseconds(stages.queue ?? 0)}, compute ${milliseconds(stages.compute ?? 0)}, encode ${milliseconds(encode)} · ${size(bytes)}`,
        }),
      );
      root.title = `request ${requestId}`;
    }
  });
}
