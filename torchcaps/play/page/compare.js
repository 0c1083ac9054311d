// The third tab: one drawing through every network, by routing iteration.
import { newestOnly } from "./brain.js";
import { glyph } from "./glyphs.js";
import { exampleButtons } from "./pad.js";
import { picture } from "./prepare.js";
import { $, best, make, measured, paint } from "./show.js";

export function openCompare(brain, trouble, pad) {
  const networks = brain.about.networks, most = Math.max(...networks.map((network) => network.n_passes));
  $("compare-examples").replaceWith(exampleButtons((digit) => pad.set(glyph(digit))));

  const read = newestOnly(async () => {
    if ($("panel-compare").hidden) return;
    const rows = [];
    for (const network of networks) {
      const seen = await brain.look(network, picture(pad.strokes, network));
      const drawn = [];
      if (network.draws) for (let t = 0; t < network.n_passes; t++) {
        const label = best(seen.lengths[t]);
        drawn.push((await brain.draw(network, [{ label, pose: seen.poses[t][label] }]))[0]);
      }
      rows.push(row(network, seen, drawn));
    }
    const head = make("tr", {}, make("th", { textContent: "network" }), ...[...Array(most).keys()].map((t) => make("th", { textContent: t ? `${t + 1} iterations` : "1 iteration" })));
    $("compare").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  }, trouble);

  function row(network, seen, drawn) {
    const words = `${network.note}; ${network.n_parameters.toLocaleString("en")} parameters; bars: ${measured(network)}${network.pairs ? "; trained on two digits" : ""}`;
    const name = make("th", { scope: "row" }, network.name, make("small", { className: "muted", textContent: words }));
    return make("tr", {}, name, ...seen.lengths.map((lengths, t) => cell(network, lengths, t, drawn[t])));
  }

  function cell(network, lengths, t, drawn) {
    const winner = best(lengths);
    const said = make("div", { className: "said" }, make("b", { textContent: network.labels[winner], className: network.labels[winner].length > 2 ? "word" : "" }), make("span", { textContent: lengths[winner].toFixed(2) }));
    const made = make("td", { className: `cell${network.grid && network.own_passes === t + 1 ? " own" : ""}` }, said);
    made.insertAdjacentHTML("beforeend", `<svg viewBox="0 0 ${10 * lengths.length} 46" preserveAspectRatio="none" aria-hidden="true">${lengths.map((length, j) => {
      const tall = Math.max(1, 44 * Math.min(1, length));
      return `<rect x="${j * 10 + 1}" y="${(46 - tall).toFixed(1)}" width="8" height="${tall.toFixed(1)}" rx="1.5" class="${j === winner ? "best" : ""}"/>`;
    }).join("")}</svg>`);
    if (drawn) {
      const canvas = make("canvas", { className: "picture" });
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `reconstruction from capsule ${network.labels[winner]}`);
      paint(canvas, [drawn], network.size);
      made.append(canvas);
    }
    return made;
  }
  return { read };
}
