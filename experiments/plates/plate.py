"""Draws the sites of synthetic Cell Painting plates, and writes plates: images, plate map and truth.

Cells are outlines with textures that channels share (after SIMCEP, Lehmussola et al., IEEE TMI 26, 2007), blurred by the optics,
with the noise of photons and of a camera.
"""

import csv
import uuid
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from experiments import photographs
from experiments.plates.layout import CHANNELS, PHENOTYPES, SEVERITIES, Plate, Site, layout
from PIL import Image
from scipy import fft, ndimage

NAMES = {
    "imagexpress": "{well}_s{site}_w{channel}.tif",
    "operetta": "r{row:02}c{column:02}f{site:02}p01-ch{channel}sk1fk1fl1.tiff",
    "yokogawa": "{plate}_{well}_T0001F{site:03}L01A01Z01C{channel:02}.tif",
    "ome": "{well}_s{site}.ome.tif",  # one file of five channels
}


def spectrum(rng: np.random.Generator, side: int) -> np.ndarray:
    """Returns the transform of white noise, of which `texture` makes textures that resemble one another."""
    return fft.rfft2(rng.standard_normal((side, side), dtype=np.float32))


def texture(noise: np.ndarray, width: float, length: float | None = None, angle: float = 0.0) -> np.ndarray:
    """Returns noise of deviation 1 (side, side), smooth over a width in pixels, and over a length along an angle."""
    side = len(noise)
    y, x = fft.fftfreq(side)[:, None], fft.rfftfreq(side)[None]
    along, across = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    kernel = np.exp(-2 * np.pi**2 * ((along * (length or width)) ** 2 + (across * width) ** 2)).astype(np.float32)
    kernel[0, 0] = 0
    found = fft.irfft2(noise * kernel, s=(side, side))
    return found / found.std()


def centers(plate: Plate, rng: np.random.Generator, count: float, apart: float, margin: float) -> np.ndarray:
    """Returns centers of cells (N, 2) that keep apart, more of them where a smooth random field is large."""
    whole = plate.side + 2 * margin
    wanted = rng.poisson(count * (whole / plate.side) ** 2)
    candidates = rng.uniform(-margin, plate.side + margin, (12 * wanted + 1, 2))
    knots = np.exp(plate.clumping * texture(spectrum(rng, 32), 4.0))
    field = knots[tuple(((candidates + margin) * 31 / whole).astype(int).T)]
    kept = np.empty((0, 2))
    for point in candidates[rng.random(len(candidates)) < field / field.max()]:
        if len(kept) < wanted and ((kept - point) ** 2).sum(1).min(initial=np.inf) > apart**2:
            kept = np.vstack([kept, point])
    return kept


class Maps(NamedTuple):
    """Maps of the cells, (side, side): distance from the nearest center in radii of the cell and of its nucleus, and others."""

    cell: np.ndarray
    nucleus: np.ndarray
    number: np.ndarray  # of the cell
    golgi: np.ndarray  # a bright body next to the nucleus


def outlines(plate: Plate, rng: np.random.Generator, points: np.ndarray, radii: np.ndarray, spread: float) -> Maps:
    """Returns the maps of cells with random outlines around points (N, 2)."""
    far, zero = np.full((plate.side, plate.side), 9.0, np.float32), np.zeros((plate.side, plate.side), np.float32)
    maps = Maps(far, far.copy(), zero.astype(int), zero)
    for i, ((cy, cx), radius) in enumerate(zip(points, radii, strict=True)):
        waves, phases = plate.ragged * rng.normal(size=3) * (1.3, 0.8, 0.4), rng.uniform(0, 2 * np.pi, 5)
        reach = int(1.7 * radius * spread) + 2
        here = tuple(slice(max(0, int(c) - reach), max(0, int(c) + reach)) for c in (cy, cx))
        y, x = np.arange(plate.side)[here[0], None] - cy, np.arange(plate.side)[None, here[1]] - cx
        r, angle = np.hypot(y, x), np.arctan2(y, x)
        outline = 1 + sum(w * np.cos(k * angle + p) for k, w, p in zip((2, 3, 5), waves, phases, strict=False))
        cell = r / (radius * spread * np.maximum(outline, 0.35))
        nucleus = r / (radius * (1 + (0.1 + 0.12 * abs(waves[0]) / plate.ragged) * np.cos(2 * (angle - phases[3]))))
        nearer = cell < maps.cell[here]
        maps.number[here][nearer] = i
        np.minimum(maps.cell[here], cell, out=maps.cell[here])
        np.minimum(maps.nucleus[here], nucleus, out=maps.nucleus[here])
        dy, dx = 1.25 * radius * np.sin(phases[4]), 1.25 * radius * np.cos(phases[4])
        maps.golgi[here] += np.exp(-((y - dy) ** 2 + (x - dx) ** 2) / (0.5 * radius**2))
    return maps


