"""Hooks of the site (mkdocs.yml): menu, pages from outside docs/, links, search words, formulas, code on phones, llms.txt."""

import html
import importlib.metadata
import itertools
import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import ConfigurationError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)"([^>]*)>\s*</picture>')
DRAWING = re.compile(r'<img alt="[^"]*" src="[^"]*/(figures/architecture\.svg)" */?>')
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")  # pages of the repository that the site has
VERSION = importlib.metadata.version("vergence")
URLS = dict(entry.split(", ") for entry in importlib.metadata.metadata("vergence").get_all("Project-URL", []))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Takes version and address of the repository from the package, which has them from pyproject.toml."""
    config.repo_url = URLS["Repository"].rstrip("/")
    config.repo_name = config.repo_url.removeprefix("https://github.com/")
    config.edit_uri = "edit/main/docs/"
    config.copyright = f"Vergence {VERSION}, Apache-2.0"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages and pictures from outside docs/, and writes out the patterns of the menu."""
    for path in [*sorted((ROOT / "experiments").rglob("*")), *(ROOT / name for name in OUTSIDE)]:
        if path.suffix in (".md", ".png", ".svg", ".webp"):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    assert config.nav is not None
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    places = {match[3].partition("#")[0]: match.start() for match in reversed(list(LINK.finditer(index)))}
    pages = sorted((file.src_uri for file in files.documentation_pages()), key=lambda uri: (places.get(uri, len(index)), uri))
    if missing := [uri for uri in config.extra["search"]["words"] if uri not in pages]:
        raise ConfigurationError(f"search words of pages that are not there: {', '.join(missing)}; change mkdocs.yml")
    config.nav = _written_out(config.nav, pages, _named(config.nav))
    return files


def _named(menu: list[Any]) -> set[str]:
    """Returns the pages that a menu names one by one."""
    parts = [part for entry in menu for part in (entry.values() if isinstance(entry, dict) else [[entry]])]
    return {name for part in parts for entry in part for name in (_named([entry]) if isinstance(entry, dict) else {entry})}


def _written_out(menu: list[Any], pages: list[str], named: set[str]) -> list[Any]:
    """Puts pages in the place of patterns: in the order in which the home page links them, and none that is named elsewhere."""
    found: list[Any] = []
    for entry in menu:
        if isinstance(entry, dict):
            found += [{title: _written_out(part, pages, named)} for title, part in entry.items()]
        elif "*" in entry:
            deep = entry.count("/")
            found += [uri for uri in pages if fnmatch(uri, entry) and uri.count("/") == deep and uri not in named]
        else:
            found.append(entry)
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Sets edit link, search words and weight; turns links of the repository into links of the site, or to the repository."""
    uri = page.file.src_uri
    here = uri if uri.startswith("experiments/") or uri in OUTSIDE else f"docs/{uri}"
    page.edit_url = None if "<!-- made by " in markdown else f"{config.repo_url}/edit/main/{here}"
    page.meta["tags"] = config.extra["search"]["words"].get(uri, [])
    weights = config.extra["search"]["weights"].items()
    page.meta["search"] = next(({"boost": by, "exclude": not by} for pattern, by in weights if fnmatch(uri, pattern)), {})

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        name = "index.md" if found == "README.md" and uri != "index.md" else found.removeprefix("docs/")
        if files.get_file_from_path(name) is None:
            if not (ROOT / found).exists():
                return match[0]  # which is a warning
            kind = "tree" if (ROOT / found).is_dir() else "blob"
            return f"{mark}[{words}]({config.repo_url}/{kind}/main/{found}{'#' + anchor if anchor else ''})"
        if not anchor and name.startswith("reference/python/"):  # the name's place on the page of its room
            text = (ROOT / found).read_text(encoding="utf-8")
            anchor = next(iter(re.findall(rf"^::: (\S+\.{words.strip('`')})$", text, re.MULTILINE)), "")
        relative = posixpath.relpath(name, posixpath.dirname(uri) or ".")
        if mark and files.get_file_from_path(name.replace(".webp", "_dark.webp")) and name.endswith(".webp"):
            dark = relative.replace(".webp", "_dark.webp")
            return f"![{words}]({relative}#only-light)![{words}]({dark}#only-dark)"
        return f"{mark}[{words}]({relative}{'#' + anchor if anchor and found != 'README.md' else ''})"

    markdown = PICTURE.sub(r'<img src="\2#only-light"\3><img src="\1#only-dark"\3>', markdown)  # follows the site's switch
    return LINK.sub(link, markdown)


def on_page_content(output: str, **_: Any) -> str:
    """Turns formulas into MathML, which browsers show by themselves, and puts drawings into the page, whose colors they take."""
    output = re.sub("(?s)<(pre|code)>.*?</\\1>", _code, output)
    output = DRAWING.sub(lambda m: (ROOT / "docs" / m[1]).read_text(encoding="utf-8"), output)
    output = FORMULA.sub(lambda m: convert(html.unescape(m[2].strip()), display="inline" if m[1] == "span" else "block"), output)
    return re.sub(r"<mi>(log|sin)</mi>(?!<mo)", r'\g<0><mspace width=".17em"/>', output)


def _code(match: re.Match[str]) -> str:
    """Marks drawn tables and options, which do not wrap, and what stands before a comment, where a phone ends the line."""
    if re.search("[│┃]", match[0]):
        return match[0].replace("<pre>", '<pre class="drawn">')
    text = re.sub(r'(?<=[^\s>]) +(?=(?:<span class="\w+">)?# )', r'<span class="gap">\g<0></span>', match[0])
    return re.sub(r"(?<![\w-])--\w[\w-]*", r'<span class="option">\g<0></span>', text)


def on_post_page(output: str, **_: Any) -> str:
    """Gives names to what the theme leaves without one for screen readers, and shows the version next to the repository."""
    output = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    output = re.sub(r'(<input class="md-toggle" data-md-toggle="(\w+)")', r'\1 aria-label="\2"', output)
    numbers = itertools.count(1)
    nav = r'(<nav class="md-nav" data-md-level="\d+") aria-labelledby="\w+"'
    output = re.sub(nav, lambda m: f'{m[1]} aria-label="Part {next(numbers)} of the menu"', output)
    # Without the component nothing is asked of GitHub; the version stands where its answer would.
    output = output.replace('class="md-source" data-md-component="source"', 'class="md-source"')
    facts = f'<ul class="md-source__facts"><li class="md-source__fact md-source__fact--version">{VERSION}</li></ul>'
    output = re.sub(r'(<div class="md-source__repository">[^<]*)', rf"\1{facts}", output)
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
