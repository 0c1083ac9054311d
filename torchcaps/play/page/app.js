// Opens the tabs once the backend is known.
import { openBrain } from "./brain.js";
import { openCompare } from "./compare.js";
import { openOne } from "./one.js";
import { openPairs } from "./pairs.js";
import { openSentences } from "./sentences.js";
import { $, whenRecoloured } from "./show.js";

function trouble(error) {
  $("trouble").hidden = !error;
  if (error) $("trouble").textContent = error.message;
}

// Arrow keys move between tabs; `opened` is called with the name of the new one.
function makeTabs(opened) {
  const all = [...document.querySelectorAll("[role=tab]")];
  function choose(tab, focus) {
    for (const other of all) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", chosen);
      other.tabIndex = chosen ? 0 : -1;
      $(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
    history.replaceState(null, "", `#${tab.id.slice(4)}`);
    opened(tab.id.slice(4));
  }
  for (const tab of all) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const shown = all.filter((other) => !other.hidden), n = shown.indexOf(tab);
      const next = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: -1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      choose(shown.at(next % shown.length), true);
    });
  }
  const named = all.find((tab) => tab.id === `tab-${location.hash.slice(1)}` && !tab.hidden);
  if (named) choose(named);
}

try {
  const brain = await openBrain();
  let compare = null;
  const one = openOne(brain, trouble, () => compare?.read());
  compare = openCompare(brain, trouble, one.pad);
  const pairs = openPairs(brain, trouble);
  openSentences(brain, trouble);
  const again = () => { one.repaint(); pairs.repaint(); compare.read(); };
  makeTabs(again);
  whenRecoloured(again);
  const where = brain.about.runtime === "onnx" ? "Everything is computed in this browser" : "Everything is computed on the machine that serves this page";
  $("about").textContent = `${where}; nothing is stored, and no other server is contacted. Networks: ${brain.about.networks.map((network) => network.name).join(", ")}.`;
  document.body.dataset.ready = "yes";
} catch (error) {
  trouble(error);
}
