"""The parameters of synthetic Cell Painting plates, and the layout of a plate: treatments and errors, site by site.

Illumination is ``flat * light + dark`` (BaSiC, Peng et al., Nature Communications 8, 2017). Random numbers come from one stream
for each site and purpose, so that a site with an error differs from the same site without it in the named channels alone.
"""

import string
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

CHANNELS = ("DNA", "ER", "RNA", "AGP", "Mito")
SEVERITIES = ("small", "medium", "large")
ERRORS = {  # by kind, whether it hits all channels: yes, no, or one of both at random
    "focus": None,
    "saturation": False,
    "debris": None,
    "empty": True,
    "lamp": None,
    "bleed": False,
    "bubble": True,
    "shift": False,
}
PHENOTYPES = {  # factors at strength 1: cells, radius of nuclei and of cells, coarseness of textures, stain of the channels
    "toxic": (0.3, 0.75, 0.65, 0.8, (1.6, 0.7, 0.7, 0.9, 0.5)),
    "cytostatic": (0.5, 1.35, 1.3, 1.1, (0.9, 1.0, 1.2, 1.1, 1.0)),
    "mitochondria": (0.9, 1.0, 1.0, 0.6, (1.0, 1.0, 0.9, 1.0, 2.2)),
    "actin": (0.85, 1.0, 0.8, 1.3, (1.0, 0.9, 1.0, 2.0, 0.9)),
    "reticulum": (1.0, 1.0, 1.1, 1.5, (1.0, 0.45, 0.6, 1.0, 1.2)),
}
Five = tuple[float, float, float, float, float]
Three = tuple[float, float, float]


