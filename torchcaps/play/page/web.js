// Runs the networks as ONNX models in this browser: no server computes, and no data leaves the page.
import * as ort from "./ort.wasm.bundle.min.mjs";

ort.env.wasm.numThreads = 1; // more threads need headers that static file servers do not send
ort.env.wasm.wasmPaths = { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href };

// [2, 3] numbers in a row become two rows of three
function nested(numbers, dims) {
  if (dims.length <= 1) return Array.from(numbers);
  const [first, ...rest] = dims, size = rest.reduce((a, b) => a * b, 1);
  return Array.from({ length: first }, (_, n) => nested(numbers.subarray(n * size, (n + 1) * size), rest));
}

export async function openInBrowser(about) {
  const opened = new Map();
  const model = (network, part) => {
    const file = `${network.files}-${part}.onnx`;
    if (!opened.has(file)) opened.set(file, ort.InferenceSession.create(file));
    return opened.get(file);
  };
  let line = Promise.resolve(); // a session runs one request at a time
  const run = (network, part, numbers, dims) => {
    const answer = line.then(async () => (await model(network, part)).run({ given: new ort.Tensor("float32", numbers, dims) }));
    line = answer.catch(() => {});
    return answer;
  };
  return {
    about,
    async look(network, pixels) {
      const found = await run(network, "look", Float32Array.from(pixels), [1, 1, network.size, network.size]);
      return Object.fromEntries(Object.entries(found).map(([name, tensor]) => [name, nested(tensor.data, tensor.dims)]));
    },
    async draw(network, capsules) {
      const pictures = [];
      for (const { label, pose } of capsules) {
        const poses = new Float32Array(network.n_classes * network.d_class);
        poses.set(pose, label * network.d_class);
        const found = await run(network, "draw", poses, [1, network.n_classes, network.d_class]);
        pictures.push(Array.from(found.pictures.data));
      }
      return pictures;
    },
  };
}
