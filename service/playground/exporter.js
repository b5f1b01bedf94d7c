/** Pictures and numbers to take away. */
import { ask, HOME, keyed } from "./api.js";
import { project } from "./cells.js";
import { write } from "./csv.js";
import { download, find } from "./dom.js";
import { axes, FONT, frame, whole } from "./figure.js";
import { strip } from "./legend.js";
import { paint } from "./paint.js";
import { clipped, ticks } from "./scale.js";
import { body, curl, python, query } from "./question.js";
import { unanswered } from "./runner.js";
import { write as writeSettings } from "./urlstate.js";

export const MOST_LINES = 1_000_000;
const MOST_PIXELS = 2 ** 26;
const [PANEL, GAP, EDGE, BAR] = [360, 24, 24, 256]; // CSS pixels

export function exporter(store) {
  const dialog = find("export-dialog");
  const said = find("export-said");
  const tell = (text) => {
    said.textContent = text;
  };
  const on = (id, job) =>
    find(id).addEventListener("click", async () => {
      tell("");
      try {
        tell((await job(store.state)) ?? "");
      } catch (error) {
        tell(error.message);
      }
    });
  on("export-png", (state) => png(state, Number(find("export-size").value)));
  on("export-csv", csv);
  on("export-npz", npz);
  on("export-settings", ({ settings, own }) => {
    download(
      "settings.json",
      JSON.stringify({ address: location.href, ...settings, input: own ? { sha256: own.digest } : undefined }, null, 2),
      "application/json",
    );
  });
  on("export-input", ({ run }) => download("input.safetensors", body(run.input).body));
  on("copy-curl", ({ settings, run }) =>
    copy(curl(HOME, run?.settings ?? settings, run?.input, keyed()), "The curl command is copied."),
  );
  on("copy-python", ({ settings, run }) =>
    copy(
      python(HOME, { ...(run?.settings ?? settings), head: settings.head }, run?.input, keyed()),
      "The Python script is copied.",
    ),
  );
  on("copy-link", ({ settings, own }) => {
    const link = `${location.href.split("#")[0]}${writeSettings(settings)}`;
    return copy(link, own ? "The link is copied: settings only, your data is not in it." : "The link is copied.");
  });
  store.on(["run", "own"], ({ run, own }) => {
    for (const id of ["export-png", "export-csv", "export-npz"]) find(id).disabled = !run;
    find("export-input").hidden = !own;
  });
  return () => {
    tell(
      store.state.run && unanswered(store.state)
        ? "The settings and the link are what is set now, which was not answered; everything else is of an earlier answer."
        : "",
    );
    dialog.showModal();
  };
}

async function copy(text, done) {
  find("export-text").value = text;
  find("export-text").hidden = false;
  try {
    await navigator.clipboard.writeText(text);
    return done;
  } catch {
    find("export-text").select();
    return "This browser does not let the page copy; the text is below, selected.";
  }
}

/** Every shown panel at the size asked for, with its title, axes, scale and legend. */
export async function png(state, factor) {
  const canvas = drawn(state, factor);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("the browser could not make so large a picture; choose a smaller size");
  download(`attention-${state.settings.head}.png`, blob);
  return `The picture has ${canvas.width} × ${canvas.height} pixels.`;
}