@dataclass(frozen=True)
class Plate:
    """Every parameter of a plate.

    Attributes:
        controls: Columns of the control wells, from 1, or the share of wells that are scattered controls.
        blood: Folder with ``bccd``; cells are then cut out of photographs of blood.
        density: Cells in a square of ten radii of a nucleus.
        nucleus: Radius in pixels.
        cytoplasm: Radius of a cell in radii of its nucleus.
        ragged: Deviation of outlines from a circle.
        clumping: How much the density of cells varies over a site.
        dividing: Share of cells that divide.
        grain: Width of textures in pixels.
        stain: Light of the channels in counts.
        background: Light between the cells in counts.
        blur: Standard deviation of the point spread of each channel in pixels.
        haze: Share of light that is out of focus in every image.
        vignetting: Loss of light in the corners, by channel.
        dark: Counts without light; ``electrons`` for each count; ``read`` noise in counts; ``white``, the largest count.
        batch: Deviation of stain and background between plates, as are ``between`` wells and ``within`` a well (logarithms).
        focus_within: Defocus of normal sites in pixels; ``focus_drift``, more of it in the last column.
        drift: Change of the stain from the first to the last row, and column (logarithms).
        edge_cells: Share of cells missing in wells of the rim; ``edge_background``, light added there.
        compounds: Number of compounds, each at all ``strengths``; 0 has no effect.
        bad: Share of treated wells with an error, and of control wells; in half of them one site has it, in half all do.
        focus: Radius of the defocus in pixels at the three severities.
        saturation: Share of saturated pixels. debris, bubble: Radius as a share of the site's side. empty: Cells left.
        lamp: Light left. bleed: Share of another channel's light. shift: Pixels.
    """

    seed: int = 0
    name: str = "tune"
    rows: int = 8
    columns: int = 12
    sites: int = 2
    side: int = 256
    controls: tuple[int, ...] | float = (1, 6, 11)
    blood: str | None = None
    density: float = 3.7
    nucleus: float = 9.0
    cytoplasm: float = 3.2
    ragged: float = 0.13
    clumping: float = 0.3
    dividing: float = 0.03
    grain: float = 1.1
    stain: Five = (17000.0, 13000.0, 11000.0, 12000.0, 15000.0)
    background: Five = (350.0, 900.0, 1100.0, 800.0, 600.0)
    blur: Five = (1.0, 1.0, 1.0, 0.9, 0.9)
    haze: float = 0.25
    vignetting: Five = (0.25, 0.2, 0.2, 0.15, 0.3)
    dark: float = 110.0
    electrons: float = 0.15
    read: float = 12.0
    white: int = 65535
    batch: float = 0.15
    between: float = 0.06
    within: float = 0.03
    focus_within: float = 0.35
    focus_drift: float = 0.0
    drift: tuple[float, float] = (0.1, 0.0)
    edge_cells: float = 0.15
    edge_background: float = 0.15
    compounds: int = 10
    strengths: tuple[float, ...] = (0.0, 0.3, 0.6, 1.0)
    bad: tuple[float, float] = (0.15, 0.05)
    focus: Three = (2.5, 5.0, 9.0)
    saturation: Three = (0.003, 0.015, 0.05)
    debris: Three = (0.03, 0.07, 0.14)
    empty: Three = (0.2, 0.06, 0.0)
    lamp: Three = (0.75, 0.5, 0.25)
    bleed: Three = (0.2, 0.5, 1.0)
    bubble: Three = (0.08, 0.16, 0.3)
    shift: Three = (3.0, 8.0, 16.0)

    def random(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *stream])

    def rim(self, site: "Site") -> bool:
        return site.row in (1, self.rows) or site.column in (1, self.columns)

    @cached_property
    def optics(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Stain (5,), background (5,) and flat field (5, side, side) of this plate."""
        rng, axis = self.random(1), np.linspace(-1, 1, self.side)
        light, back = (np.array(x) * np.exp(self.batch * rng.normal(size=5)) for x in (self.stain, self.background))
        y, x = axis[:, None, None] - rng.normal(0, 0.15, 5), axis[None, :, None] - rng.normal(0, 0.15, 5)
        flat = 1 - np.array(self.vignetting) * (x**2 + y**2) / 2
        return light, back, np.moveaxis(flat / flat.mean((0, 1)), 2, 0).astype(np.float32)


TUNE = Plate()
JUDGE = Plate(
    name="judge", controls=0.17, density=2.9, nucleus=10.0, cytoplasm=3.6, ragged=0.18, clumping=0.35, dividing=0.05, grain=1.5,
    stain=(4800.0, 3900.0, 2600.0, 4400.0, 5600.0), background=(110.0, 330.0, 260.0, 390.0, 180.0),
    blur=(1.3, 1.2, 1.1, 1.2, 1.1), haze=0.4, vignetting=(0.35, 0.3, 0.15, 0.3, 0.2), dark=64.0, electrons=0.6, read=3.0,
    white=16383, batch=0.25, between=0.09, within=0.045, focus_within=0.5, drift=(-0.08, 0.15), edge_cells=0.2,
    edge_background=0.08, compounds=14, strengths=(0.0, 0.2, 0.45, 0.8, 1.2), bad=(0.12, 0.04), focus=(3.0, 6.0, 12.0),
    saturation=(0.004, 0.02, 0.06), debris=(0.035, 0.08, 0.17), empty=(0.25, 0.08, 0.0), lamp=(0.7, 0.42, 0.18),
    bleed=(0.25, 0.6, 1.1), bubble=(0.07, 0.18, 0.35), shift=(3.5, 9.0, 20.0),
)  # fmt: skip
CELLS = replace(JUDGE, name="cells", blood="DATA", nucleus=8.0, density=2.4, haze=0.2, cytoplasm=1.9)
SETS = {plate.name: plate for plate in (TUNE, JUDGE, CELLS)}


class Site(NamedTuple):
    """A site and the truth about it; ``error`` is empty for none, ``channels`` are those that it changes."""

    well: str
    row: int
    column: int
    site: int
    compound: str
    phenotype: str
    strength: float
    treated: bool
    error: str = ""
    severity: str = ""
    channels: tuple[int, ...] = ()


def layout(plate: Plate) -> list[Site]:
    """Returns the sites of a plate in the order of wells, with their treatments and errors."""
    rng, shape = plate.random(2), (plate.rows, plate.columns)
    if isinstance(plate.controls, float):
        control = np.zeros(shape, dtype=bool)
        control.flat[rng.choice(control.size, round(plate.controls * control.size), replace=False)] = True
    else:
        control = np.isin(np.arange(1, plate.columns + 1), plate.controls)[None].repeat(plate.rows, 0)
    doses = [(i, s) for s in plate.strengths for i in range(plate.compounds)]
    given = iter([doses[i % len(doses)] for i in rng.permutation(int((~control).sum()))])
    planted, found = errors(plate, control.ravel()), []
    for i, (row, column) in enumerate(np.ndindex(shape)):
        where = (f"{string.ascii_uppercase[row]}{column + 1:02}", row + 1, column + 1)
        number, strength = (-1, 0.0) if control[row, column] else next(given)
        treatment = ("DMSO", "") if number < 0 else (f"C{number + 1:02}", list(PHENOTYPES)[number % len(PHENOTYPES)])
        for site in range(1, plate.sites + 1):
            found.append(Site(*where, site, *treatment, strength, number >= 0, *planted.get((i, site), ())))
    return found


def errors(plate: Plate, control: np.ndarray) -> dict[tuple[int, int], tuple[str, str, tuple[int, ...]]]:
    """Returns kind, severity and channels of the errors, by number of well and of site; kinds are about equally frequent."""
    rng, found = plate.random(3), {}
    wells = [rng.permutation(np.flatnonzero(part)) for part in (~control, control)]
    bad = np.concatenate([part[: round(share * len(part))] for part, share in zip(wells, plate.bad, strict=True)])
    kinds = rng.permutation(np.resize(np.roll(list(ERRORS), rng.integers(len(ERRORS))), len(bad)))
    for well, kind in zip(bad.tolist(), kinds.tolist(), strict=True):
        every = rng.random() < 0.5 if ERRORS[kind] is None else ERRORS[kind]
        channels = tuple(range(5)) if every else (int(rng.integers(5)),)
        error = (kind, SEVERITIES[rng.integers(3)], channels)
        one = int(rng.integers(1, plate.sites + 1)) if rng.random() < 0.5 else None
        found |= {(well, site): error for site in range(1, plate.sites + 1) if one in (None, site)}
    return found
