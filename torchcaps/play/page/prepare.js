// Turns strokes into an image like the training images. Strokes are lists of [x, y] in units of the pad's side.

function raster(strokes, side, place, width) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.lineCap = pen.lineJoin = "round";
  pen.lineWidth = width;
  for (const stroke of strokes) {
    pen.beginPath();
    stroke.forEach((point, n) => (n ? pen.lineTo(...place(point)) : pen.moveTo(...place(point))));
    if (stroke.length === 1) pen.lineTo(...place(stroke[0]));
    pen.stroke();
  }
  const data = pen.getImageData(0, 0, side, side).data;
  return Float32Array.from({ length: side * side }, (_, n) => data[4 * n + 3] / 255);
}

function box(strokes) {
  const points = strokes.flat(), xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const wide = Math.max(right - left, 1e-3), tall = Math.max(bottom - top, 1e-3);
  return { x: (left + right) / 2, y: (top + bottom) / 2, wide, tall, long: Math.max(wide, tall) };
}

const average = (levels, from, to) => {
  const k = from / to, out = new Float32Array(to * to);
  for (let y = 0; y < from; y++) for (let x = 0; x < from; x++) out[Math.floor(y / k) * to + Math.floor(x / k)] += levels[y * from + x] / (k * k);
  return out;
};

function enlarge(levels, from, to) { // bilinear, between the centres of pixels
  const out = new Float32Array(to * to), at = (n) => Math.min(Math.max((n + .5) * from / to - .5, 0), from - 1);
  for (let y = 0; y < to; y++) for (let x = 0; x < to; x++) {
    const [u, v] = [at(x), at(y)], [i, j] = [Math.floor(u), Math.floor(v)], [i2, j2] = [Math.min(i + 1, from - 1), Math.min(j + 1, from - 1)];
    const a = levels[j * from + i] * (1 - u + i) + levels[j * from + i2] * (u - i), b = levels[j2 * from + i] * (1 - u + i) + levels[j2 * from + i2] * (u - i);
    out[y * to + x] = a * (1 - v + j) + b * (v - j);
  }
  return out;
}

// optdigits: as tall as the frame and narrower, 32x32 pixels counted in 4x4 blocks (17 grey levels), then enlarged
function likeOptdigits(strokes, size) {
  const fine = 128, width = fine * .12, room = fine - width - 2, { x, y, wide, tall, long } = box(strokes);
  const up = Math.min(room / tall, 2.5 * room / long, fine * 4); // a dash or a dot is not enlarged too much
  const across = Math.min(up, (.8 * fine - width) / wide);
  const levels = raster(strokes, fine, (p) => [fine / 2 + (p[0] - x) * across, fine / 2 + (p[1] - y) * up], width);
  return enlarge(average(levels, fine, 8).map((level) => Math.round(level * 16) / 16), 8, size);
}

// MNIST: in a box of 20x20, its centre of mass in the middle of the frame
function likeMnist(strokes, size) {
  const fine = 4, side = size * fine, width = 2.3 * fine, { x, y, long } = box(strokes);
  const scale = Math.min((20 * fine - width) / long, side * 4);
  const placed = (dx, dy) => raster(strokes, side, (p) => [side / 2 + (p[0] - x) * scale + dx, side / 2 + (p[1] - y) * scale + dy], width);
  const first = placed(0, 0);
  let [mass, mx, my] = [1e-6, 0, 0];
  first.forEach((level, n) => { mass += level; mx += level * (n % side + .5); my += level * (Math.floor(n / side) + .5); });
  return average(placed(side / 2 - mx / mass, side / 2 - my / mass), side, size);
}

// A user's own images: the whole pad
function asDrawn(strokes, size) {
  const side = 4 * size;
  return average(raster(strokes, side, (p) => [p[0] * side, p[1] * side], .09 * side), side, size);
}

const bytes = (levels) => Uint8Array.from(levels, (level) => Math.round(255 * Math.min(1, level)));
const STYLES = { optdigits: likeOptdigits, mnist: likeMnist, plain: asDrawn };
const digit = (strokes, network, size) => (strokes.length ? STYLES[network.style](strokes, size) : new Float32Array(size * size));

// One digit in grey levels, centred if the network expects two.
export function picture(strokes, network) {
  return network.pairs ? overlaid([strokes], network, 0, 0) : bytes(digit(strokes, network, network.size));
}

// Adds two digits on the larger frame, shifted in opposite directions, and clips.
export function overlaid(drawings, network, aside, upward) {
  const { size, margin } = network, small = size - 2 * margin, sum = new Float32Array(size * size);
  drawings.forEach((strokes, k) => {
    const levels = digit(strokes, network, small), sign = k ? 1 : -1;
    levels.forEach((level, n) => {
      const x = n % small + margin + sign * aside, y = Math.floor(n / small) + margin - sign * upward;
      if (x >= 0 && y >= 0 && x < size && y < size) sum[y * size + x] += level;
    });
  });
  return bytes(sum);
}
