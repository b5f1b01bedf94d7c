/** NumPy's format for one array. */
import { fromHalf } from "./half.js";

const KINDS = {
  f8: Float64Array,
  f4: Float32Array,
  f2: Uint16Array,
  i8: BigInt64Array,
  i4: Int32Array,
  i2: Int16Array,
  i1: Int8Array,
  u8: BigUint64Array,
  u4: Uint32Array,
  u2: Uint16Array,
  u1: Uint8Array,
  b1: Uint8Array,
};

/** @param {Uint8Array} bytes */
export function isNpy(bytes) {
  return bytes.length > 10 && bytes[0] === 0x93 && String.fromCharCode(...bytes.subarray(1, 6)) === "NUMPY";
}

/**
 * @param {Uint8Array} bytes of a file
 * @returns {{shape: number[], data: Float32Array}} in C order
 */
export function read(bytes) {
  if (!isNpy(bytes)) throw new Error("this is not a .npy file");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const long = bytes[6] > 1;
  const start = long ? 12 : 10;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(bytes.subarray(start, start + length));
  const type = /'descr':\s*'([<>|=])(\w\d+)'/.exec(header);
  const order = /'fortran_order':\s*(True|False)/.exec(header);
  const sizes = /'shape':\s*\(([^)]*)\)/.exec(header);
  if (!type || !order || !sizes)
    throw new Error(`this .npy file does not hold one array of numbers: ${header.trim().slice(0, 120)}`);
  const Kind = KINDS[type[2]];
  if (!Kind) throw new Error(`this .npy file has the type ${type[2]}; read are ${Object.keys(KINDS).join(", ")}`);
  if (type[1] === ">") throw new Error("this .npy file is big-endian; save it with .astype('<f4')");
  const shape = sizes[1]
    .split(",")
    .filter((part) => part.trim())
    .map(Number);
  const count = shape.reduce((a, b) => a * b, 1);
  const body = bytes.slice(start + length);
  if (body.byteLength < count * Kind.BYTES_PER_ELEMENT) {
    throw new Error(
      `the .npy file says ${shape.join(" x ")} but holds ${body.byteLength} bytes, not ${count * Kind.BYTES_PER_ELEMENT}`,
    );
  }
  const raw = new Kind(body.buffer, 0, count);
  const data = type[2] === "f2" ? fromHalf(raw) : Float32Array.from(raw, Number);
  return { shape, data: order[1] === "True" ? transposed(data, shape) : data };
}

/** From Fortran to C order. */
function transposed(data, shape) {
  const answer = new Float32Array(data.length);
  const index = shape.map(() => 0);
  for (let at = 0; at < data.length; at++) {
    let from = 0;
    for (let axis = shape.length - 1; axis >= 0; axis--) from = from * shape[axis] + index[axis];
    answer[at] = data[from];
    for (let axis = shape.length - 1; axis >= 0 && ++index[axis] === shape[axis]; axis--) index[axis] = 0;
  }
  return answer;
}
