// A drawing pad for mouse, pen or finger, with ten example digits for keyboards.
import { glyph } from "./glyphs.js";
import { colour, make } from "./show.js";

export function makePad(place, { name, start, changed, ink = "--ink" }) {
  const canvas = make("canvas", { role: "img", tabIndex: -1 });
  canvas.setAttribute("aria-label", `${name}. Draw with mouse or finger, or choose a digit below.`);
  const clear = make("button", { className: "quiet", textContent: "Clear" });
  const undo = make("button", { className: "quiet", textContent: "Undo" });
  const head = make("div", { className: "row" }, make("span", { textContent: "draw here, or pick an example:" }), make("div", { className: "row" }, undo, clear));
  const examples = exampleButtons((digit) => set(glyph(digit)));
  place.classList.add("pad");
  place.append(canvas, head, examples);
  let strokes = start === undefined ? [] : glyph(start), live = null;

  function set(next) { strokes = next; paint(); changed(strokes); }
  function paint() {
    const side = Math.round(canvas.clientWidth * devicePixelRatio);
    if (!side) return; // in a hidden tab
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, side, side);
    pen.lineCap = pen.lineJoin = "round";
    pen.lineWidth = side * .06;
    pen.strokeStyle = colour(ink);
    for (const stroke of strokes) {
      pen.beginPath();
      pen.moveTo(...stroke[0].map((part) => part * side));
      for (const point of stroke.length > 1 ? stroke.slice(1) : stroke) pen.lineTo(...point.map((part) => part * side));
      pen.stroke();
    }
  }
  const at = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    live = [at(event)];
    strokes = [...strokes, live];
    paint();
    changed(strokes);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!live) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) live.push(at(part));
    live.push(at(event));
    paint();
    changed(strokes);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { live = null; });
  clear.addEventListener("click", () => set([]));
  undo.addEventListener("click", () => set(strokes.slice(0, -1)));
  new ResizeObserver(paint).observe(canvas);
  paint();
  return { get strokes() { return strokes; }, set, paint };
}

export function exampleButtons(choose) {
  const buttons = [...Array(10).keys()].map((digit) => {
    const button = make("button", { textContent: digit });
    button.setAttribute("aria-label", `Example ${digit}`);
    button.addEventListener("click", () => choose(digit));
    return button;
  });
  return make("div", { className: "examples" }, ...buttons);
}
