// Helpers that several tabs share.

export const $ = (id) => document.getElementById(id);
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const best = (numbers) => numbers.indexOf(Math.max(...numbers));
export const measured = (network) => (network.measure === "share" ? "probability" : network.measure);

export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function rgb(name) {
  const text = colour(name);
  return text.startsWith("#") ? [1, 3, 5].map((n) => parseInt(text.slice(n, n + 2), 16)) : text.split(" ").map(Number);
}

// Paints levels 0..1 in a colour; several images are blended by multiplying, or on a dark page by adding light.
export function paint(canvas, pictures, size, inks = ["--ink"]) {
  canvas.width = canvas.height = size;
  const pen = canvas.getContext("2d"), image = pen.createImageData(size, size), paper = rgb("--sunk"), colours = inks.map(rgb);
  const dark = paper[0] < 128;
  for (let n = 0; n < size * size; n++) for (let c = 0; c < 3; c++) {
    let level = paper[c] / 255;
    colours.forEach((ink, k) => {
      const share = pictures[k][n], towards = ink[c] / 255;
      if (colours.length === 1) level += share * (towards - level);
      else level = dark ? 1 - (1 - level) * (1 - share * towards) : level * (1 - share * (1 - towards));
    });
    image.data[4 * n + c] = 255 * level;
    image.data[4 * n + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
}

// One line per class; `marks` gives the CSS class of a line.
export function showBars(place, numbers, names, marks) {
  if (place.children.length !== numbers.length) {
    place.style.setProperty("--name", `${Math.min(12, Math.max(...names.map((name) => name.length)))}ch`); // aligns the bars
    place.replaceChildren(...numbers.map((_, n) => make("div", { className: "bar" }, make("b", { textContent: names[n], title: names[n] }), make("i"), make("span"))));
  }
  numbers.forEach((number, n) => {
    const line = place.children[n];
    line.className = `bar ${marks[n] ?? ""}`;
    line.children[1].style.setProperty("--share", Math.min(1, number).toFixed(3));
    line.children[2].textContent = number.toFixed(2);
  });
}

export function fillSelect(select, field, networks, changed) {
  select.replaceChildren(...networks.map((network, n) => make("option", { value: n, textContent: `${network.name} (${network.note})` })));
  field.hidden = networks.length < 2;
  select.addEventListener("change", () => changed(networks[select.value]));
}

// Called when the colour scheme changes, since canvases do not update by themselves.
export const whenRecoloured = (again) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
