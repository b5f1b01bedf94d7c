/** From settings and an input to a request, and to the commands that send the same. */
import { write } from "./safetensors.js";

export const SAFETENSORS = "application/vnd.safetensors";

/**
 * The query string of POST /attention.
 * @param {object} settings
 * @param {{returns: string[], metrics?: string[], rows?: number, head?: number, dtype?: string}} wanted
 */
export function query(settings, { returns, metrics, rows, head, dtype }) {
  const half = dtype === "float16" ? dtype : undefined;
  return question(settings, { return: returns.join(","), metrics: metrics?.join(","), rows, head, dtype: half });
}

/** What is asked of which encodings: the part of a query string that every question shares, and `more`. */
export function question(settings, more) {
  const [first, ...others] = ordered(settings);
  const given = [["encoding", first]];
  if (others.length) given.push(["compare", others.join(",")]);
  if (settings.model !== "identity") given.push(["model", settings.model]);
  else if (settings.heads) given.push(["heads", settings.heads]);
  given.push(["causal", settings.causal]);
  for (const [name, value] of Object.entries(settings.parameters)) {
    if (settings.encodings.includes(name.slice(0, name.lastIndexOf(".")))) given.push([name, value]);
  }
  given.push(...Object.entries(more).filter(([, value]) => value !== undefined));
  return given
    .map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll("%2C", ",").replaceAll("%40", "@")}`)
    .join("&");
}

/** The encodings, the reference first. */
export function ordered(settings) {
  const { encodings, reference } = settings;
  return encodings.includes(reference) ? [reference, ...encodings.filter((name) => name !== reference)] : encodings;
}

/** The body of a request. */
export function body(input) {
  if (input.text !== undefined) return { type: "application/json", body: JSON.stringify({ text: input.text }) };
  const arrays = input.keys ? { queries: input.queries, keys: input.keys } : { embeddings: input.queries };
  if (input.mask) arrays.mask = input.mask;
  if (input.positions) arrays.positions = { shape: [input.positions.length], data: input.positions };
  return { type: SAFETENSORS, body: write(arrays) };
}

/** Where a preset is asked for. */
export function presetPath({ preset, n, d, seed }) {
  const given = Object.entries({ n, d, seed }).filter(([, value]) => value !== null && value !== undefined);
  return `presets/${preset}${given.length ? `?${given.map(([name, value]) => `${name}=${value}`).join("&")}` : ""}`;
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The request as a command line. Own data is not in it: it reads the file that the page offers for download. */
export function curl(
  home,
  settings,
  input,
  accept = "application/json",
  returns = ["weights", "summary", "comparison"],
) {
  const target = `${home}/attention?${query(settings, { returns: single(settings, returns) })}`;
  const kind = accept === "application/json" ? "" : ` -H ${quoted(`Accept: ${accept}`)} -o answer.npz`;
  if (input?.text !== undefined) {
    return `curl -s ${quoted(target)} -H 'Content-Type: application/json'${kind} \\\n     -d ${quoted(JSON.stringify({ text: input.text }))}`;
  }
  if (input && input.own)
    return `curl -s ${quoted(target)} -H 'Content-Type: ${SAFETENSORS}'${kind} \\\n     --data-binary @input.safetensors`;
  return `curl -s ${quoted(`${home}/${presetPath(settings)}`)} |\ncurl -s ${quoted(target)} -H 'Content-Type: application/json'${kind} -d @-`;
}

/** Without what needs a second encoding where there is one only. */
export function single(settings, returns) {
  return settings.encodings.length > 1 ? returns : returns.filter((name) => name !== "comparison");
}

/** The request as a Python script: the standard library and NumPy. */
export function python(home, settings, input) {
  const target = `${home}/attention?${query(settings, { returns: ["weights"] })}`;
  const lines = ["import io", "import json", "import urllib.request", "", "import numpy as np", ""];
  if (input?.text !== undefined) {
    lines.push(`body, kind = json.dumps({"text": ${JSON.stringify(input.text)}}).encode(), "application/json"`);
  } else if (input && input.own) {
    lines.push(
      'body, kind = open("input.safetensors", "rb").read(), "application/vnd.safetensors"  # the page\'s Export has it',
    );
  } else {
    lines.push(
      `body = urllib.request.urlopen(${JSON.stringify(`${home}/${presetPath(settings)}`)}).read()`,
      'kind = "application/json"',
    );
  }
  lines.push(
    "request = urllib.request.Request(",
    `    ${JSON.stringify(target)},`,
    "    data=body,",
    '    headers={"Content-Type": kind, "Accept": "application/x-npz"},',
    ")",
    "answer = np.load(io.BytesIO(urllib.request.urlopen(request).read()))",
    `for name in ${JSON.stringify(ordered(settings))}:`,
    '    weights = answer[f"{name}/weights"]  # [heads, queries, keys]',
    `    print(name, weights.shape, weights[${settings.head === "mean" ? 0 : settings.head}].argmax(-1))`,
  );
  return `${lines.filter((line) => line !== "import json" || input?.text !== undefined).join("\n")}\n`;
}
