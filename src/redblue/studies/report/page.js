const { figures, results, themes } = JSON.parse(document.getElementById("charts").textContent);
const choice = document.getElementById("shape");
const dark = matchMedia("(prefers-color-scheme: dark)");
let drawn = null;

async function draw() {
  const scheme = dark.matches ? "dark" : "light";
  const options = { config: themes[scheme], renderer: "svg", actions: false, tooltip: { theme: scheme } };
  drawn?.finalize();
  drawn = await window.vegaEmbed("#figure", structuredClone(figures[choice.value]), options);
  drawn.view.addEventListener("pointermove", (_, item) => say(item?.tooltip));
  drawn.view.addEventListener("click", (_, item) => say(item?.tooltip));
}

// Touch screens show no tooltips, so the values of a tooltip are also written below the figure.
function say(values) {
  if (!values) return;
  document.getElementById("values").replaceChildren(...Object.entries(values).map(([name, value]) => {
    const cell = document.createElement("span");
    cell.append(`${name} `, Object.assign(document.createElement("b"), { textContent: value }));
    return cell;
  }));
}

async function drawResults() {
  const scheme = dark.matches ? "dark" : "light";
  for (const place of document.querySelectorAll("[data-result]")) {
    const options = { config: themes[scheme], renderer: "svg", actions: false, tooltip: { theme: scheme } };
    await window.vegaEmbed(place, structuredClone(results[place.dataset.result]), options);
  }
}

dark.addEventListener("change", drawResults);
for (const event of [choice, dark]) event.addEventListener("change", draw);
draw().then(drawResults);
