"use strict";
const map = document.querySelector("[data-figure=map]"), walk = document.getElementById("walk");
if (map) {
  const { items, order } = JSON.parse(document.getElementById("items").textContent);
  const marks = new Map([...map.querySelectorAll("[data-item]")].map(mark => [Number(mark.dataset.item), mark]));
  const ring = map.querySelector(".ring");
  const show = i => {
    const [image, caption] = items[i], seen = document.getElementById("seen");
    if (image) { seen.src = image; seen.alt = caption; seen.hidden = false; }
    document.getElementById("said").textContent = caption;
  };
  const step = () => {
    const i = order[walk.value];
    walk.setAttribute("aria-valuetext", items[i][1]);
    ring.setAttribute("transform", marks.get(i).getAttribute("transform"));
    show(i);
  };
  walk.addEventListener("input", step);
  for (const [i, mark] of marks) {
    mark.addEventListener("mouseenter", () => show(i));
    mark.addEventListener("click", () => { walk.value = order.indexOf(i); step(); });
  }
  for (const choice of document.querySelectorAll("[name=color]"))
    choice.addEventListener("change", () => map.classList.toggle("scored", choice.value === "score"));
  step();
}
document.documentElement.dataset.drawn = document.querySelectorAll(".figure > svg").length;
