// The second tab: two overlapping digits, separated by the two longest capsules.
import { newestOnly } from "./brain.js";
import { makePad } from "./pad.js";
import { overlaid } from "./prepare.js";
import { $, fillSelect, paint, showBars } from "./show.js";

export function openPairs(brain, trouble) {
  const networks = brain.about.networks.filter((network) => network.pairs && network.draws);
  if (!networks.length) { $("tab-pairs").hidden = true; return { repaint() {} }; }
  let network = networks[0], last = null;
  const changed = () => read();
  const first = makePad($("pad-first"), { name: "First digit", start: 5, changed, ink: "--first" });
  const second = makePad($("pad-second"), { name: "Second digit", start: 3, changed, ink: "--second" });

  const read = newestOnly(async () => {
    const drawings = [first.strokes, second.strokes].filter((strokes) => strokes.length);
    const pixels = overlaid(drawings, network, Number($("aside").value), Number($("upward").value));
    const seen = await brain.look(network, pixels);
    const lengths = seen.lengths[network.own_passes - 1], poses = seen.poses[network.own_passes - 1];
    const found = await own(lengths, poses);
    last = { pixels, lengths, ...found };
    show();
  }, trouble);

  // The two longest capsules, ordered like the drawings, so that colours agree.
  async function own(lengths, poses) {
    const two = lengths.map((_, n) => n).sort((a, b) => lengths[b] - lengths[a]).slice(0, 2);
    let pictures = await brain.draw(network, two.map((label) => ({ label, pose: poses[label] })));
    const [aside, upward] = [Number($("aside").value), Number($("upward").value)];
    const alone = overlaid([first.strokes], network, aside, upward);
    const likeness = pictures.map((picture) => picture.reduce((sum, level, n) => sum + level * alone[n], 0) / (Math.hypot(...picture) + 1e-6));
    if (likeness[1] > likeness[0]) { two.reverse(); pictures = [pictures[1], pictures[0]]; }
    return { two, pictures };
  }

  function show() {
    if (!last) return;
    const { pixels, lengths, two, pictures } = last, size = network.size;
    paint($("seen-pairs"), [Array.from(pixels, (level) => level / 255)], size);
    paint($("both-pairs"), pictures, size, ["--first-rgb", "--second-rgb"]);
    paint($("first-pairs"), [pictures[0]], size, ["--first-rgb"]);
    paint($("second-pairs"), [pictures[1]], size, ["--second-rgb"]);
    $("first-name").textContent = `capsule ${network.labels[two[0]]}`;
    $("second-name").textContent = `capsule ${network.labels[two[1]]}`;
    $("answer-pairs").textContent = `Predicted: ${network.labels[two[0]]} and ${network.labels[two[1]]}. Each of the two longest capsules is decoded to one digit; the network never sees the colours.`;
    showBars($("bars-pairs"), lengths, network.labels, { [two[0]]: "first", [two[1]]: "second" });
  }

  for (const id of ["aside", "upward"]) $(id).addEventListener("input", changed);
  fillSelect($("network-pairs"), $("pair-network-field"), networks, (next) => { network = next; last = null; read(); });
  read();
  return { repaint: () => { first.paint(); second.paint(); show(); } };
}
