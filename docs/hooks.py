"""Hooks of the site (mkdocs.yml): pages of experiments, links that leave docs/, formulas without JavaScript, and llms.txt."""

import html
import itertools
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of experiments/ and their pictures."""
    for path in sorted((ROOT / "experiments").rglob("*")):
        if path.suffix in (".md", ".png", ".svg", ".webp"):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links of the repository into links of the site; where the site has no such file, only the words remain."""
    uri = page.file.src_uri
    here = uri if uri.startswith("experiments/") else f"docs/{uri}"

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        name = "index.md" if found == "README.md" else found.removeprefix("docs/")
        if files.get_file_from_path(name) is None:
            return words
        relative = posixpath.relpath(name, posixpath.dirname(uri) or ".")
        return f"{mark}[{words}]({relative}{'#' + anchor if anchor and found != 'README.md' else ''})"

    return LINK.sub(link, markdown)


def on_page_content(output: str, **_: Any) -> str:
    """Turns formulas into MathML, which browsers show by themselves."""
    return FORMULA.sub(lambda m: convert(html.unescape(m[2].strip()), display="inline" if m[1] == "span" else "block"), output)


def on_post_page(output: str, **_: Any) -> str:
    """Gives names to what the theme leaves without one for screen readers, and the tables' empty headers a word."""
    output = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    output = re.sub(r'(<input class="md-toggle" data-md-toggle="(\w+)")', r'\1 aria-label="\2"', output)
    numbers = itertools.count(1)
    nav = r'(<nav class="md-nav" data-md-level="\d+") aria-labelledby="\w+"'
    output = re.sub(nav, lambda m: f'{m[1]} aria-label="Part {next(numbers)} of the menu"', output)
    return output.replace("<th></th>", '<th><span class="md-visually-hidden">row</span></th>')


def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:
    """Writes llms.txt: what the project is, and every page with its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    section = None
    for file in sorted(files.documentation_pages(), key=lambda f: f.src_uri):
        if (folder := posixpath.dirname(file.src_uri)) != section:
            section = folder
            lines += ["", f"## {folder or 'Start'}", ""]
        assert file.page is not None
        lines.append(f"- [{file.page.title}]({file.url}): {_first_sentence(file.page.markdown or '')}")
    out = Path(config.site_dir) / "llms.txt"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _first_sentence(markdown: str) -> str:
    prose = [line for line in markdown.split("\n") if re.match(r"[A-Z*`]", line)]
    return re.sub(r"(?<=[.:]) .*", "", LINK.sub(r"\2", prose[0]))[:200] if prose else ""
