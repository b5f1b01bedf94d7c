/** The safetensors format: a JSON header and raw little-endian arrays. */
import { fromHalf } from "./half.js";

const KINDS = {
  F64: Float64Array,
  F32: Float32Array,
  F16: Uint16Array,
  I64: BigInt64Array,
  I32: Int32Array,
  U8: Uint8Array,
  BOOL: Uint8Array,
};
const NAMES = new Map([
  [Float64Array, "F64"],
  [Float32Array, "F32"],
  [Int32Array, "I32"],
  [Uint8Array, "BOOL"],
]);

/**
 * The header and the arrays of a file. float16 becomes float32; everything else is a view of `buffer`, without a copy.
 * @param {ArrayBuffer} buffer
 * @returns {{about: object, arrays: Map<string, {shape: number[], data: any}>}} `about` is the service's own metadata.
 */
export function read(buffer) {
  if (buffer.byteLength < 8) throw new Error(`an answer of ${buffer.byteLength} bytes is no safetensors file`);
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (8 + length > buffer.byteLength) throw new Error("the answer was cut short");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const arrays = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const Kind = KINDS[entry.dtype];
    if (!Kind) throw new Error(`${name} has the type ${entry.dtype}, which is not read here`);
    const [begin, end] = entry.data_offsets;
    const start = 8 + length + begin;
    const count = (end - begin) / Kind.BYTES_PER_ELEMENT;
    if (8 + length + end > buffer.byteLength) throw new Error("the answer was cut short");
    const data =
      start % Kind.BYTES_PER_ELEMENT
        ? new Kind(buffer.slice(start, start + end - begin)) // a view must be aligned
        : new Kind(buffer, start, count);
    arrays.set(name, { shape: entry.shape, data: entry.dtype === "F16" ? fromHalf(data) : data });
  }
  return { about: JSON.parse(header.__metadata__?.metadata ?? "{}"), arrays };
}

/**
 * A file of arrays by name. A Uint8Array is written as booleans.
 * @param {Record<string, {shape: number[], data: Float64Array|Float32Array|Int32Array|Uint8Array}>} arrays
 * @returns {Uint8Array}
 */
export function write(arrays) {
  const header = {};
  let offset = 0;
  for (const [name, { shape, data }] of Object.entries(arrays)) {
    header[name] = { dtype: NAMES.get(data.constructor), shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  let text = JSON.stringify(header);
  text += " ".repeat((8 - (new TextEncoder().encode(text).length % 8)) % 8);
  const head = new TextEncoder().encode(text);
  const file = new Uint8Array(8 + head.length + offset);
  new DataView(file.buffer).setBigUint64(0, BigInt(head.length), true);
  file.set(head, 8);
  let at = 8 + head.length;
  for (const { data } of Object.values(arrays)) {
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return file;
}
