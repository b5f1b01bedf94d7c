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

/** The same with one vector in place of every token, all of whose components are `component`; without a mask. */
export function alike(input, width, count, component) {
  const filled = (shape) => ({ shape, data: new Float32Array(shape[0] * shape[1]).fill(component) });
  return {
    queries: filled(input.queries?.shape ?? [count, width]),
    keys: input.keys ? filled(input.keys.shape) : null,
    positions: input.positions,
  };
}

/** Where a preset is asked for. */
export function presetPath({ preset, n, d, seed }) {
  const given = Object.entries({ n, d, seed }).filter(([, value]) => value !== null && value !== undefined);
  return `presets/${preset}${given.length ? `?${given.map(([name, value]) => `${name}=${value}`).join("&")}` : ""}`;
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/**
 * The request as a command line. Own data is not in it: it reads the file that the page offers for download. Nor is an
 * API key (where requests are `keyed`): it is taken from the environment.
 */
export function curl(home, settings, input, keyed) {
  const returns = single(settings, ["weights", "summary", "comparison"]);
  const target = quoted(`${home}/attention?${query(settings, { returns })}`);
  const key = keyed ? ' -H "Authorization: Bearer $API_KEY"' : "";
  const json = `curl -s${key} ${target} -H 'Content-Type: application/json'`;
  if (input?.text !== undefined) return `${json} \\\n     -d ${quoted(JSON.stringify({ text: input.text }))}`;
  if (input?.own) {
    return `curl -s${key} ${target} -H 'Content-Type: ${SAFETENSORS}' \\\n     --data-binary @input.safetensors`;
  }
  return `curl -s${key} ${quoted(`${home}/${presetPath(settings)}`)} |\n${json} -d @-`;
}

/** Without what needs a second encoding where there is one only. */
export function single(settings, returns) {
  return settings.encodings.length > 1 ? returns : returns.filter((name) => name !== "comparison");
}

/** The request as a Python script: the standard library and NumPy. */
export function python(home, settings, input, keyed) {
  const target = JSON.stringify(`${home}/attention?${query(settings, { returns: ["weights"] })}`);
  const key = keyed ? '"Authorization": "Bearer " + os.environ["API_KEY"]' : "";
  const made = [];
  if (input?.text !== undefined) {
    made.push(`body, kind = json.dumps({"text": ${JSON.stringify(input.text)}}).encode(), "application/json"`);
  } else if (input?.own) {
    made.push(`body, kind = open("input.safetensors", "rb").read(), "${SAFETENSORS}"  # the page's Export has it`);
  } else {
    const preset = JSON.stringify(`${home}/${presetPath(settings)}`);
    const asked = keyed ? `urllib.request.Request(${preset}, headers={${key}})` : preset;
    made.push(`body, kind = urllib.request.urlopen(${asked}).read(), "application/json"`);
  }
  const imported = ["io", input?.text !== undefined && "json", keyed && "os", "urllib.request"].filter(Boolean);
  return [
    ...imported.map((name) => `import ${name}`),
    "",
    "import numpy as np",
    "",
    ...made,
    "request = urllib.request.Request(",
    `    ${target},`,
    "    data=body,",
    `    headers={"Content-Type": kind, "Accept": "application/x-npz"${key && `, ${key}`}},`,
    ")",
    "answer = np.load(io.BytesIO(urllib.request.urlopen(request).read()))",
    `for name in ${JSON.stringify(ordered(settings))}:`,
    '    weights = answer[f"{name}/weights"]  # [heads, queries, keys]',
    `    print(name, weights.shape, weights[${settings.head === "mean" ? 0 : settings.head}].argmax(-1))`,
    "",
  ].join("\n");
}
