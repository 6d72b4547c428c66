"""HTML and plotly pieces of a page; they know nothing of runs. Text cells are HTML already: callers escape."""

import base64
import io
import json
import math
from collections.abc import Iterable, Mapping
from html import escape
from string import Template
from typing import Any

__all__ = ["AGAIN", "CHOICE", "MAP", "Columns", "assemble", "chart", "count", "curve", "definitions", "duel", "finite"]
__all__ += ["histogram", "lines", "missing", "number", "picture", "ranking", "scatter", "table", "verdict"]

Figure = dict[str, Any]
Columns = dict[str, dict[str, float]]  # title of a column -> name of a row -> share in [0, 1]

SIDE = 64  # pixels of a thumbnail
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#222222")  # distinct to color-blind eyes
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
body { margin: 0 auto; padding: 1.5rem clamp(.8rem, 3vw, 2.5rem) 4rem; max-width: 1180px; color: var(--ink);
  background: #fff; font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; overflow-wrap: anywhere }
h1 { margin: 0 0 .4rem; font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2 }
h2 { margin: 0 0 .6rem; font-size: 1.35rem } h3 { margin: .8rem 0 .3rem; font-size: 1rem }
h3 small, small { color: var(--soft); font-weight: 400 } p { margin: .4rem 0 .8rem; max-width: 75ch }
.lead { font-size: 1.08rem; border-left: 4px solid var(--accent); padding-left: 1rem; margin: 1rem 0 }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(160px, 100%), 1fr));
  gap: .6rem 1.4rem; margin: 1.2rem 0 }
