"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const base = { font: { family: "inherit", size: 12, color: "#1c2430" }, margin: { l: 56, r: 12, t: 12, b: 44 },
  paper_bgcolor: "#fff", plot_bgcolor: "#fff", hoverlabel: { bgcolor: "#fff" }, legend: { orientation: "h", y: 1.12 } };
const axis = { gridcolor: "#e7eaef", linecolor: "#8a94a0", automargin: true, zeroline: false };
const drawn = [...document.querySelectorAll("[data-figure]")].map(div => {
  const { data, layout } = figures[div.dataset.figure];
  const full = { ...base, ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis } };
  const bar = div.dataset.figure === "map" && innerWidth > 700;
  const quiet = { displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  return Plotly.newPlot(div, data, full, { ...quiet, responsive: true, displayModeBar: bar });
});
Promise.all(drawn).then(all => { document.documentElement.dataset.drawn = all.length; });

const map = document.querySelector("[data-figure=map]"), walk = document.getElementById("walk");
function show(i) {
  const [picture, caption] = figures.items[i], seen = document.getElementById("seen");
  if (picture) { seen.src = picture; seen.alt = caption; seen.hidden = false; }
  document.getElementById("said").textContent = caption;
}
function ring(i) {
  for (const trace of map.data) {
    const at = trace.customdata ? trace.customdata.indexOf(i) : -1;
    if (at >= 0) { Plotly.restyle(map, { x: [[trace.x[at]]], y: [[trace.y[at]]] }, [map.data.length - 1]); return; }
  }
}
if (map) {
  const step = () => {
    const i = figures.order[walk.value];
    walk.setAttribute("aria-valuetext", figures.items[i][1]);
    show(i);
    ring(i);
  };
  walk.addEventListener("input", step);
  drawn[[...document.querySelectorAll("[data-figure]")].indexOf(map)].then(() => {
    map.on("plotly_hover", event => show(event.points[0].customdata));
    map.on("plotly_click", event => { walk.value = figures.order.indexOf(event.points[0].customdata); step(); });
    step();
  });
  for (const choice of document.querySelectorAll("[name=color]"))
    choice.addEventListener("change", () =>
      Plotly.restyle(map, { visible: map.data.map(trace => trace.meta === "ring" || trace.meta === choice.value) }));
}
