"""Checks the wheel and the sdist in a folder: `python .ci/distributions.py FOLDER [TAG]`.

The wheel's metadata says who made it and where to ask, and its description works outside the repository. With a tag, vX.Y.Z,
the wheel, the sdist, CITATION.cff and CHANGELOG.md are of that version, and the date is that of the tagged commit.
"""

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELATIVE = re.compile(r"""(?:\]\(|(?:href|src|srcset)=["'])(?!https?://|\#|mailto:)([^)"'\s]+)""")


def problems(folder: Path, tag: str | None) -> list[str]:
    """Returns what is wrong, a sentence each."""
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        return [f"expected one wheel and one sdist in {folder}, found {len(wheels)} and {len(sources)}"]
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    found = [f"the wheel's metadata has no {field}" for field in ("Summary", "Author", "Project-URL") if not metadata[field]]
    found += [f"the description has a relative link: {link}" for link in RELATIVE.findall(metadata.get_payload())]
    return found + (of_release(tag, metadata["Version"], sources[0].name) if tag else [])


def of_release(tag: str, version: str, source: str) -> list[str]:
    """Returns in which files a release has another version or date."""
    citation, changes = ((ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md"))
    date = subprocess.check_output(["git", "log", "-1", "--format=%cs"], cwd=ROOT, text=True).strip()
    expected = {
        "the wheel's version": tag == f"v{version}",
        "the sdist's version": source == f"vergence-{tag[1:]}.tar.gz",
        "version in CITATION.cff": f"\nversion: {tag[1:]}\n" in citation,
        "date-released in CITATION.cff": f"\ndate-released: {date}\n" in citation,
        "the section of CHANGELOG.md": f"\n## [{tag[1:]}] - {date}\n" in changes,
        "the recipe for conda": f'version: "{tag[1:]}"' in (ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8"),
    }
    return [f"{what} does not fit {tag} of {date}" for what, fits in expected.items() if not fits]


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
    sys.exit("\n".join(wrong) or None)