def paint(plate: Plate, rng: np.random.Generator, maps: Maps, radius: float, coarse: float) -> np.ndarray:
    """Returns the stain (5, side, side) of cells with textures that the channels share."""
    grain, noise, other = plate.grain * coarse, *(spectrum(rng, plate.side) for _ in range(2))
    fine, mid, large = (texture(noise, grain * width) for width in (0.9, 1.8, 6.0))
    tubes, blobs = texture(other, 1.3 * grain), texture(other, 0.22 * radius)
    fibers = np.stack([texture(noise, 0.9 * grain, 14 * grain, angle) for angle in rng.uniform(0, np.pi, 3)])
    fiber = np.take_along_axis(fibers, maps.number[None] % 3, 0)[0]
    body = np.sqrt(np.clip(1 - maps.cell**2, 0, None)) * (1 + 0.12 * large)
    nucleus = 1 / (1 + np.exp(np.clip((maps.nucleus - 1) * radius * 1.6, -30, 30)))
    near = np.exp(-1.6 * np.clip(maps.nucleus - 1, 0, None) ** 1.2)
    nucleoli = nucleus * (maps.nucleus < 0.8) / (1 + np.exp(-6 * (blobs - 1)))
    rim = np.exp(-(((maps.cell - 0.95) / 0.05) ** 2))
    outside = body * (1 - 0.75 * nucleus)
    dna = nucleus * (0.8 + 0.16 * mid + 0.07 * fine - 0.25 * nucleoli) + 0.03 * body
    er = outside * (0.2 + 0.8 * near) * (0.55 + 0.6 * np.exp(-((mid / 0.6) ** 2)) + 0.08 * fine)
    rna = outside * (0.3 + 0.5 * near) * (0.9 + 0.12 * mid + 0.1 * large) + nucleus * 0.42 + 0.9 * nucleoli
    agp = 0.3 * rim * (1 + 0.4 * large) + outside * (0.28 + 0.2 * np.clip(fiber, 0, None))
    agp += 0.7 * body * maps.golgi * (1 + 0.3 * mid) * (1 - 0.6 * nucleus)
    mito = outside * near * (0.15 + 1.0 * np.exp(-((tubes / 0.45) ** 2))) * (1 + 0.2 * large)
    return np.clip(np.stack([dna, er, rna, agp, mito]), 0, None)


