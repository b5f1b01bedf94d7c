/** Cells as pixels. Masked ones are hatched and broken ones crossed: each is told by its pattern as well as its colour. */
import { entry } from "./scale.js";
import { CROSS, HATCH, MASKED, NAN } from "./tables.js";

const CROSSED_CELL = 5; // pixels, below which a cross is a blot
const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0; // as little-endian RGBA
const [masked, hatch, broken, cross] = [MASKED, HATCH, NAN, CROSS].map(packed);

/** The 256 colours of a scale as pixels. */
function lookup(scale) {
  const colours = new Uint32Array(256);
  for (let i = 0; i < 256; i++) colours[i] = packed(scale.table.subarray(3 * i, 3 * i + 3));
  return colours;
}

/**
 * @param {import("./cells.js").Cells} cells
 * @param {import("./scale.js").Scale} scale
 * @param {ImageData} image filled whole
 * @param {number} grain device pixels to a CSS pixel, for the hatch
 */
export function paint(cells, scale, image, grain = 1) {
  const { high, wide, numbers } = cells;
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  const colours = lookup(scale);
  const kind = new Uint32Array(high * wide);
  for (let i = 0; i < kind.length; i++) {
    const value = numbers[i];
    kind[i] = value !== value ? broken : value === -Infinity ? masked : colours[entry(scale, value)];
  }
  const period = Math.max(1, Math.round(grain));
  const column = Int32Array.from({ length: width }, (_, x) => Math.floor((x * wide) / width));
  for (let y = 0; y < height; y++) {
    const row = Math.floor((y * high) / height) * wide;
    const at = y * width;
    const down = Math.floor(y / period);
    for (let x = 0; x < width; x++) {
      const cell = kind[row + column[x]];
      pixels[at + x] = cell === masked && (Math.floor(x / period) + down) % 6 === 0 ? hatch : cell;
    }
  }
  if (Math.min(width / wide, height / high) >= CROSSED_CELL) {
    for (let i = 0; i < kind.length; i++) if (kind[i] === broken) crossed(i, cells, image, pixels);
  }
}

function crossed(index, { high, wide }, { width, height }, pixels) {
  const [row, column] = [Math.floor(index / wide), index % wide];
  const [left, right] = [Math.ceil((column * width) / wide), Math.ceil(((column + 1) * width) / wide)];
  const [top, bottom] = [Math.ceil((row * height) / high), Math.ceil(((row + 1) * height) / high)];
  for (let y = top; y < bottom; y++) {
    const along = Math.round(((y - top) / Math.max(1, bottom - top - 1)) * (right - left - 1));
    pixels[y * width + left + along] = cross;
    pixels[y * width + right - 1 - along] = cross;
  }
}
