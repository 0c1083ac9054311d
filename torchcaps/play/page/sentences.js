// The fourth tab, if a sentence network is loaded: tokens and layers that a class used.
import { newestOnly } from "./brain.js";
import { $, best, make } from "./show.js";

export function openSentences(brain, trouble) {
  const about = brain.about.sentences;
  if (!about) return;
  $("tab-sentences").hidden = false;
  $("sentence").value = about.example;
  let seen = null, label = 0;
  const read = newestOnly(async (text) => {
    seen = await brain.sentence(text);
    label = best(seen.shares);
    show();
  }, trouble);

  function show() {
    const used = seen.used[label], top = Math.max(...used.flat(), 1e-9), sums = used.map((layers) => layers.reduce((a, b) => a + b, 0)), most = Math.max(...sums, 1e-9);
    $("sentence-words").textContent = `${about.name} predicts: ${about.classes[best(seen.shares)]} (${(100 * Math.max(...seen.shares)).toFixed(0)} %). Below, the data that “${about.classes[label]}” used; choose another class to see its map.`;
    $("sentence-classes").replaceChildren(...seen.shares.map((share, n) => {
      const line = make("button", { className: `bar ${n === label ? "best" : ""}`, type: "button" }, make("b", { textContent: about.classes[n] }), make("i"), make("span", { textContent: share.toFixed(2) }));
      line.setAttribute("role", "radio");
      line.setAttribute("aria-checked", n === label);
      line.children[1].style.setProperty("--share", share);
      line.addEventListener("click", () => { label = n; show(); $("sentence-classes").children[n].focus(); });
      return line;
    }));
    $("tokens").replaceChildren(...seen.words.map((word, n) => {
      const token = make("span", { textContent: word, title: `${sums[n].toFixed(3)}, sum over layers` });
      token.style.setProperty("--share", sums[n] / most);
      return token;
    }));
    const layers = used[0].map((_, l) => make("tr", {}, make("th", { scope: "row", textContent: `layer ${l}` }), ...used.map((token) => {
      const cell = make("td", { title: token[l].toFixed(3) }, make("span", { className: "skip", textContent: token[l].toFixed(2) }));
      cell.style.setProperty("--share", token[l] / top);
      return cell;
    })));
    const head = make("tr", {}, make("td"), ...seen.words.map((word) => make("th", { scope: "col", textContent: word })));
    head.firstChild.style.visibility = "hidden";
    $("heat").replaceChildren(make("table", { className: "heat" }, make("thead", {}, head), make("tbody", {}, ...layers.reverse())));
  }
  $("sentence-form").addEventListener("submit", (event) => { event.preventDefault(); read($("sentence").value); });
  read(about.example);
}
