"""Every option of every command with usual and hostile values, in this process."""

import contextlib
import dataclasses
import io
import sys
import typing

from hypothesis import strategies as st
from tests.fuzz.files import Target
from tests.fuzz.judge import Broken, Refused
from tests.fuzz.place import MODELS

from vergence.cli import commands, density
from vergence.cli.options import known_settings

__all__ = ["TARGETS"]

HOSTILE = [
    "-1", "0", "1", "2", "nan", "inf", "1e9", "9" * 30, "x", "None", "-", "--", "é", "a=b", "[", "[1,2]", "(1,)", " ",
    "\udce9", "1.5", "-" * 300, "x" * 5000, "../x", "/dev/null", "/", "~", ".", "*", "{out}", "true", "a\nb", "'", "%s",
    "0x10", "1_0",
]  # fmt: skip
PATHS = ["{place}/run", "{place}/images", "{place}/data.npz", "{place}/data.npy", "{place}/pairs.npz", "{place}/pairs.csv"]
PATHS += ["{place}/photos", "{place}/contexts.npz", "{place}/empty", "{place}/none", "{place}/text.npz", "{place}/a.jpg"]
PATHS += [f"{{place}}/{name}.safetensors" for name in MODELS]
OUTS = [
    "{out}/x.npz", "{out}/x.csv", "{out}/x.parquet", "{out}/x.png", "{out}/x", "{out}", "{out}/no/x.npz", "{place}/empty",
    "x\x00.npz", "{out}/x.safetensors",
]  # fmt: skip
USUAL = {
    "objective": ["vje", "gje", "jepa", "gmje", "contrastive", "gmje_em", "gmje_gng", "gmje_mdn", "gmje_smc", "nothing"],
    "encoder": ["mlp", "small", "resnet18", "none", "timm:", "identity", "tests.factories:plain", "tests.factories:number"],
    "weights": ["{place}/weights.pth", "{place}/weights.safetensors", "{place}/run/model.safetensors", "{place}/text.npz"],
    "init": ["{place}/run", "{place}/images", "{place}/empty"], "optimizer": ["sgd", "adamw", "lars"],
    "precision": ["auto", "fp32", "bf16", "fp64"], "device": ["cpu", "auto", "cuda"], "model": [*MODELS, "nothing"],
    "recipe": ["vje_small", "vje_cifar10", "override", "_x"], "target": ["y", "a", "z"], "level": ["0.5", "0.9", "1"],
    "holdout": ["0", "0.2", "0.99"], "keep_classes": ["0", "1", "5"], "epochs": ["1", "2"], "batch_size": ["4", "16", "7"],
    "lr": ["0.01", "1e-3", "1"], "size": ["8", "10"], "limit": ["40", "60", "1000"], "seed": ["0", "7"], "devices": ["1"],
    "threads": ["1", "2"], "data_root": ["{place}"], "n": ["1", "5"],
    "context": ["{place}/data.npy", "{place}/photos", "1,2"], "components": ["1", "3"],
    "draws": ["2", "5"], "minutes": ["0.001", "0.01"], "frozen": ["small", "identity"],
    "views": ["counts", "spectra", "series", "table", "features"],
}  # fmt: skip
SENSIBLE = {  # of --set
    "Train": ["nu=1", "projector=(4,)", "clip=1", "noise=0.2", "weight_decay=0.1", "knn_every=0", "loss=joint_kl", "mask=0.5"],
    "Advise": ["noise=0.2", "mask=0.5", "crop=(0.5,1)", "blur=0.5"],
    "DensityFit": ["max_iter=2", "tol=0.1", "n_components=2", "random_state=1"],
}
SETTINGS = [
    "nu=1", "nu=inf", "projector=(4,)", "projector=(0,)", "projector=[3]", "clip=1", "teacher=0.9", "teacher=2", "noise=-1",
    "noise=0.2", "mask=2", "holdout=0.5", "holdout=0", "scale=nan", "crop=(0.5,1)", "crop=(2,1)", "blur=x", "n_components=2",
    "max_iter=2", "options={}", "source=x", "dim=4", "warmup_epochs=5", "weight_decay=-1", "covariance=low_rank", "=", "=1",
    "x", "nodes=2", "workers=0", "knn_every=1", "jitter=(1,1,1,9)", "blur_sigma=(0,0)", "size=0", "target_encoder=mlp",
    "loss=1",
]  # fmt: skip
QUICK = {
    "Train": "--epochs=1 --limit=40 --batch-size=16 --device=cpu --precision=fp32 --set=workers=0 --devices=1".split(),
    "Advise": ["--draws=4", "--device=cpu"],
    "Evaluate": ["--device=cpu"],
}
FIRST = {  # usual positional arguments, so that most cases reach the work
    "Train": [f"{{place}}/{name} --encoder=mlp" for name in ("data.npz", "data.npy", "pairs.npz", "photos")],
    "Evaluate": ["{place}/run"],
    "Embed": ["{place}/run {place}/data.npy", "{place}/images {place}/photos"],
    "Check": ["{place}/photos", "{place}/images.npy", "{place}/many.npz", "{place}/photos --against {place}/photos --leaks"],
    "Fetch": ["timm:nothing"],
    "Score": ["{place}/run {place}/data.npz", "{place}/images {place}/photos"],
    "Calibrate": ["{place}/pairs.csv {place}/pairs.csv --column y", "{place}/data.npy {place}/data.npy"],
    "Monitor": ["{place}/pairs.csv {place}/pairs.csv --column y", "{place}/data.npy {place}/data.npy"],
    "Compare": ["{place}/run --no-probes", "{place}/run {place}/images --no-probes"],
    "Merge": ["{place}/run", "{place}/empty", "{out}"],
    "Pairs": ["fit {place}/pairs.npz"],
    "Match": ["{place}/pairs {place}/contexts.npz {place}/pairs.npz", "{place}/run {place}/data.npz {place}/data.npz"],
    "Neighbors": ["{place}/run {place}/data.npz", "{place}/images {place}/photos"],
    "Export": ["{place}/run --format torch"],
    "Advise": ["{place}/many.npz", "{place}/many.npy", "{place}/images.npy", "{place}/photos"],
    "Report": ["{place}/run", "{place}/images"],
    "DensityFit": ["{place}/pairs.npz", "{place}/pairs.csv --target y"],
    "DensityPredict": [f"{{place}}/{m}.safetensors {{place}}/contexts.npz" for m in MODELS],
    "DensitySample": [f"{{place}}/{m}.safetensors {{place}}/contexts.npz" for m in MODELS],
    "DensityScore": [f"{{place}}/{m}.safetensors {{place}}/pairs.npz" for m in MODELS],
    "DensityImportance": ["{place}/pairs.npz --model gaussian", "{place}/pairs.csv --target y --model gaussian"],
}
HEAVY = {"epochs", "draws"}  # options whose large valid values only take time
OPTIONAL = ("DensityFit", "Pairs")  # whose model is an option
POSITIONAL = {
    "Pairs": {"verb"}, "Calibrate": {"calibration", "new"}, "Monitor": {"calibration", "stream"}, "Merge": {"folder"},
    "Compare": {"runs"}, "Match": {"contexts", "gallery"},
}  # fmt: skip
KINDS = {kind.__name__: (kind.__name__.lower(),) for kind in commands.RUN if kind.__name__ != "Density"}
KINDS |= {kind.__name__: ("density", name) for name, kind in density.VERBS.items()}
TYPES = {kind.__name__: kind for kind in (*commands.RUN, *density.VERBS.values())}


