"""Opens the page of `check` in a headless Chromium: size, first paint, and how long interactions take.

README.md says how.
"""

import argparse
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from experiments.runner import DATA, main
from torchvision.datasets import CIFAR10

import vergence

SIZES = (2_000, 20_000)
TIMED = """async name => {
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done))), at = id => document.getElementById(id);
  const put = (id, value, kind) => { at(id).value = value; at(id).dispatchEvent(new Event(kind)); };
  const acts = {
    filter: () => buttons.get("all").click(),
    search: () => put("search", "1", "input"),
    sort: () => put("sort", "light", "change"),
    slider: () => put("first", 500, "input"),
    scroll: () => scrollBy(0, 3000),
    confirm: () => say(view[0], "anomaly"),
    open: () => open(view[1]),
    next: () => step(1),
  };
  const times = [];
  for (let k = 0; k < 3; k++) {
    const began = performance.now();
    acts[name]();
    await frame();
    times.push(performance.now() - began);
  }
  return times.sort((a, b) => a - b)[1];
}"""
ACTS = ("filter", "search", "sort", "slider", "scroll", "confirm", "open", "next")


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for n in (200,) if a.tiny else SIZES:
        yield {"pictures": n, "seed": 0}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns megabytes, milliseconds until the first paint and until the page is ready, and those of each interaction."""
    from playwright.sync_api import sync_playwright

    out = a.scratch / str(cell["pictures"])
    page = out / "report.html"
    vergence.check(np.asarray(CIFAR10(a.data_root).data[: cell["pictures"]]), out=out)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready]")
        ready = round(opened.evaluate("performance.now()"))
        opened.wait_for_timeout(500)
        paint = opened.evaluate("Math.round(performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1)")
        times = {name: round(opened.evaluate(TIMED, name), 1) for name in ACTS}
        browser.close()
    return {
        "mb": round(page.stat().st_size / 1e6, 2),
        "first_paint_ms": paint and round(paint),
        "ready_ms": round(ready),
        **times,
    }


if __name__ == "__main__":
    main(__doc__, "check_page", {"data_root": DATA}, cells, measure, tiny={})