@lru_cache
def blood_cells(folder: str) -> np.ndarray:
    """Returns the optical density of cells in photographs of blood, (N, 3, 64, 64) in 0 to 1, white and red ones in turn."""
    boxes = [pair for split in ("val", "test") for pair in photographs.read_boxes(Path(folder), split) if pair[1].x1 > pair[1].x0]
    white, red = ([pair for pair in boxes if pair[1].label == name and pair[1].y1 > pair[1].y0] for name in ("WBC", "RBC"))
    chosen = [pair for pairs in zip(white, red[:: len(red) // len(white)], strict=False) for pair in pairs]
    images = np.stack([photographs.cell(*pair) for pair in chosen]).astype(np.float32).transpose(0, 3, 1, 2)
    bright = np.percentile(images, 97, axis=(2, 3), keepdims=True)
    return np.clip(-np.log((images + 1) / (bright + 1)), 0, 1.2) / 1.2


def blood(plate: Plate, rng: np.random.Generator, points: np.ndarray, radii: np.ndarray, coarse: float) -> np.ndarray:
    """Returns the stain (5, side, side) of cells cut out of photographs of blood: absorption, its edges and its details."""
    bank, side = blood_cells(plate.blood or ""), plate.side
    density = np.zeros((3, side + 400, side + 400), np.float32)
    axis = np.linspace(-1, 1, 64)
    disk = np.clip(6 * (1 - np.hypot(axis[:, None], axis)), 0, 1)
    for (y, x), radius in zip(points, radii, strict=True):
        width, angle = max(8, round(2.2 * radius * plate.cytoplasm)), rng.uniform(0, 360)
        one = bank[rng.integers(len(bank))] * disk
        turned = np.stack([np.asarray(Image.fromarray(c).rotate(angle, 2).resize((width, width), 2)) for c in one])
        top, left = int(y) + 200 - width // 2, int(x) + 200 - width // 2
        here = density[:, top : top + width, left : left + width]
        np.maximum(here, turned, out=here)
    red, green, blue = density[:, 200:-200, 200:-200]
    edge = ndimage.gaussian_gradient_magnitude(green, 1.2 * coarse) * 4
    detail = np.abs(blue - ndimage.gaussian_filter(blue, 4 * coarse)) * 4
    channels = 2.2 * (red - 0.4 * green), 1.3 * (green - 0.4 * red), 2.5 * blue, edge + 0.2 * green, detail + 0.1 * blue
    return np.clip(np.stack(channels), 0, 2)


def effects(site: Site) -> tuple[float, float, float, float, np.ndarray]:
    """Returns factors of a treatment: number of cells, radius of nuclei and of cells, coarseness, and stain (5,)."""
    if not site.phenotype:
        return 1.0, 1.0, 1.0, 1.0, np.ones(5)
    *factors, stains = PHENOTYPES[site.phenotype]
    return *(factor**site.strength for factor in factors), np.array(stains) ** site.strength


def cells(plate: Plate, site: Site) -> np.ndarray:
    """Returns the stain of a site's cells, (5, side, side) with 1 for a bright cell."""
    well, rng = plate.random(4, site.row, site.column), plate.random(5, site.row, site.column, site.site)
    number, nucleus, size, coarse, _ = effects(site)
    number *= plate.density * (plate.side / (10 * plate.nucleus)) ** 2 * np.exp(2 * plate.between * well.normal())
    radius = plate.nucleus * nucleus
    points = centers(plate, rng, number * (1 - plate.edge_cells * plate.rim(site)), 1.9 * radius, 2 * radius)
    left = plate.empty[SEVERITIES.index(site.severity)] if site.error == "empty" else 1
    points = points[: round(left * len(points))]
    each = plate.random(6, site.row, site.column, site.site).normal(size=(len(points) + 1, 8))
    divides = each[:, 7] > NormalDist().inv_cdf(1 - plate.dividing)  # round, small, and bright in DNA
    radii = radius * np.exp(0.1 * each[:-1, 0]) * np.where(divides[:-1], 0.75, 1)
    if plate.blood:
        return blood(plate, rng, points, radii * size / nucleus, coarse)
    maps = outlines(plate, rng, points, radii, plate.cytoplasm * size / nucleus)
    stain = paint(plate, plate.random(7, site.row, site.column, site.site), maps, radius, coarse)
    own = np.exp(0.16 * each[:, 1:2] + 0.12 * each[:, 2:7])
    own[divides, 0] *= 2.5
    return stain * np.moveaxis(own[maps.number], 2, 0)


def scene(plate: Plate, site: Site) -> np.ndarray:
    """Returns the light of a site in counts (5, side, side) as the optics show it, without errors but ``empty``."""
    well, rng = plate.random(8, site.row, site.column), plate.random(9, site.row, site.column, site.site)
    down, across = (site.row - 1) / max(1, plate.rows - 1), (site.column - 1) / max(1, plate.columns - 1)
    drift = np.dot(plate.drift, (down - 0.5, across - 0.5))
    gain = np.exp(drift + plate.between * well.normal(size=5) + plate.within * rng.normal(size=5))
    light, back, _ = plate.optics
    stain, back = light * gain * effects(site)[-1], back * gain * (1 + plate.edge_background * plate.rim(site))
    total = (cells(plate, site) * stain[:, None, None] + back[:, None, None]).astype(np.float32)
    focus, width = plate.focus_within * abs(rng.normal()) + plate.focus_drift * across, round(2 * plate.nucleus)
    for one, blur in zip(total, plate.blur, strict=True):
        ndimage.gaussian_filter(one, np.hypot(blur, focus), output=one)
        one += plate.haze * (ndimage.uniform_filter(ndimage.uniform_filter(one, width), width) - one)
    return total


def debris(plate: Plate, rng: np.random.Generator, amount: float) -> np.ndarray:
    """Returns the light (side, side) of a bright object out of focus, a lump or a fiber, at most 1."""
    side, radius = plate.side, amount * plate.side
    y, x = np.mgrid[:side, :side].astype(np.float32)
    cy, cx, angle = *rng.uniform(0.2 * side, 0.8 * side, 2), rng.uniform(0, np.pi)
    along, across = np.cos(angle) * (x - cx) + np.sin(angle) * (y - cy), np.cos(angle) * (y - cy) - np.sin(angle) * (x - cx)
    if rng.random() < 0.5:
        bent = across - rng.normal(0, 0.3) * along**2 / (6 * radius)
        shape = ((np.abs(bent) < 0.12 * radius + 1) & (np.abs(along) < 5 * radius)).astype(np.float32)
        return ndimage.gaussian_filter(shape, 0.15 * radius + 1.5)
    lump = np.hypot(along, 1.6 * across) / radius + 0.35 * texture(spectrum(rng, side), radius / 2.5)
    return ndimage.gaussian_filter((lump < 1).astype(np.float32), 0.28 * radius + 1.5)


def apply_error(plate: Plate, site: Site, light: np.ndarray) -> np.ndarray:
    """Returns the light of a site with its error, which changes the channels of the error alone."""
    found = light.copy()
    amount = getattr(plate, site.error)[SEVERITIES.index(site.severity)]
    for c in site.channels:
        rng = plate.random(10, site.row, site.column, site.site)  # the same object in every channel
        one, y, x = light[c], *(np.mgrid[: plate.side, : plate.side] / plate.side)
        if site.error == "focus":
            wide = np.pad(one, 32, mode="reflect")
            found[c] = fft.ifft2(ndimage.fourier_ellipsoid(fft.fft2(wide), 2 * amount)).real[32:-32, 32:-32]
        elif site.error == "saturation":
            found[c] = one * max(1.0, (plate.white - plate.dark) / np.quantile(one * plate.optics[2][c], 1 - amount))
        elif site.error == "debris":
            bright = 1.6 * plate.stain[c] * np.exp(0.4 * plate.random(11, site.row, site.column, c).normal())
            found[c] = one + bright * debris(plate, rng, amount)
        elif site.error == "lamp":
            found[c] = one * amount
        elif site.error == "bleed":
            found[c] = one + amount * light[c - 1 if c else 1] * plate.stain[c] / plate.stain[c - 1 if c else 1]
        elif site.error == "bubble":
            away = np.hypot(y - rng.uniform(0.2, 0.8), x - rng.uniform(0.2, 0.8)) / amount
            dark = 1 / (1 + np.exp(np.clip((away - 1) * 40, -50, 50)))
            blurred = ndimage.gaussian_filter(one, 4)
            found[c] = one * (1 - dark) + 0.3 * blurred * dark + 0.5 * blurred * np.exp(-(((away - 1.03) / 0.03) ** 2))
        elif site.error == "shift":
            angle = rng.uniform(0, 2 * np.pi)
            found[c] = ndimage.shift(one, (amount * np.sin(angle), amount * np.cos(angle)), order=1, mode="reflect")
    return found


def image(plate: Plate, site: Site) -> np.ndarray:
    """Returns the five channels of a site as the camera counts them, (5, side, side) uint16."""
    light, flat = scene(plate, site), plate.optics[2]
    light = apply_error(plate, site, light) if site.error not in ("", "empty") else light
    found = np.empty(light.shape, np.uint16)
    for c, expected in enumerate(np.clip(light * flat, 0, None)):
        noise = plate.random(12, site.row, site.column, site.site, c).standard_normal(expected.shape, dtype=np.float32)
        noise *= np.sqrt(expected / plate.electrons + plate.read**2)  # of photons, Gaussian as from 20 electrons, and of reading
        found[c] = np.clip(np.rint(expected + plate.dark + noise), 0, plate.white)
    return found


def write(plate: Plate, folder: Path, names: str = "imagexpress") -> list[Site]:
    """Writes the images of a plate, ``plate.csv`` (the plate map) and ``truth.csv`` to a folder; returns the sites.

    Args:
        plate: The plate.
        folder: A folder, which is made where it is missing.
        names: A key of `NAMES`, or a pattern of a file for each channel; ``ome`` writes a stack for each site, with tifffile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sites, pattern = layout(plate), NAMES.get(names, names)
    for site in sites:
        found = image(plate, site)
        if "{channel" not in pattern:
            from tifffile import imwrite

            file = folder / pattern.format(plate=plate.name, channel=0, **site._asdict())
            same = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{plate.name} {plate.seed} {file.name}"))
            imwrite(file, found, ome=True, metadata={"axes": "CYX", "Channel": {"Name": list(CHANNELS)}, "UUID": same})
            continue
        for c, one in enumerate(found, 1):
            Image.fromarray(one).save(folder / pattern.format(plate=plate.name, channel=c, **site._asdict()))
    write_csv(folder / "plate.csv", plate_map(plate, sites))
    write_csv(folder / "truth.csv", truth(sites))
    return sites


def plate_map(plate: Plate, sites: Iterable[Site]) -> list[dict[str, object]]:
    """Returns a row for each well, with what a laboratory knows of it."""
    wells = {site.well: site for site in sites}.values()
    names = {"Metadata_Plate": plate.name}
    return [{"well": s.well, "compound": s.compound, "dose": s.strength, **names, "Metadata_Well": s.well} for s in wells]


def truth(sites: Iterable[Site]) -> list[dict[str, object]]:
    """Returns a row for each site, with its error."""
    return [
        {"site": f"{s.well}_s{s.site}", "Metadata_Well": s.well, "Metadata_Site": s.site, "error": s.error}
        | {"severity": s.severity, "channels": " ".join(CHANNELS[c] for c in s.channels), "treated": int(s.treated)}
        | {"compound": s.compound, "phenotype": s.phenotype, "strength": s.strength}
        for s in sites
    ]


def write_csv(file: Path, rows: list[dict[str, object]]) -> None:
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
