"""`check`: what is unusual in a collection of pictures or vectors, where and why; copies, leaks and files that cannot be read.

    source -> first look at each picture -> copies -> folds -> places -> evidence -> CheckResult

Without a reference each picture is scored by fits that saw neither it nor a copy of it, and its p-value is an estimate. With a
reference, half of it is fitted to and the other half calibrates: p-values then hold for pictures of the same source, whatever
their law (split conformal). Folds and samples follow the pictures' content, so that names and order do not matter.

Shapes: N pictures, n of them different from each other; L levels; D features of the embedding.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vergence.data.items import RowNames
from vergence.data.pictures import Pictures, open_pictures
from vergence.data.pixels import luma, resize
from vergence.data.sources import open_items
from vergence.decide.conformal import ranked
from vergence.decide.decisions import Decisions, decided
from vergence.decide.moments import Tail
from vergence.decide.neighbors import NeighborDetector
from vergence.images.clusters import Group, anomalous_clusters
from vergence.images.duplicates import Duplicates, duplicate_sets, find_duplicates
from vergence.images.features import (
    PART,
    FirstPass,
    ImageFeatures,
    LocalFeatures,
    RegionPass,
    SamplePass,
    as_tensor,
    rows_of,
    shrunk,
    stamp,
)
from vergence.images.frozen import FrozenNetwork, at_hand, named_network
from vergence.images.patches import PatchCells
from vergence.images.regions import NEW, CellModel, region_threshold
from vergence.images.result import ENCODER, LEVEL, Anomalies, CheckResult, CheckSettings, RegionScores, result_of
from vergence.images.review import Review, after_review
from vergence.images.scores import FEWEST, CrossFitted, Evidence, RadialNull, ReferenceScores, combine, outward
from vergence.utils import terminal
from vergence.utils.checks import expect, refuse
from vergence.utils.files import explained
from vergence.utils.parts import Parts, open_parts

__all__ = ["check"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Embed = Callable[[Tensor], Tensor]

FOLDS = 5
SAMPLED, FITTED = 1_000, 20_000  # pictures that places are learned from, and that other levels are fitted to, at most
WEIGHTS = {"measurements": 0.8, "whole": 0.1, "places": 0.1, "embedding": 0.1, "vectors": 0.1}
VECTORS = ("embedding", "vectors")  # levels of a network, whose crowds may lie too near to the mean
NEAREST = 5
FEWEST_GROUPED = 100  # pictures
CROWD = 0.05  # p-value of a vector in an unusual group, at most, and of one too near to the mean, at least
ALIKE = 30.0  # largest deviation of numbers of one unit, relative to their median deviation


def check(
    source: Any,
    *,
    against: Any = None,
    out: str | Path | None = None,
    leaks: bool = False,
    encoder: str | nn.Module = ENCODER,
    vectors: Any = None,
    size: int = 256,
    fdr: float = 0.1,
    mark: float = 0.05,
    confirmed: Review | Sequence[str] | Mapping[str, str] = (),
    map: str = "tsne",
    column: str | None = None,
    root: str | None = None,
    workers: int = 2,
) -> CheckResult:
    """Returns what is unusual among pictures or vectors, where and why, and which are copies of others.

    Args:
        source: Pictures: a folder of any depth, a file, a list of paths or of PIL images, an array, a ``.parquet`` or ``.csv``
            file with a column of paths or of encoded bytes, a tar, the name of a built-in set, or items of this library. Or
            vectors (N, D) that another model computed: an array, or a ``.npy``, ``.npz`` or ``.parquet`` file.
        against: Pictures or vectors that are known to be ordinary: p-values then hold at the stated rate. By default the items
            are judged by themselves.
        out: Folder in which the results are written, none of it inside the source; None writes nothing.
        leaks: Only say which pictures are copies of those in ``against``, or nearly so.
        encoder: ``patches``, which needs no network; ``timm:NAME`` or a folder that ``vergence fetch`` wrote; ``auto``, the best
            that is at hand; a run's folder; or a module that maps images (B, 3, H, W) to embeddings.
        vectors: Embeddings of the pictures by any model, as one more level: an array (N, D) in their order, or a file, whose
            names are the pictures' where it has names.
        size: Pixels of the shorter side at which places are looked at, at most.
        fdr: Share of the flagged pictures that is ordinary, on average at most, in (0, 1).
        mark: Share of ordinary pictures in which any place is marked, at most, in (0, 1).
        confirmed: What a person said after looking: names of outliers, or ``odd``, ``fine`` or ``odd known`` by name. No fit
            sees unusual ones, neither is flagged again, and what is less unusual than a fine one is no longer improbable.
        map: How the map of all pictures is made: ``tsne``, ``pca``, or, where they are installed, ``umap`` or ``pacmap``.
        column: Column of a table that holds the pictures.
        root: Folder of torchvision's data sets.
        workers: Processes that read pictures.

    Raises:
        ValueError: A setting is out of its range, there is no picture, or the results cannot be written.

    Example:
        >>> found = check("digits")
        >>> len(found.items["path"]), found.summary["pictures"]
        (359, 359)
    """
    expect(not leaks or against is not None, "leaks with another source", "none", "name it with --against")
    _require_apart(source, out)
    settings = CheckSettings(size, fdr, mark, workers, Review.of(confirmed), map)
    if (given := _vectors(source)) is not None:
        known_vectors = None if against is None else _vectors(against)
        expect(against is None or known_vectors is not None, "vectors to compare vectors with", against, "name others")
        expect(not leaks and vectors is None, "pictures with these options", "vectors", "leave them out")
        result = _of_vectors(given, known_vectors, settings, _called(source))
    else:
        settings = _with_encoder(settings, encoder)
        pictures = open_pictures(source, root=root, column=column)
        known = None if against is None else open_pictures(against, root=root, column=column)
        return _of_pictures(_called(source), pictures, known, settings, vectors, leaks, None if out is None else Path(out))
    if out is not None:
        result.write(out)
    return result


def _called(source: Any) -> str:
    return Path(source).name or str(source) if isinstance(source, str | Path) else f"a {type(source).__name__}"


def _require_apart(source: Any, out: Any) -> None:
    if out is None or not isinstance(source, str | Path) or not Path(source).is_dir():
        return
    inside = Path(source).resolve() in (Path(out).resolve(), *Path(out).resolve().parents)
    expect(not inside, f"an output folder outside {source}", str(out), "choose another --out")


def _with_encoder(settings: CheckSettings, encoder: str | nn.Module) -> CheckSettings:
    """Returns the settings with what gives features."""
    if isinstance(encoder, nn.Module):
        return replace(settings, network=FrozenNetwork(encoder, type(encoder).__name__), encoder=type(encoder).__name__)
    if encoder == ENCODER:
        return settings
    if (Path(encoder) / "config.json").is_file():
        from vergence.learn.runs.run import load  # `--encoder RUN` alone needs the trainer

        run = load(Path(encoder), device="cpu")
        return replace(settings, embed=_RunEmbedding(run.method.encoder, run.folder.metadata.shape), encoder=f"the run {encoder}")
    network, about = at_hand() if encoder == "auto" else (named_network(encoder), encoder)
    terminal.note(f"encoder: {about}")
    if network is None:
        return settings
    license = f"; license of the weights: {network.license}" if network.license else ""
    return replace(settings, network=network, encoder=f"{network.name}{license}")


class _RunEmbedding:
    """The encoder of a run on whole pictures, stretched to its size."""

    def __init__(self, encoder: nn.Module, shape: Sequence[int]) -> None:
        expect(len(shape) == 3, "a run of pictures as encoder", f"one of items of shape {tuple(shape)}", "name another")
        self.encoder, self.shape = encoder.eval(), tuple(shape)

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        first = next(itertools.chain(self.encoder.parameters(), self.encoder.buffers()), x)
        small = resize(x[None], *self.shape[1:]).to(first.dtype)
        z: Tensor = self.encoder(luma(small) if self.shape[0] == 1 else small)
        return z.flatten(1)[0]


# Pictures


@dataclass(frozen=True)
class _Work:
    """Where finished parts of the work are kept, so that the same call after a kill goes on behind them."""

    stack: ExitStack
    out: Path | None
    job: Mapping[str, Any]

    def parts(self, name: str, pictures: Pictures) -> Parts | None:
        """Returns the parts of a step on files; None for other pictures, or without a folder."""
        if self.out is None or pictures.folder is None:
            return None
        job = {**self.job, "step": name, "pictures": stamp(pictures)}
        return self.stack.enter_context(open_parts(self.out / name, job, every=PART, joined=False))


def _of_pictures(
    source: str,
    pictures: Pictures,
    known: Pictures | None,
    settings: CheckSettings,
    vectors: Any,
    leaks: bool,
    out: Path | None,
) -> CheckResult:
    with ExitStack() as stack:
        if out is not None:
            with explained(out, "choose another --out"):
                out.mkdir(parents=True, exist_ok=True)
        work = _Work(stack, out, {"job": "check", "size": settings.size, "encoder": settings.encoder})
        features = _image_features(pictures, settings, vectors, work.parts("looks", pictures))
        reference_features = None if known is None else _image_features(known, settings, None, work.parts("known", known))
        read = _reader(pictures, features, settings.size)
        copies = find_duplicates(features.small, features.digest, read)
        leaked, known_names = None, list[str]()
        if known is not None and reference_features is not None:
            known_names = list(reference_features.names)
            others = reference_features.small, reference_features.digest, _reader(known, reference_features, settings.size)
            leaked = find_duplicates(features.small, features.digest, read, *others)
        anomalies, note = None, ""
        if known is not None and reference_features is not None and not leaks:
            anomalies = _with_reference(pictures, features, known, reference_features, settings)
        elif not leaks:
            anomalies, note = _without_reference(pictures, features, copies, settings, work)
        here = [*features.names, *(s.name for s in pictures.skipped), *known_names]
        notes = [*filter(None, [note]), *settings.review.notes(here)]
        result = result_of(source, pictures, features, settings, copies, anomalies, notes, known, reference_features, leaked)
        if out is not None:
            result.write(out)
    return result


def _reader(pictures: Pictures, features: ImageFeatures, size: int) -> Callable[[int], npt.NDArray[np.uint8]]:
    """Returns what reads image i of those that could be read; one that has gone meanwhile is plain, like no other."""

    def read(i: int) -> npt.NDArray[np.uint8]:
        try:
            return shrunk(pictures.read(int(features.index[i])).pixels, size)
        except ValueError:
            return np.zeros((1, 8, 8), dtype=np.uint8)

    return read


def _image_features(pictures: Pictures, settings: CheckSettings, vectors: Any, kept: Parts | None) -> ImageFeatures:
    """Returns what the first look at each picture tells."""
    columns = rows_of(FirstPass(), pictures, range(len(pictures)), settings.workers, "pictures", kept)
    if not columns:
        first = pictures.skipped[0] if pictures.skipped else None
        refuse("pictures that can be read", "none" if first is None else f"none: {first.name} ({first.reason})", "give others")
    index = columns.pop("index")
    names = [pictures.names[i] for i in index.tolist()]
    given = None if vectors is None else _vectors_of(vectors, pictures, index.tolist())
    return ImageFeatures(index, names, given, **columns)


def _vectors_of(vectors: Any, pictures: Pictures, index: Sequence[int]) -> Floats:
    """Returns the vectors of the pictures that could be read, by their names where the vectors have names."""
    given = _vectors(vectors)
    expect(given is not None, "vectors: an array (N, D), or a .npy, .npz or .parquet file of them", vectors, "give others")
    assert given is not None
    names, x = given
    if names is None:
        expect(len(x) == len(pictures), f"one vector for each of {len(pictures)} pictures", len(x), "give them with names")
        return np.asarray(x[np.array(index)])
    place = {name: i for i, name in enumerate(names)}
    missing = [pictures.names[i] for i in index if pictures.names[i] not in place]
    named = f"none for {len(missing)} (first: {missing[0]})" if missing else ""
    expect(not missing, "a vector for each picture, by its name", named, "write names as in items.csv")
    return np.asarray(x[[place[pictures.names[i]] for i in index]])


def _folds(digest: Ints, group: Ints) -> tuple[Ints, Ints]:
    """Returns the fold of each item, which copies share, and the first item of each group, in the order of content."""
    order = np.argsort(digest, kind="stable")
    first = order[np.sort(np.unique(group[order], return_index=True)[1])]
    number = np.zeros(int(group.max()) + 1, dtype=np.int64)
    number[group[first]] = np.arange(len(first))
    return number[group] % FOLDS, first


def _without_reference(
    pictures: Pictures, features: ImageFeatures, copies: Duplicates, settings: CheckSettings, work: _Work
) -> tuple[Anomalies | None, str]:
    """Returns what is unusual among pictures by themselves, or None and why they are not judged."""
    apart, group = settings.review.places(features.names, "odd"), duplicate_sets(copies, len(features))
    fold, different = _folds(features.digest, group)
    different = different[~np.isin(group[different], group[apart])]
    if len(different) < FEWEST:
        few = f"{len(different)} different pictures are too few to say what is unusual; at least {FEWEST} are needed"
        return None, f"{few}. Copies and plain properties are told for any number."
    fitted = different[:FITTED]
    region_pass = _region_pass(pictures, features, fitted[:SAMPLED], fold, settings, clean=False)
    places = _region_scores(pictures, features, region_pass, settings, work.parts("maps", pictures))
    levels = _feature_sets(features, places, settings)
    fits = {name: CrossFitted(x[fitted], fold[fitted]) for name, x in levels.items()}
    found = {name: _own_evidence(name, fits[name], fits[name].log_distance(x, fold), fitted) for name, x in levels.items()}
    found["places"] = Evidence.by_tail(places.score, fitted)
    decisions = _decided(found, apart, settings.review.places(features.names, "fine"), settings.fdr)
    table = levels["measurements"]
    groups = _groups(fits["measurements"].white(table[fitted]), fitted, farther=1.0)
    threshold = region_threshold(places.largest[fitted], settings.mark)
    deviations = fits["measurements"].in_units(table)
    return Anomalies(decisions, deviations, places, region_pass, threshold, groups, None), ""


def _feature_sets(features: ImageFeatures, places: RegionScores, settings: CheckSettings) -> dict[str, Floats]:
    """Returns features by level; those of a network are levels of their own."""
    levels = features.levels()
    if settings.network is not None or settings.embed is not None:
        levels["embedding"] = places.embedding.astype(np.float64)
    return levels


def _own_evidence(name: str, fits: CrossFitted, t: Floats, fitted: Ints) -> Evidence:
    """Returns what log squared distances (N,) of a level say; too near is unusual in vectors, and no p is below ``CROWD``."""
    own = t[fitted]
    if name == "measurements":
        return Evidence.of(RadialNull.of(own).log_p(t), t, own)
    if name not in VECTORS:
        return Evidence.by_tail(t, fitted)
    if fits.discrete or not (law := RadialNull.of(own, many=False)).holds:
        return Evidence.of(np.zeros(len(t)), t, own)
    near = np.maximum(Evidence.by_tail(outward(t, own), fitted).log_p, np.log(CROWD))
    return Evidence(np.minimum(law.log_p(t), np.where(t < np.median(own), near, 0.0)), True)


def _decided(levels: Mapping[str, Evidence], odd: Bools, fine: Bools, fdr: float) -> Decisions:
    """Returns what is flagged among items by levels whose law holds, but for those that a person called odd or fine."""
    log_p = {name: one.log_p for name, one in levels.items()}
    log, level = combine(log_p, WEIGHTS)
    lawful, _ = combine({name: one.log_p if one.holds else np.zeros(len(log)) for name, one in levels.items()}, WEIGHTS)
    p = after_review(np.exp(lawful), odd, fine)
    return decided(p, fdr, 0, left_out=odd, fine=fine, **_columns(log, level, log_p))


def _columns(log: Floats, level: Sequence[str], log_p: Mapping[str, Floats]) -> dict[str, Any]:
    """Returns the columns that say how unusual items are, and at which level."""
    return {"score": np.abs(log), "level": list(level), **{LEVEL + name: -one for name, one in log_p.items()}}


def _groups(x: Floats, fitted: Ints, farther: float = 0.0) -> list[Ints]:
    """Returns the members of unusual groups whose mean lies farther from that of the others than so many typical items."""
    groups: list[Group] = anomalous_clusters(torch.from_numpy(x)) if len(fitted) >= FEWEST_GROUPED else []
    return [fitted[group.members] for group in groups if group.distance > farther]


# Compared with known pictures


def _with_reference(
    pictures: Pictures, features: ImageFeatures, known: Pictures, reference_features: ImageFeatures, settings: CheckSettings
) -> Anomalies:
    """Returns what is unusual among pictures compared with known ones, half of which calibrate."""
    exact = np.unique(reference_features.digest, return_inverse=True)[1]
    fit, calibrating = _halves(_folds(reference_features.digest, exact)[1])
    halves = np.full(len(reference_features), NEW)
    halves[fit[:SAMPLED]] = np.arange(len(fit[:SAMPLED])) % 2
    region_pass = _region_pass(known, reference_features, fit[:SAMPLED], halves, settings, clean=True)
    places = _region_scores(pictures, features, region_pass, settings)
    known_places = _region_scores(known, reference_features, region_pass, settings)
    new, old = _feature_sets(features, places, settings), _feature_sets(reference_features, known_places, settings)
    new = {name: x for name, x in new.items() if name in old}
    log_p, known_log_p = _reference_log_p(new, old, fit)
    law = Tail(known_places.score[fit])
    log_p["places"], known_log_p["places"] = law.log_probability(places.score), law.log_probability(known_places.score)
    calibrating = calibrating[~settings.review.places(reference_features.names, "known")[calibrating]]
    names = [reference_features.names[i] for i in calibrating.tolist()]
    seen = np.isin(features.digest, reference_features.digest)
    decisions, calibration = _conformal(log_p, known_log_p, calibrating, names, features.names, seen, settings)
    threshold = region_threshold(known_places.largest[calibrating], settings.mark)
    table = old["measurements"][fit]
    deviations = CrossFitted(table, np.zeros(len(fit), dtype=np.int64), clean=True).in_units(new["measurements"])
    return Anomalies(decisions, deviations, places, region_pass, threshold, [], calibration)


def _halves(different: Ints) -> tuple[Ints, Ints]:
    """Returns which known items are fitted to, and which calibrate."""
    least = 2 * FEWEST
    expect(
        len(different) >= least, f"at least {least} different known items", len(different), "give more, or leave --against out"
    )
    return different[0::2][:FITTED], different[1::2]


def _reference_log_p(
    new: Mapping[str, Floats], old: Mapping[str, Floats], fit: Ints
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Returns log p of new and of known items by level, by the tail of the items that are fitted to, each out of fold."""
    log_p, known_log_p = {}, {}
    fold, none = np.arange(len(fit)) % FOLDS, np.zeros(len(fit), dtype=np.int64)
    for name, x in new.items():
        reference = old[name][fit]
        whole = CrossFitted(reference, none, clean=True)
        law = Tail(CrossFitted(reference, fold, clean=True).log_distance(reference, fold))
        of_both = (law.log_probability(whole.log_distance(y, np.zeros(len(y), dtype=np.int64))) for y in (x, old[name]))
        log_p[name], known_log_p[name] = of_both
        if name in VECTORS:
            scores, new_scores, old_scores = _neighbor_scores(reference, x, old[name])
            law = Tail(scores)
            near = f"neighbors of its {name}"
            log_p[near], known_log_p[near] = law.log_probability(new_scores), law.log_probability(old_scores)
    return log_p, known_log_p