/** @returns {HTMLCanvasElement} */
export function drawn({ run, settings, picture, hidden }, factor) {
  const names = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
  const window = settings.zoom ?? whole(run);
  const probe = document.createElement("canvas").getContext("2d");
  probe.font = FONT;
  const at = frame(run, PANEL, (text) => probe.measureText(text).width, PANEL, factor);
  const across = Math.ceil(names.length / Math.ceil(names.length / 4)); // at most 4, and no row much emptier than another
  const down = Math.ceil(names.length / across);
  const width = Math.max(2 * EDGE + across * at.wholeWidth + (across - 1) * GAP, 2 * EDGE + 2 * BAR + GAP);
  const top = EDGE + 46;
  const tall = at.wholeHeight + 44;
  const height = top + down * tall + 74;
  if (width * height * factor ** 2 > MOST_PIXELS) {
    throw new Error(
      `the picture would have ${(width * height * factor ** 2).toLocaleString("en")} pixels; the limit is ${MOST_PIXELS.toLocaleString("en")}: choose a smaller size or fewer encodings`,
    );
  }
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * factor);
  canvas.height = Math.round(height * factor);
  const context = canvas.getContext("2d");
  context.scale(factor, factor);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  const text = (x, y, content, font = FONT, ink = "#222", align = "left") => {
    Object.assign(context, { font, fillStyle: ink, textAlign: align, textBaseline: "alphabetic" });
    context.fillText(content, x, y);
  };
  const large = FONT.replace(/^\d+px/, "600 16px");
  const middle = FONT.replace(/^\d+px/, "600 13px");
  const head = settings.head === "mean" ? "mean of all heads" : `head ${settings.head} of ${run.heads}`;
  text(EDGE, EDGE + 12, `Attention under ${names.join(", ")}`, large);
  text(
    EDGE,
    EDGE + 30,
    `${head}, ${run.causal ? "causal" : "full"} attention, ${run.queries} queries × ${run.keys} keys of ${run.input.own ? "own data" : run.input.text !== undefined ? "a text" : settings.preset}`,
    FONT,
    "#555",
  );
  let beyond = 0;
  names.forEach((name, index) => {
    const x = EDGE + (index % across) * (at.wholeWidth + GAP);
    const y = top + Math.floor(index / across) * tall;
    const panel = picture.panel(name);
    const parameters = Object.entries(settings.parameters)
      .filter(([key]) => key.startsWith(`${name}.`))
      .map(([key, value]) => `${key.slice(name.length + 1)} ${value}`);
    text(x + at.left, y + 10, `${name}${panel.reference && picture.diff ? " (reference)" : ""}`, middle);
    if (parameters.length) text(x + at.left, y + 24, parameters.join(", "), FONT, "#555");
    context.save();
    context.translate(x, y + 30);
    axes(context, at, window, run, { ink: "#222", muted: "#555" });
    context.restore();
    const image = new ImageData(Math.round(at.width * factor), Math.round(at.height * factor));
    const cells = project(panel.matrix, run.mask, window, { high: image.height, wide: image.width }, panel.how);
    beyond += clipped(panel.scale, cells.numbers);
    paint(cells, panel.scale, image, factor);
    context.putImageData(image, Math.round((x + at.left) * factor), Math.round((y + 30 + at.top) * factor));
  });
  legendOf(context, picture, run, beyond, top + down * tall + 12, text);
  return canvas;
}

function legendOf(context, picture, run, beyond, y, text) {
  let x = EDGE;
  for (const scale of picture.scales) {
    const table = document.createElement("canvas");
    table.width = 256;
    table.height = 1;
    const inner = table.getContext("2d");
    inner.putImageData(strip(scale, inner), 0, 0);
    text(x, y, scale.unit);
    context.imageSmoothingEnabled = false;
    context.drawImage(table, x, y + 6, BAR, 12);
    const marks = ticks(scale);
    marks.forEach(([value, label], i) => {
      const at = x + (BAR * (value - scale.low)) / (scale.high - scale.low);
      text(at, y + 32, label, FONT, "#222", i === 0 ? "left" : i === marks.length - 1 ? "right" : "center");
    });
    x += BAR + GAP;
  }
  const notes = [];
  if (run.mask.seen) notes.push("hatched: masked");
  if (run.nonfinite) notes.push(`crossed: not a number (${run.nonfinite})`);
  if (beyond) notes.push(`${beyond} cells beyond the scale`);
  text(EDGE, y + 50, notes.join("; "), FONT, "#555");
}

function csv({ run, settings, hidden }) {
  const names = settings.encodings.filter((name) => run.result(name) && !hidden.has(name));
  const { q0, k0, q1, k1 } = settings.zoom ?? whole(run);
  const lines = names.length * (q1 - q0) * (k1 - k0);
  if (lines > MOST_LINES)
    throw new Error(
      `the table would have ${lines.toLocaleString("en")} lines; the limit is ${MOST_LINES.toLocaleString("en")}: zoom in, or take the NPZ`,
    );
  const rows = [["encoding", "head", "query", "key", "query_token", "key_token", "visible", "weight", "score"]];
  for (const name of names) {
    const result = run.result(name);
    const weights = run.matrix(result, settings.head);
    const scores = run.matrix(result, settings.head, "scores");
    for (let q = q0; q < q1; q++) {
      for (let k = k0; k < k1; k++) {
        const i = q * run.keys + k;
        rows.push([
          name,
          String(settings.head),
          q,
          k,
          run.query(q),
          run.key(k),
          run.mask.has(q, k) ? 1 : 0,
          weights[i],
          scores ? scores[i] : null,
        ]);
      }
    }
  }
  download("attention.csv", write(rows), "text/csv");
  return `${lines.toLocaleString("en")} lines: one for each cell of ${settings.head === "mean" ? "the mean" : `head ${settings.head}`}.`;
}

/** The service writes it: NumPy's own format, exactly what it computes. */
async function npz({ run }) {
  const { buffer } = await ask(`attention?${query(run.settings, { returns: ["weights", "scores"] })}`, {
    ...body(run.input),
    accept: "application/x-npz",
  });
  download("attention.npz", buffer);
  return "Arrays NAME/weights and NAME/scores, and metadata as JSON.";
}
