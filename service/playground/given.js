/** What a user pastes or drops, as an input: JSON, CSV or .npy. */
import { isNpy, read as readNpy } from "./npy.js";

export const MOST_BYTES = 64 * 2 ** 20;

/**
 * @typedef {object} Input
 * @property {{shape: number[], data: Float32Array}} queries [tokens, width]
 * @property {{shape: number[], data: Float32Array}|null} keys where they are not the queries
 * @property {string[]|null} tokens names of the keys
 * @property {{shape: number[], data: Uint8Array}|null} mask 1 where a key may be seen
 * @property {Float64Array|null} positions
 */

/** @param {Uint8Array} bytes @returns {Input} */
export function fromBytes(bytes) {
  if (bytes.length > MOST_BYTES) throw new Error(`the file has ${bytes.length} bytes; the limit is ${MOST_BYTES}`);
  if (isNpy(bytes)) return input(matrix(readNpy(bytes), "the array"));
  if (bytes[0] === 0x50 && bytes[1] === 0x4b)
    throw new Error("this is a zip (an .npz?); save the one array with numpy.save");
  return fromText(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
}

/** @param {string} text JSON or CSV @returns {Input} */
export function fromText(text) {
  const trimmed = text.trim();
  if (!trimmed) throw new Error("there is nothing here yet: paste rows of numbers, one row for each token");
  return /^[[{]/.test(trimmed) ? fromJson(trimmed) : fromCsv(trimmed);
}

function fromJson(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is not JSON: ${error.message}`);
  }
  if (Array.isArray(value)) return input(rows(value, "embeddings"));
  const known = ["embeddings", "queries", "keys", "tokens", "mask", "positions", "labels"];
  const unknown = Object.keys(value).filter((name) => !known.includes(name));
  if (unknown.length) throw new Error(`${unknown[0]} is not read here; read are ${known.join(", ")}`);
  if (value.embeddings === undefined && (value.queries === undefined || value.keys === undefined)) {
    throw new Error("embeddings are missing: rows of numbers, one row for each token");
  }
  const answer =
    value.embeddings !== undefined
      ? input(rows(value.embeddings, "embeddings"))
      : input(rows(value.queries, "queries"), rows(value.keys, "keys"));
  const [count] = (answer.keys ?? answer.queries).shape;
  const tokens = value.tokens ?? value.labels;
  if (tokens !== undefined) answer.tokens = named(tokens, count);
  if (value.mask !== undefined) answer.mask = mask(value.mask, answer.queries.shape[0], count);
  if (value.positions !== undefined) {
    if (!Array.isArray(value.positions) || value.positions.length !== count) {
      throw new Error(`positions: ${value.positions?.length} came for ${count} tokens; there must be one for each`);
    }
    answer.positions = Float64Array.from(value.positions, Number);
  }
  return answer;
}

function fromCsv(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  const separator = [",", ";", "\t"].find((one) => lines[0].includes(one)) ?? /\s+/;
  let cells = lines.map((line) =>
    line
      .trim()
      .split(separator)
      .map((cell) => cell.trim()),
  );
  const isNumber = (cell) => cell !== "" && Number.isFinite(Number(cell));
  if (cells.length > 1 && !cells[0].some(isNumber)) cells = cells.slice(1);
  const labelled = cells.every((row) => row.length > 1 && !isNumber(row[0]));
  const tokens = labelled ? cells.map((row) => row[0].replace(/^"(.*)"$/, "$1")) : null;
  const numbers = cells.map((row, i) =>
    (labelled ? row.slice(1) : row).map((cell, j) => {
      if (!isNumber(cell))
        throw new Error(`row ${i}, column ${j} is ${JSON.stringify(cell.slice(0, 40))}, not a number`);
      return Number(cell);
    }),
  );
  return { ...input(rows(numbers, "the table")), tokens };
}

/** @returns {Input} */
export function input(queries, keys = null) {
  if (keys && keys.shape[1] !== queries.shape[1]) {
    throw new Error(
      `queries are ${queries.shape[1]} wide and keys ${keys.shape[1]}; they must be as wide as each other`,
    );
  }
  return { queries, keys, tokens: null, mask: null, positions: null };
}

function rows(value, what) {
  if (!Array.isArray(value) || !value.length)
    throw new Error(`${what}: an empty list; there must be a row for each token`);
  if (!Array.isArray(value[0]))
    throw new Error(`${what} must be a list of rows, one for each token, each a list of numbers`);
  const width = value[0].length;
  if (!width) throw new Error(`${what}: row 0 is empty`);
  const data = new Float32Array(value.length * width);
  value.forEach((row, i) => {
    if (row?.length !== width)
      throw new Error(`${what}: row ${i} has ${row?.length} numbers, row 0 has ${width}; all must have as many`);
    row.forEach((number, j) => {
      if (typeof number !== "number")
        throw new Error(`${what}: row ${i}, column ${j} is ${JSON.stringify(number)?.slice(0, 40)}, not a number`);
      data[i * width + j] = number;
    });
  });
  return { shape: [value.length, width], data };
}

function matrix({ shape, data }, what) {
  const kept = shape.length === 3 && shape[0] === 1 ? shape.slice(1) : shape;
  if (kept.length !== 2 || !data.length) {
    throw new Error(
      `${what} has the shape [${shape}]; it must be [tokens, width]${shape.length === 3 ? ": send one input of the batch" : ""}`,
    );
  }
  return { shape: kept, data };
}

function named(tokens, count) {
  if (!Array.isArray(tokens) || tokens.length !== count) {
    throw new Error(`tokens: ${tokens?.length} names came for ${count} keys; there must be one for each`);
  }
  return tokens.map(String);
}

function mask(value, queries, keys) {
  const flat = Array.isArray(value[0]) ? value : [value];
  if ((Array.isArray(value[0]) && flat.length !== queries) || flat.some((row) => row.length !== keys)) {
    throw new Error(
      `mask has the shape [${Array.isArray(value[0]) ? [flat.length, flat[0].length] : value.length}]; read are [${keys}] and [${queries}, ${keys}]`,
    );
  }
  return {
    shape: Array.isArray(value[0]) ? [queries, keys] : [keys],
    data: Uint8Array.from(flat.flat(), (seen) => (seen ? 1 : 0)),
  };
}