def _neighbor_scores(reference: Floats, x: Floats, old: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns distances of directions to the fifth nearest of reference vectors: of these in halves, of new and of known ones."""
    center = reference.mean(0)

    def directions(y: Floats) -> Floats:
        return np.asarray((y - center) / np.maximum(np.linalg.norm(y - center, axis=1, keepdims=True), 1e-12))

    bank = directions(reference)
    detector = NeighborDetector(NEAREST, standardize=False).fit(bank)
    own = np.empty(len(bank))
    for part, rest in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        own[part] = NeighborDetector(NEAREST, standardize=False).fit(bank[rest]).anomaly_score(bank[part])
    return own, detector.anomaly_score(directions(x)), detector.anomaly_score(directions(old))


def _conformal(
    log_p: Mapping[str, Floats],
    known_log_p: Mapping[str, Floats],
    calibrating: Ints,
    known_names: Sequence[str],
    names: Sequence[str],
    seen: Bools,
    settings: CheckSettings,
) -> tuple[Decisions, ReferenceScores]:
    """Returns what is flagged next to calibration items, and these; items that are among the known ones are not judged."""
    equal, odd, fine = dict.fromkeys(log_p, 1.0), settings.review.places(names, "odd"), settings.review.places(names, "fine")
    known_log, _ = combine({name: one[calibrating] for name, one in known_log_p.items()}, equal)
    log, level = combine(log_p, equal)
    calibration = ReferenceScores(np.abs(known_log), known_names, seen)
    p, columns = ranked(calibration.scores, np.abs(log)), _columns(log, level, log_p)
    return decided(p, settings.fdr, len(calibration), left_out=seen | odd, fine=fine, **columns), calibration


# Places


def _region_pass(
    pictures: Pictures, features: ImageFeatures, sample: Ints, fold: Ints, settings: CheckSettings, *, clean: bool
) -> RegionPass:
    """Returns what judges places, learned from the pictures of a sample."""
    rows, size, workers = features.index[sample].tolist(), settings.size, settings.workers
    local: LocalFeatures
    with terminal.bar("places", 2 * len(rows), late=True) as advance:
        if settings.network is None:
            small = []
            for _, pixels in pictures.map(SamplePass(size), rows, workers):
                small.append(as_tensor(pixels))
                advance()
            local = PatchCells(small)
        else:
            local = settings.network
        cells, of = [], []
        place = dict(zip(rows, sample.tolist(), strict=True))
        for i, some in pictures.map(SamplePass(size, local, len(rows)), rows, workers):
            cells.append(some)
            of.append(place[i])
            advance()
    expect(cells, "pictures that can still be read", "none", "repeat the command")
    model = CellModel(cells, fold[np.array(of)], clean=clean)
    of_digest = {d: k for d, k in zip(features.digest.tolist(), fold.tolist(), strict=True) if k != NEW}
    return RegionPass(size, local, model, of_digest, settings.embed)


def _region_scores(
    pictures: Pictures, features: ImageFeatures, region_pass: RegionPass, settings: CheckSettings, kept: Parts | None = None
) -> RegionScores:
    """Returns what the map of each picture says; of one that has gone meanwhile, that nothing is unusual."""
    columns = rows_of(region_pass, pictures, features.index.tolist(), settings.workers, "maps", kept)
    expect(columns, "pictures that can still be read", "none", "repeat the command")
    n, k = len(features), np.searchsorted(features.index, columns["index"])
    score, largest = (np.full(n, columns[name].min()) for name in ("places", "largest"))
    where, embedding = np.full((n, 2), 0.5), np.zeros((n, columns["embedding"].shape[1]), dtype=np.float32)
    score[k], largest[k], where[k], embedding[k] = (columns[name] for name in ("places", "largest", "place", "embedding"))
    return RegionScores(score, largest, where, embedding)


# Vectors alone


def _vectors(source: Any) -> tuple[Sequence[str] | None, Floats] | None:
    """Returns the names, None where they are numbers, and the vectors (N, D) of a source; None where it holds no vectors."""
    if isinstance(source, str | Path):
        if Path(source).suffix.lower() not in (".npy", ".npz", ".parquet"):
            return None
        try:
            items = open_items(str(source))
        except ValueError:
            if Path(source).suffix.lower() == ".parquet":  # perhaps of pictures
                return None
            raise
    elif (
        isinstance(source, np.ndarray | Tensor)
        and source.ndim == 2
        and not (isinstance(source, np.ndarray) and source.dtype.kind in "OUS")
    ):
        items = open_items(source)
    else:
        return None
    if len(items.shape) != 1:
        return None
    x = torch.cat([part for _, part in items.stream([torch.arange(len(items))])]).double().numpy()
    return None if isinstance(items.names, RowNames) else list(items.names), x


Named = tuple[Sequence[str] | None, Floats]


def _of_vectors(given: Named, known: Named | None, settings: CheckSettings, name: str) -> CheckResult:
    """Returns what is unusual among vectors; crowds that lie apart are groups."""
    names, x = given[0] or [str(i) for i in range(len(given[1]))], given[1]
    features = ImageFeatures.of_vectors(names, x)
    copies = Duplicates(np.zeros((0, 2), dtype=np.int64), [], np.zeros(0))
    pictures = Pictures(names, [None] * len(names))
    notes = settings.review.notes([*names, *settings.review.known])
    if known is not None:
        fit, calibrating = _halves(np.argsort(ImageFeatures.of_vectors([""] * len(known[1]), known[1]).digest, kind="stable"))
        expect(known[1].shape[1] == x.shape[1], f"known vectors of {x.shape[1]} numbers", known[1].shape[1], "use one encoder")
        log_p, known_log_p = _reference_log_p({"vectors": x}, {"vectors": known[1]}, fit)
        of_known = known_log_p, calibrating, [str(i) for i in calibrating.tolist()]
        decisions, calibration = _conformal(log_p, *of_known, names, np.zeros(len(x), dtype=bool), settings)
        anomalies: Anomalies | None = Anomalies(decisions, x, None, None, np.inf, [], calibration)
        return result_of(name, pictures, features, settings, copies, anomalies, notes)
    apart, fine = settings.review.places(names, "odd"), settings.review.places(names, "fine")
    fold, different = _folds(features.digest, np.unique(features.digest, return_inverse=True)[1])
    fitted = different[~apart[different]][:FITTED]
    if len(fitted) < FEWEST:
        note = f"{len(fitted)} different vectors are too few to say what is unusual; at least {FEWEST} are needed."
        return result_of(name, pictures, features, settings, copies, None, [note, *notes])
    fits = CrossFitted(x[fitted], fold[fitted])
    levels = {"vectors": _own_evidence("vectors", fits, fits.log_distance(x, fold), fitted)}
    alike = x.std(0).max() <= ALIKE * np.median(x.std(0))  # numbers of one unit, as those of a network
    groups = _groups(x[fitted] if alike else fits.in_units(x[fitted]), fitted)
    decisions = _decided(levels, apart, fine, settings.fdr)
    score, p = decisions.columns["score"], decisions.p_value
    crowd = np.isin(np.arange(len(x)), np.concatenate([np.zeros(0, dtype=np.int64), *groups])) & (p > CROWD)
    score = np.where(crowd, np.maximum(score, -np.log(CROWD)), score)
    level = ["group" if member else "vectors" for member in crowd]
    columns = {**decisions.columns, "score": score, "p_value": np.where(crowd, CROWD, p), "level": level}
    anomalies = Anomalies(replace(decisions, columns=columns), fits.in_units(x), None, None, np.inf, groups, None)
    return result_of(name, pictures, features, settings, copies, anomalies, notes)
