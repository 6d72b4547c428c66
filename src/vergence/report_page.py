"""HTML and plotly pieces of a page; they know nothing of runs. Text cells are HTML already: callers escape."""

import base64
import io
import math
from collections.abc import Mapping
from html import escape
from string import Template
from typing import Any

__all__ = ["AGAIN", "CHOICE", "COLOURS", "MAP", "SCRIPT", "STYLE", "TEMPLATE", "count", "curve", "finite", "histogram"]
__all__ += ["missing", "number", "picture", "scatter", "table"]

Figure = dict[str, Any]

SIDE = 64  # pixels of a thumbnail
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#222222")  # distinct to colour-blind eyes
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")  # 7 and 5 are coprime: 35 classes look different

TEMPLATE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: blob:;
style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>$header</header>
<nav aria-label="Sections">$nav</nav>
<noscript><p class="note">The charts need JavaScript; words, tables and pictures do without.</p></noscript>
<main>$main</main>
<script>$plotly</script>
<script type="application/json" id="figures">$figures</script>
<script>$script</script>
</body>
</html>
""")

STYLE = """
:root { color-scheme: light; --ink: #1c2430; --soft: #55606e; --line: #d9dee5; --accent: #005a8f; --wash: #f4f6f9 }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem clamp(.8rem, 3vw, 2.5rem) 4rem; max-width: 1180px; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; overflow-wrap: anywhere }
h1 { margin: 0 0 .4rem; font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2 }
h2 { margin: 0 0 .6rem; font-size: 1.35rem } h3 { margin: .8rem 0 .3rem; font-size: 1rem }
h3 small, small { color: var(--soft); font-weight: 400 } p { margin: .4rem 0 .8rem; max-width: 75ch }
.lead { font-size: 1.08rem; border-left: 4px solid var(--accent); padding-left: 1rem; margin: 1rem 0 }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(210px, 100%), 1fr)); gap: .6rem 1.4rem; margin: 1.2rem 0 }
dt { color: var(--soft); font-size: .82rem } dd { margin: 0; font-weight: 600 }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: .7rem 0; border-block: 1px solid var(--line) }
a, summary { color: var(--accent) } summary { cursor: pointer; padding: .4rem 0; font-weight: 600 }
:focus-visible { outline: 3px solid #e69f00; outline-offset: 2px }
section { padding-top: 2.2rem }
.scroll { overflow-x: auto; margin: .6rem 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { padding: .38rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
thead th { border-bottom: 2px solid var(--ink); font-size: .82rem; line-height: 1.25; vertical-align: bottom; min-width: 4.6rem }
tbody th { text-align: left; position: sticky; left: 0; background: #fff; font-weight: 500; min-width: 7rem }
td b { color: var(--accent) } .words td, .words thead th { text-align: left }
.tag, .query { border: 1px solid var(--soft); border-radius: 3px; padding: 0 .3em; font-size: .75rem; color: var(--soft); white-space: nowrap }
.query { color: #fff; background: var(--ink) }
.note { background: #fff5e0; border-left: 4px solid #b8860b; padding: .5rem .9rem } .missing { color: var(--soft); font-style: italic }
.items { display: grid; grid-template-columns: repeat(auto-fill, minmax(84px, 1fr)); gap: .5rem; margin-bottom: .8rem }
.items figure { margin: 0; padding: .35rem; background: var(--wash); border: 1px solid transparent; border-radius: 4px; text-align: center }
.items .other { border: 1px dashed #d55e00 } figcaption { font-size: .76rem; line-height: 1.3; margin-top: .2rem }
.items img, #seen { width: 100%; max-width: 64px; aspect-ratio: 1; object-fit: contain; image-rendering: pixelated; background: #fff }
.items span { font-size: .76rem } .curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); gap: 1rem }
.figure { width: 100%; min-width: 0 } .curves > div, .map > div { min-width: 0 }
.map { display: grid; grid-template-columns: minmax(0, 1fr) 230px; gap: 1rem }
.panel { background: var(--wash); border-radius: 4px; padding: .9rem; align-self: start } #seen { max-width: 160px; display: block }
#seen[hidden] { display: none } #said { min-height: 4.6em; font-size: .9rem } fieldset { border: 0; padding: 0; margin: 0 0 .8rem }
label { margin-right: .8rem } input[type=range] { width: 100% }
pre { background: var(--wash); padding: .8rem; border-radius: 4px; white-space: pre-wrap } code { font-size: .92em }
@media (max-width: 700px) { .map { grid-template-columns: minmax(0, 1fr) } }
"""

SCRIPT = """
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const base = { font: { family: "inherit", size: 12, color: "#1c2430" }, margin: { l: 56, r: 12, t: 12, b: 44 },
  paper_bgcolor: "#fff", plot_bgcolor: "#fff", hoverlabel: { bgcolor: "#fff" }, legend: { orientation: "h", y: 1.12 } };
const axis = { gridcolor: "#e7eaef", linecolor: "#8a94a0", automargin: true };
const drawn = [...document.querySelectorAll("[data-figure]")].map(div => {
  const { data, layout } = figures[div.dataset.figure];
  const full = { ...base, ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis } };
  return Plotly.newPlot(div, data, full, { responsive: true, displaylogo: false, displayModeBar: div.dataset.figure === "map" });
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
  const step = () => { const i = figures.order[walk.value]; walk.setAttribute("aria-valuetext", figures.items[i][1]); show(i); ring(i); };
  walk.addEventListener("input", step);
  drawn[[...document.querySelectorAll("[data-figure]")].indexOf(map)].then(() => {
    map.on("plotly_hover", event => show(event.points[0].customdata));
    map.on("plotly_click", event => { walk.value = figures.order.indexOf(event.points[0].customdata); step(); });
    step();
  });
  for (const choice of document.querySelectorAll("[name=colour]"))
    choice.addEventListener("change", () => Plotly.restyle(map, { visible: map.data.map(t => t.meta === "ring" || t.meta === choice.value) }));
}
"""

MAP = Template("""<p>$n test items, each a point where the model's embedding puts it, seen along the two directions in which they differ
most. Neighbours here need not be neighbours in the whole space. Point at one to see it, or step through them with the slider.</p>
<div class="map"><div>$chart</div><div class="panel">$choice
<label for="walk">Item, most unusual first</label><input type="range" id="walk" min="0" max="$last" value="0">
<img id="seen" alt="" hidden><p id="said" aria-live="polite"></p></div></div>""")

CHOICE = """<fieldset><legend>Colour by</legend><label><input type="radio" name="colour" value="label" checked> label</label>
<label><input type="radio" name="colour" value="score"> score</label></fieldset>"""

AGAIN = """<p>In this run's folder; with the same versions on a CPU, training gives the same weights to the last bit.</p>
<pre><code>python -c "import json, vergence.api as v, vergence.config as c
v.train(c.RunConfig.from_dict(json.load(open('config.json'))), out='again')"
vergence evaluate again
vergence report again</code></pre>"""


def table(label: str, head: list[str], rows: list[list[str]], kind: str = "") -> str:
    """Returns a table whose first column heads its rows; what is wider than the page scrolls by itself."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    whole = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{whole}</div>'


def missing(sentence: str) -> str:
    """Returns what stands where a part is not there."""
    return f'<p class="missing">{sentence}</p>'


def picture(x: Any) -> str:
    """Returns an image, a uint8 array (C, h, w) with C of 1 or 3, as a PNG data address at most 64 pixels wide and high."""
    from PIL import Image

    image = Image.fromarray(x[0] if len(x) != 3 else x.transpose(1, 2, 0).copy())
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def finite(x: Any) -> bool:
    """Says whether ``x`` is a number that can be drawn."""
    return isinstance(x, (int, float)) and math.isfinite(x)


def number(x: Any) -> str:
    """Returns four digits of a number, or a dash."""
    return f"{x:.4g}" if x is not None and math.isfinite(x) else "–"


def count(x: Any) -> str:
    """Returns a whole number with its thousands apart, or a dash."""
    return f"{x:,}" if isinstance(x, int) else "–"


def curve(x: list[float], y: list[float]) -> Figure:
    """Returns one quantity over the epochs."""
    trace = {"x": x, "y": y, "mode": "lines+markers" if len(x) < 60 else "lines", "line": {"color": COLOURS[0]}}
    trace |= {"marker": {"size": 5}, "hovertemplate": "epoch %{x}<br>%{y:.5g}<extra></extra>"}
    margin = {"l": 56, "r": 12, "t": 8, "b": 34}
    return {
        "data": [trace],
        "layout": {"height": 210, "margin": margin, "xaxis": {"title": {"text": "epoch"}}, "dragmode": False},
    }


def histogram(groups: Mapping[str, list[float]], title: str) -> Figure:
    """Returns the shares of each group over common bins."""
    traces = [
        {"type": "histogram", "x": x, "name": name, "histnorm": "percent", "bingroup": "all", "nbinsx": 40, "opacity": 0.65}
        | {"marker": {"color": COLOURS[k]}, "hovertemplate": "%{x}<br>%{y:.1f} % of " + name + "<extra></extra>"}
        for k, (name, x) in enumerate(groups.items())
    ]
    axes = {"xaxis": {"title": {"text": title}}, "yaxis": {"title": {"text": "% of the group"}}}
    return {"data": traces, "layout": {"barmode": "overlay", "height": 320, "dragmode": False, "showlegend": True, **axes}}


def scatter(xy: Any, index: list[int], captions: list[str], name: str, k: int, score: Any = None) -> Figure:
    """Returns the points ``index`` of ``xy`` (n, 2) as one trace: in the colour of class k, or by ``score`` (n,)."""
    import numpy as np

    marker: Figure = {"size": 8, "color": COLOURS[k % 7], "symbol": SYMBOLS[k % 5], "line": {"width": 0.5, "color": "#fff"}}
    if score is not None:
        low, high = np.quantile(score[index], [0.01, 0.99]).tolist()  # one extreme score would make all others one colour
        bar = {"title": {"text": "score"}, "thickness": 12}
        marker |= {"color": score[index].tolist(), "colorscale": "Cividis", "cmin": low, "cmax": high, "colorbar": bar}
        marker["symbol"] = "circle"
    text = [escape(captions[i], quote=False) for i in index]  # plotly reads tags in labels and names
    where = {"x": xy[index, 0].tolist(), "y": xy[index, 1].tolist(), "customdata": index}
    return {
        "mode": "markers",
        "name": escape(name, quote=False),
        "marker": marker,
        "hovertext": text,
        "hoverinfo": "text",
        **where,
    }