dt { color: var(--soft); font-size: .82rem } dd { margin: 0; font-weight: 600 }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: .7rem 0; border-block: 1px solid var(--line) }
a, summary { color: var(--accent) } summary { cursor: pointer; padding: .4rem 0; font-weight: 600 }
:focus-visible { outline: 3px solid #e69f00; outline-offset: 2px }
section { padding-top: 2.2rem }
.scroll { overflow-x: auto; margin: .6rem 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { padding: .38rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
thead th { border-bottom: 2px solid var(--ink); font-size: .82rem; line-height: 1.25;
  vertical-align: bottom; overflow-wrap: normal }
tr > :first-child { padding-left: 0 } td { overflow-wrap: normal }
.words td:last-child { min-width: 13rem; overflow-wrap: anywhere }
tbody th { text-align: left; position: sticky; left: 0; background: #fff; font-weight: 500; min-width: 7rem }
td b { color: var(--accent) } .words td, .words thead th { text-align: left }
.tag, .query { border: 1px solid var(--soft); border-radius: 3px; padding: 0 .3em; font-size: .75rem;
  color: var(--soft); white-space: nowrap }
.query { color: #fff; background: var(--ink) }
.note { background: #fff5e0; border-left: 4px solid #b8860b; padding: .5rem .9rem }
.missing { color: var(--soft); font-style: italic }
.items { display: grid; grid-template-columns: repeat(auto-fill, minmax(84px, 1fr)); gap: .5rem; margin-bottom: .8rem }
.near { grid-template-columns: repeat(9, minmax(0, 92px)) }
.items figure { margin: 0; padding: .35rem; background: var(--wash); border: 1px solid transparent;
  border-radius: 4px; text-align: center }
.items .other { border: 1px dashed #d55e00 } figcaption { font-size: .76rem; line-height: 1.3; margin-top: .2rem }
.items img, #seen { width: 100%; max-width: 64px; aspect-ratio: 1; object-fit: contain;
  image-rendering: pixelated; background: #fff }
.items span { font-size: .76rem }
.items .query { font-size: .7rem }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); gap: 1rem }
.figure { width: 100%; min-width: 0 } .curves > div, .map > div { min-width: 0 }
.map { display: grid; grid-template-columns: minmax(0, 1fr) 230px; gap: 1rem }
.panel { background: var(--wash); border-radius: 4px; padding: .9rem; align-self: start }
#seen { max-width: 160px; display: block }
#seen[hidden] { display: none } #said { min-height: 4.6em; font-size: .9rem }
fieldset { border: 0; padding: 0; margin: 0 0 .8rem }
label { margin-right: .8rem } input[type=range] { width: 100% }
pre { background: var(--wash); padding: .8rem; border-radius: 4px; white-space: pre-wrap } code { font-size: .92em }
@media (max-width: 700px) {
  .near { grid-template-columns: repeat(5, minmax(0, 1fr)) }
  .map { grid-template-columns: minmax(0, 1fr) } }
"""

SCRIPT = """
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
"""

MAP = Template("""<p>$n test items, each where its embedding lies along the two directions in which they differ most;
neighbors here need not be neighbors in the whole space. Point at one to see it, or step through with the slider.</p>
<div class="map"><div>$chart</div><div class="panel">$choice
<label for="walk">Item$order</label>
<input type="range" id="walk" min="0" max="$last" value="0">
<img id="seen" alt="" hidden><p id="said" aria-live="polite"></p></div></div>""")

CHOICE = """<fieldset><legend>Color by</legend><label><input type="radio" name="color" value="label" checked> label</label>
<label><input type="radio" name="color" value="score"> score</label></fieldset>"""

AGAIN = Template("""<p>From the folder where this run was started; with the same versions on a CPU, training gives the same
weights to the last bit.</p>
<pre><code>python -c "import json, sys, vergence.runs.run as v, vergence.training.config as c
v.train(c.RunConfig.from_dict(json.load(open(sys.argv[1]))), out=sys.argv[2])" $config $again
vergence evaluate $again
vergence report $again</code></pre>""")


def assemble(title: str, header: str, parts: Iterable[tuple[str, str, str]], figures: Mapping[str, Any]) -> str:
    """Returns the whole page: sections of (anchor, heading, body), and charts by their place's ``data-figure``."""
    from plotly.offline import get_plotlyjs

    parts = list(parts)
    return TEMPLATE.substitute(
        title=escape(title),
        style=STYLE,
        header=header,
        nav="".join(f'<a href="#{anchor}">{heading}</a>' for anchor, heading, _ in parts),
        main="".join(f'<section id="{anchor}"><h2>{heading}</h2>{body}</section>' for anchor, heading, body in parts),
        plotly=get_plotlyjs(),
        figures=json.dumps(figures, allow_nan=False).replace("<", "\\u003c"),  # no name ends the script
        script=SCRIPT,
    )


def table(label: str, head: list[str], rows: list[list[str]], kind: str = "") -> str:
    """Returns a table whose first column heads its rows; what is wider than the page scrolls by itself."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows)
    whole = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{whole}</div>'


def missing(sentence: str) -> str:
    """Returns what stands where a part is not there."""
    return f'<p class="missing">{sentence}</p>'


def duel(kinds: Mapping[str, str], column: Mapping[str, float], meaning: str) -> str:
    """Says how the first of the model's rows does beside the best control."""
    name = next((name for name in column if kinds[name] == "model"), None)
    if name is None:
        return "the model itself was not measured."
    said = f"with <b>{escape(name)}</b>, <b>{column[name]:.1%}</b> {meaning}"
    control = max((name for name in column if kinds[name] != "model"), key=column.__getitem__, default=None)
    if control is None:
        return f"{said}; there is no control beside it."
    ahead = column[name] > column[control]
    result = "the model is ahead." if ahead else "<strong>the control does at least as well.</strong>"
    return f"{said}; with the best control, {escape(control)}, {column[control]:.1%}: {result}"


def verdict(kinds: Mapping[str, str], columns: Columns) -> str:
    """Says in words where a control is strictly better than every row of the model's."""
    won: dict[str, list[str]] = {}
    for title, column in columns.items():
        winners = [name for name, value in column.items() if value == _best(title, column)]
        if all(kinds[name] != "model" for name in winners):
            won.setdefault(" and ".join(winners), []).append(title)
    if not won:
        return "<p>In every column the model's best is at least level with the controls.</p>"
    said = "; ".join(f"<b>{escape(name)}</b> in {len(t)} of {len(columns)} columns ({', '.join(t)})" for name, t in won.items())
    return f'<p class="note"><strong>A control wins:</strong> {said}. There, the simpler way does better.</p>'


def ranking(label: str, kinds: Mapping[str, str], columns: Columns) -> str:
    """Returns a table in %, controls marked, the best of each column bold."""

    def cell(title: str, name: str) -> str:
        value = columns[title].get(name)
        shown = "–" if value is None else f"{100 * value:.1f}"
        return f"<b>{shown}</b>" if value is not None and value == _best(title, columns[title]) else shown

    tags = {name: "" if kind == "model" else ' <span class="tag">control</span>' for name, kind in kinds.items()}
    return table(label, ["", *columns], [[escape(n) + tag, *(cell(t, n) for t in columns)] for n, tag in tags.items()])


def _best(title: str, column: Mapping[str, float]) -> float:
    return (min if title.startswith("false alarms") else max)(column.values())


def picture(images: Any, i: int) -> str:
    """Returns image i of a uint8 array (n, C, h, w), C 1 or 3, as a PNG address within 64 pixels; empty without images."""
    from PIL import Image

    if images is None:
        return ""
    image = Image.fromarray(images[i, 0] if images.shape[1] != 3 else images[i].transpose(1, 2, 0).copy())
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def finite(x: Any) -> bool:
    """Says whether ``x`` is a number that can be drawn."""
    return isinstance(x, (int, float)) and math.isfinite(x)


def chart(figures: dict[str, Any], key: str, figure: Figure, alt: str) -> str:
    """Returns a chart's place; its data go into ``figures``."""
    figures[key] = figure
    return f'<div class="figure" data-figure="{key}" role="img" aria-label="{escape(alt)}"></div>'


def definitions(shown: Mapping[str, Any]) -> str:
    """Returns a list of facts by their names, those that are there; escapes them."""
    cells = "".join(f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in shown.items() if value)
    return f"<dl>{cells}</dl>"


def number(x: Any) -> str:
    """Returns four digits of a number, or a dash."""
    return f"{x:.4g}" if x is not None and math.isfinite(x) else "–"


def count(x: Any) -> str:
    """Returns a whole number with its thousands apart, or a dash."""
    return f"{x:,}" if isinstance(x, int) else "–"


def curve(x: list[float], y: list[float]) -> Figure:
    """Returns one quantity over the epochs."""
    trace: Figure = {"x": x, "y": y, "mode": "lines+markers" if len(x) < 60 else "lines", "line": {"color": COLORS[0]}}
    trace |= {"marker": {"size": 5}, "hovertemplate": "epoch %{x}<br>%{y:.5g}<extra></extra>"}
    margin = {"l": 56, "r": 12, "t": 8, "b": 34}
    return {
        "data": [trace],
        "layout": {"height": 210, "margin": margin, "xaxis": {"title": {"text": "epoch"}}, "dragmode": False},
    }


def lines(x: list[float], series: Mapping[str, list[float | None]], xtitle: str, ytitle: str) -> Figure:
    """Returns several quantities over a common logarithmic axis; what was not measured is left open."""
    traces: list[Figure] = [
        {"x": x, "y": y, "name": name, "mode": "lines+markers", "line": {"color": COLORS[k]}}
        | {"marker": {"symbol": SYMBOLS[k]}, "hovertemplate": "%{x}: %{y:.4g}<extra>" + name + "</extra>"}
        for k, (name, y) in enumerate(series.items())
    ]
    axes = {"xaxis": {"title": {"text": xtitle}, "type": "log", "tickvals": x}, "yaxis": {"title": {"text": ytitle}}}
    return {"data": traces, "layout": {"height": 340, "dragmode": False, "showlegend": True, **axes}}


def histogram(groups: Mapping[str, list[float]], title: str) -> Figure:
    """Returns the shares of each group over common bins."""
    traces: list[Figure] = [
        {"type": "histogram", "x": x, "name": name, "histnorm": "percent", "bingroup": "all", "nbinsx": 40, "opacity": 0.65}
        | {"marker": {"color": COLORS[k]}, "hovertemplate": "%{x}<br>%{y:.1f} % of " + name + "<extra></extra>"}
        for k, (name, x) in enumerate(groups.items())
    ]
    axes = {"xaxis": {"title": {"text": title}}, "yaxis": {"title": {"text": "% of the group"}}}
    return {"data": traces, "layout": {"barmode": "overlay", "height": 320, "dragmode": False, "showlegend": True, **axes}}


def scatter(xy: Any, index: list[int], captions: list[str], name: str, k: int, score: Any = None) -> Figure:
    """Returns the points ``index`` of ``xy`` (n, 2) as one trace: in the color of class k, or by ``score`` (n,)."""
    import numpy as np

    marker: Figure = {"size": 8, "color": COLORS[k % 7], "symbol": SYMBOLS[k % 5], "line": {"width": 0.5, "color": "#fff"}}
    if score is not None:
        low, high = np.quantile(score[index], [0.01, 0.99]).tolist()  # one extreme score would make all others one color
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