def _options(kind):
    """Returns the options of a command that are not positional, with their types."""
    hints = typing.get_type_hints(TYPES[kind], include_extras=True)
    positional = {"data", "run", "images", "pairs", "source", *(["model"] if kind in FIRST and kind not in OPTIONAL else [])}
    positional |= POSITIONAL.get(kind, set())
    return {f.name: hints[f.name] for f in dataclasses.fields(TYPES[kind]) if f.name not in positional and f.name != "out"}


@st.composite
def _value(draw, kind, name, usual):
    if name == "set" and usual:
        return draw(st.sampled_from(SENSIBLE[kind]))
    if name == "set":
        known = [f"{name}=" for name in known_settings()]
        own = st.tuples(st.sampled_from(known), st.sampled_from(HOSTILE)).map("".join)
        return draw(st.one_of(st.sampled_from(SETTINGS), own))
    if name in USUAL and usual:
        return draw(st.sampled_from(USUAL[name]))
    if name in HEAVY:
        return draw(st.sampled_from([v for v in HOSTILE if v not in ("1e9", "9" * 30, "1_0")]))
    return draw(st.sampled_from([*HOSTILE, *PATHS[:3]]) if draw(st.integers(0, 3)) else st.text(max_size=6))


def _is_flag(kind):
    return bool in (kind, *typing.get_args(kind)[:1])


