// The first tab: draw a digit, see the capsule lengths, change the pose of the predicted class, and watch the routing.
import { newestOnly } from "./brain.js";
import { makePad } from "./pad.js";
import { picture } from "./prepare.js";
import { makeRouting } from "./routing.js";
import { $, best, fillSelect, make, measured, paint, showBars } from "./show.js";

const RANGE = .6; // pose dimensions are small, since no class capsule is longer than 1

export function openOne(brain, trouble, drawingChanged) {
  const networks = brain.about.networks.filter((network) => !network.pairs && !network.compared);
  let network = networks[0], seen = null, pixels = null, winner = 0, pose = [], drawn = null, turned = null;
  const routing = makeRouting();
  const pad = makePad($("pad-one"), { name: "Drawing pad", start: 7, changed: (strokes) => { read(); drawingChanged(strokes); } });

  const read = newestOnly(async () => {
    const asked = network;
    pixels = picture(pad.strokes, asked);
    paint($("seen-one"), [Array.from(pixels, (level) => level / 255)], asked.size);
    const answer = await brain.look(asked, pixels);
    if (asked !== network) return;
    seen = answer;
    showAnswer();
    routing.show(network, seen, pixels);
    if (!network.draws) return;
    pose = [...seen.poses[network.own_passes - 1][winner]];
    setSliders();
    [drawn] = await brain.draw(network, [{ label: winner, pose }]);
    turned = drawn;
    repaint();
  }, trouble);

  function showAnswer() {
    const lengths = seen.lengths[network.own_passes - 1];
    winner = best(lengths);
    const blank = !pad.strokes.length;
    $("answer-one").textContent = blank ? "–" : network.labels[winner];
    $("answer-one").classList.toggle("word", !blank && network.labels[winner].length > 2);
    $("sure-one").textContent = blank ? "draw a digit" : `${measured(network)} ${lengths[winner].toFixed(2)}`;
    showBars($("bars-one"), lengths, network.labels, { [winner]: "best" });
    $("turn-title").textContent = `The ${network.d_class} pose dimensions of capsule ${network.labels[winner]}`;
  }

  const turn = newestOnly(async () => {
    [turned] = await brain.draw(network, [{ label: winner, pose: [...pose] }]);
    repaint();
  }, trouble);

  function setSliders() {
    const place = $("sliders-one");
    if (place.children.length !== pose.length) place.replaceChildren(...pose.map((_, n) => slider(n)));
    pose.forEach((number, n) => setSlider(place.children[n], number, false));
  }
  function slider(n) {
    const input = make("input", { type: "range", min: -RANGE, max: RANGE, step: .01 });
    input.setAttribute("aria-label", `Pose dimension ${n + 1}`);
    const line = make("label", {}, `${n + 1}`, input, make("output"));
    input.addEventListener("input", () => { pose[n] = Number(input.value); setSlider(line, pose[n], true); turn(); });
    return line;
  }
  function setSlider(line, number, moved) {
    line.querySelector("input").value = number;
    const shown = line.querySelector("output");
    shown.textContent = number.toFixed(2);
    shown.className = moved ? "moved" : "";
  }
  function repaint() {
    if (drawn) paint($("drawn-one"), [drawn], network.size);
    if (turned) paint($("turned-one"), [turned], network.size, ["--accent"]);
    if (pixels) paint($("seen-one"), [Array.from(pixels, (level) => level / 255)], network.size);
    pad.paint();
  }
  function choose(next) {
    network = next;
    $("decoder-one").hidden = !network.draws;
    $("no-decoder").hidden = network.draws;
    $("no-decoder").textContent = `${network.name} has no decoder, so it cannot reconstruct what it sees. ${others()}`;
    $("card-routing").hidden = !network.grid;
    $("bars-title").textContent = `${{ length: "Length", activity: "Activity", share: "Probability" }[network.measure]} of each class${network.measure === "share" ? "" : " capsule"}`;
    $("bars-one").replaceChildren();
    $("sliders-one").replaceChildren();
    routing.begin(network);
    read();
  }
  function others() {
    const able = networks.filter((other) => other.draws).map((other) => other.name);
    return able.length ? `These can: ${able.join(", ")}.` : "";
  }
  fillSelect($("network-one"), $("network-field"), networks, choose);
  $("reset-one").addEventListener("click", () => { if (seen) { pose = [...seen.poses[network.own_passes - 1][winner]]; setSliders(); turn(); } });
  choose(network);
  return { pad, networks, repaint: () => { repaint(); if (seen && network.grid) routing.show(network, seen, pixels); } };
}
