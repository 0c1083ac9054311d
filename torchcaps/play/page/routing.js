// Draws couplings as lines from image positions to classes, for each routing iteration.
import { $, best, paint } from "./show.js";

const SPACE = "http://www.w3.org/2000/svg", TOP = 14;
const SHAPES = { wide: { width: 1000, side: 390, classes: 760, bar: 190 }, narrow: { width: 560, side: 270, classes: 410, bar: 105 } };

function draw(tag, properties) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  return made;
}

export function makeRouting() {
  let WIDE, SIDE, CLASSES, bar, long, network = null, seen = null, links = [], rows = [], image = null, dots = [], playing = null;
  const pass = $("pass");

  function begin(next) {
    network = next;
    stop();
    if (!network.grid) return;
    Object.assign(pass, { max: network.n_passes, value: network.own_passes });
    const narrow = $("routing").clientWidth ? $("routing").clientWidth < 620 : innerWidth < 660;
    ({ width: WIDE, side: SIDE, classes: CLASSES, bar } = SHAPES[narrow ? "narrow" : "wide"]);
    const TALL = SIDE + 2 * TOP, [down, across] = network.grid, { first, step } = network.places, pixel = SIDE / network.size;
    const svg = draw("svg", { class: narrow ? "routing narrow" : "routing", viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-labelledby": "routing-words" });
    svg.append(draw("rect", { class: "frame", x: 10, y: TOP, width: SIDE, height: SIDE, rx: 14 }));
    image = draw("image", { class: "shown", x: 10, y: TOP, width: SIDE, height: SIDE, opacity: .5 });
    svg.append(image);
    const names = network.labels.map((name) => (name.length > 9 ? `${name.slice(0, 8)}…` : name));
    const aside = 27 + 9.5 * Math.max(...names.map((name) => name.length)); // start of the bars, right of the longest name
    long = bar + 36 - aside;
    const y = (j) => TOP + (j + .5) * SIDE / network.n_classes;
    links = [];
    const starts = [];
    for (let p = 0; p < down * across; p++) {
      const at = [10 + pixel * (first + step * (p % across)), TOP + pixel * (first + step * Math.floor(p / across))];
      starts.push(at);
      links.push([...Array(network.n_classes).keys()].map((j) => {
        const bend = (at[0] + CLASSES) / 2 + 60;
        const link = draw("path", { class: "link", d: `M${at[0]} ${at[1]}C${bend} ${at[1]} ${bend - 60} ${y(j)} ${CLASSES} ${y(j)}` });
        svg.append(link);
        return link;
      }));
    }
    dots = starts.map(([cx, cy]) => svg.appendChild(draw("circle", { class: "place", cx, cy, r: 5 })));
    rows = [...Array(network.n_classes).keys()].map((j) => {
      const name = draw("text", { x: CLASSES + 14, y: y(j) + 5 });
      name.textContent = names[j];
      svg.append(name, draw("rect", { class: "track", x: CLASSES + aside, y: y(j) - 8, width: long, height: 16, rx: 8 }));
      return { name, fill: svg.appendChild(draw("rect", { class: "fill", x: CLASSES + aside, y: y(j) - 8, height: 16, rx: 8, width: 0 })) };
    });
    $("routing").replaceChildren(svg);
  }

  function show(of, answer, pixels) {
    if (!of.grid) return;
    seen = answer;
    const canvas = document.createElement("canvas");
    paint(canvas, [Array.from(pixels, (level) => level / 255)], of.size);
    image.setAttribute("href", canvas.toDataURL());
    repass();
  }

  function repass() {
    if (!seen) return;
    const t = pass.value - 1, winner = best(seen.lengths[t]), couplings = seen.couplings[t], most = Math.max(...seen.strength, 1e-6);
    const equal = 1 / network.n_classes, above = (share) => Math.max(0, share - equal);
    const top = Math.max(...seen.couplings.flat(2).map(above), .02); // over all iterations, so that lines grow during routing
    $("pass-number").textContent = pass.value;
    links.forEach((several, p) => {
      const strength = seen.strength[p] / most;
      dots[p].setAttribute("r", 2 + 5 * strength);
      several.forEach((link, j) => {
        const gain = strength * above(couplings[p][j]) / top;
        link.setAttribute("stroke", j === winner ? "var(--accent)" : "var(--muted)");
        link.setAttribute("stroke-width", (.7 + 6 * gain).toFixed(2));
        link.setAttribute("stroke-opacity", (.1 + .75 * gain ** .7).toFixed(3));
      });
    });
    rows.forEach((row, j) => {
      row.fill.setAttribute("width", long * Math.min(1, seen.lengths[t][j]));
      for (const part of [row.fill, row.name]) part.classList.toggle("best", j === winner);
    });
    const mean = seen.strength.reduce((sum, strength, p) => sum + strength * couplings[p][winner], 0) / Math.max(seen.strength.reduce((a, b) => a + b, 0), 1e-6);
    const own = network.own_passes === t + 1 ? ", as in training" : "";
    $("routing-words").textContent = `Each line is the coupling of an image position to a class; a thick line is far above uniform (largest coupling: ${(100 * (top + equal)).toFixed(0)} %). After iteration ${t + 1} of ${network.n_passes}${own}: `
      + `capsule ${network.labels[winner]} has length ${seen.lengths[t][winner].toFixed(2)} and receives ${(100 * mean).toFixed(0)} % of the couplings`
      + (t === 0 ? "; in the first iteration, couplings are uniform." : ".");
  }

  function stop() { clearInterval(playing); playing = null; $("play-routing").textContent = "▶ Play"; }
  $("play-routing").addEventListener("click", () => {
    if (playing) return stop();
    pass.value = 1;
    repass();
    $("play-routing").textContent = "■ Stop";
    playing = setInterval(() => { if (pass.value === pass.max) stop(); else { pass.stepUp(); repass(); } }, 800);
  });
  pass.addEventListener("input", () => { stop(); repass(); });
  addEventListener("resize", () => {
    const before = WIDE;
    if (!network?.grid || !seen || ($("routing").clientWidth < 620) === (before === SHAPES.narrow.width)) return;
    const [at, href] = [pass.value, image.getAttribute("href")];
    begin(network);
    pass.value = at;
    image.setAttribute("href", href);
    repass();
  });
  return { begin, show };
}
