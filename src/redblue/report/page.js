const { figures, themes } = JSON.parse(document.getElementById("charts").textContent);
const choice = document.getElementById("shape");
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");
let drawn = null;

async function draw() {
  const scheme = dark.matches ? "dark" : "light";
  const config = structuredClone(themes[scheme]);
  if (narrow.matches) config.legend.columns = 2;
  const options = { config, renderer: "svg", actions: false, tooltip: { theme: scheme } };
  drawn?.finalize();
  drawn = await window.vegaEmbed("#figure", structuredClone(figures[choice.value]), options);
}

for (const event of [choice, dark, narrow]) event.addEventListener("change", draw);
draw();