@st.composite
def _command_line(draw, place, kind):
    """A command, usual positional arguments or odd ones, and up to three options: all usual, one of them odd, or any."""
    odd = draw(st.sampled_from(["none", "none", "value", "value", "out", "source", "any"]))
    words = list(KINDS[kind])
    if kind in FIRST and odd not in ("source", "any"):
        words += draw(st.sampled_from(FIRST[kind])).split()
    else:
        words += draw(st.lists(st.sampled_from([*PATHS, *HOSTILE]), max_size=2))
    words += QUICK.get(kind, [])
    if "out" in {f.name for f in dataclasses.fields(TYPES[kind])}:
        words += ["--out", draw(_out(kind))] if odd not in ("out", "any") else draw(_odd_out())
    options = _options(kind)
    names = draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)) if options else []
    for i, name in enumerate(names):
        usual = odd not in ("value", "any") or (odd == "value" and i > 0)
        flag = "--" + name.replace("_", "-")
        if _is_flag(options[name]):
            words.append(flag if draw(st.booleans()) else "--no-" + name)
        else:
            value = draw(_value(kind, name, usual))
            words += [flag, value] if draw(st.booleans()) else [f"{flag}={value}"]
    if odd == "any" and draw(st.booleans()):
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from([*HOSTILE, "--help", "--version"])))
    return words


def _out(kind):
    """A file or folder that the command can write."""
    good = {"Train": [OUTS[4]], "Advise": [OUTS[4]], "DensityFit": [OUTS[-1]], "Pairs": [OUTS[-1]]}
    return st.sampled_from(good.get(kind, OUTS[:3]))


def _odd_out():
    return st.one_of(st.just([]), st.sampled_from([*OUTS, *HOSTILE]).map(lambda out: ["--out", out]))


def _run(case, place):
    with place.scratch() as folder, contextlib.chdir(folder) if sys.version_info >= (3, 11) else contextlib.nullcontext():
        words = [word.replace("{place}", str(place.path)).replace("{out}", str(folder)) for word in case]
        _call(words)


def _call(words):
    """Calls the command line; raises `Refused` for exit code 2 with one line, or with the usage of the option parser."""
    shown, before = io.StringIO(), sys.argv
    sys.argv = ["vergence", *words]
    try:
        with contextlib.redirect_stderr(shown):
            commands.main(words)
    except SystemExit as end:
        text = shown.getvalue()
        if end.code in (0, None):
            return
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        one_line = len(errors) == 1 and text.strip().splitlines()[-1] == errors[0]
        usage = not errors and "full helptext" in text and "Traceback" not in text
        if end.code != 2 or not (one_line or usage):
            raise Broken(f"exit code {end.code}: {text[-500:]}") from None
        raise Refused(text) from None
    finally:
        sys.argv = before


def _target(kind, share):
    return Target(f"cli-{'-'.join(KINDS[kind])}", share, lambda place: _command_line(place, kind), _run)


SHARES = {"Demo": 0, "Serve": 0, "Monitor": 2, "Check": 6, "Fetch": 1, "List": 1, "Completion": 1, "Doctor": 1, "Export": 1}
SHARES |= {"Neighbors": 3, "Compare": 2, "Calibrate": 3, "Merge": 1, "Pairs": 2, "Match": 2}
SHARES |= {"Train": 6, "Evaluate": 2, "Embed": 6, "Score": 6, "Advise": 4, "Report": 3}
SHARES |= {"DensityFit": 6, "DensityPredict": 5, "DensitySample": 5, "DensityScore": 5, "DensityImportance": 2}


def _refused(place, kind):
    """Command lines of the demo, which takes long: with at least one value that is refused before the work."""
    bad = st.sampled_from(["--seed=-1", "--seed=x", "--out="])
    return st.tuples(_command_line(place, kind), bad).map(lambda pair: [*pair[0], pair[1]])


TARGETS = [_target(kind, share) for kind, share in SHARES.items() if share]
TARGETS += [Target("cli-demo", 2, lambda place: _refused(place, "Demo"), _run)]
assert set(SHARES) == set(KINDS), "every command is tried"
