"""The commands on a trained run: evaluate, embed, sample, report."""

import csv
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils import terminal
from vergence.utils.checks import counted, expect

__all__: list[str] = []


@dataclass(kw_only=True)
class Evaluate:
    """Evaluate a run beside its controls; writes evaluation.json and report.html, and prints a table.

    Of a .npz file of embeddings the table alone is printed.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder; with --uncertainty also a .npz file: z, label, and columns of uncertainties, of any model."""
    probes: Annotated[bool, arg(help="Fit linear probes.")] = True
    uncertainty: bool = False
    """Measure what uncertainties say: which of them rank errors, and is the density calibrated."""
    reference: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Second .npz file, with the reference items of the controls (default: a random half of the first)."""
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False


@dataclass(kw_only=True)
class Embed:
    """Write embeddings, posterior means, variances and log-densities."""

    run: options.RunFolder
    images: Annotated[Positional[str], arg(metavar="IMAGES", help=options.ANY_SOURCE)]
    out: options.TableOut = None
    data_root: options.DataRoot = None
    batch_size: options.BatchSize = 256
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False
    crops: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Random views of each item, 2 or more; adds the direction of their mean embedding (z_crops) and their spread."""


@dataclass(kw_only=True)
class Sample:
    """Sample pairs of embeddings, or targets of contexts, from a run's density; writes them, or the nearest real pictures."""

    run: Annotated[Positional[Path], arg(metavar="RUN", help="Run folder; its objective has a conditional density, as gje.")]
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: samples-RUN.npz)")] = None
    """File to write: .npz for embeddings, .png for a grid of pictures."""
    n: Annotated[int | None, arg(metavar="N", help="Samples.", help_behavior_hint="(default: 64, or 8 a context)")] = None
    context: Annotated[str | None, arg(metavar="IMAGES", help_behavior_hint="")] = None
    """Sample targets of the first 8 of these items, a row each; any source that train takes."""
    seed: options.Seed = 0
    device: options.Device = "auto"
    trust_code: options.TrustCode = False


@dataclass(kw_only=True)
class Report:
    """Write a run's report: one interactive page that works offline."""

    run: options.RunFolder


def evaluate(command: Evaluate) -> None:
    """Runs ``vergence evaluate``."""
    from vergence.report.page import write_report
    from vergence.report.tables import show_evaluation
    from vergence.runs.evaluate import evaluate as run_evaluation
    from vergence.runs.run import load

    if command.run.suffix.lower() == ".npz":
        return _evaluate_file(command)
    expect(command.reference is None, "--reference with a .npz file of embeddings", str(command.run), "leave it out")
    run = load(command.run, device=command.device, trust_code=command.trust_code)
    show_evaluation(run_evaluation(run, probes=command.probes, uncertainty=command.uncertainty))
    print(f"wrote {command.run / 'evaluation.json'} and {write_report(command.run)}")
    print(f"next: vergence score {shlex.quote(str(command.run))} NEW")


def _evaluate_file(command: Evaluate) -> None:
    """Prints what the uncertainties in a file say."""
    from vergence.report.tables import show_uncertainty
    from vergence.runs.uncertainty import rank_embeddings, read_embeddings

    if not command.uncertainty:
        raise ValueError(f"expected a run folder, found {command.run}; for a file of embeddings add --uncertainty")
    of_runs = {"--no-probes": not command.probes, "--device": command.device != "auto", "--trust-code": command.trust_code}
    given = [option for option, used in of_runs.items() if used]
    expect(not given, f"a run folder with {' and '.join(given)}", str(command.run), "leave them out")
    tested = read_embeddings(command.run)
    reference = None if command.reference is None else read_embeddings(command.reference)
    if tested.unused:
        terminal.note(f"not used, since they are not a number an item: {', '.join(tested.unused)}")
    measured = rank_embeddings(tested, reference)
    if measured.recall_at_1 in (0, 1):
        terminal.note(f"R@1 is {measured.recall_at_1:.0f}, so there is nothing to rank")
    show_uncertainty(measured)


def embed(command: Embed) -> None:
    """Runs ``vergence embed``."""
    from vergence.runs.run import load, write_embeddings

    run = load(command.run, device=command.device, trust_code=command.trust_code)
    items = run.items(command.images, root=command.data_root)
    if items.conversion is not None:
        terminal.note(f"images are changed from {items.conversion}, as the run reads them")
    out = command.out or Path(f"embeddings-{options.stem(command.images)}.npz")
    print_written(out, write_embeddings(run, items, out, crops=command.crops or 0, batch_size=command.batch_size))
    print(f"next: vergence check {shlex.quote(str(out))}" if out.suffix != ".csv" else "next: read it with pandas.read_csv")


def sample(command: Sample) -> None:
    """Runs ``vergence sample``."""
    from vergence.runs.pictures import write_samples
    from vergence.runs.run import load

    run = load(command.run, device=command.device, trust_code=command.trust_code)
    out = command.out or Path(f"samples-{options.stem(command.run)}.npz")
    n = write_samples(run, out, n=command.n, context=command.context, seed=command.seed)
    print(f"wrote {n} samples to {out}")
    print(f"next: vergence evaluate {shlex.quote(str(command.run))}")


def print_written(out: Path, rows: int, page: bool = False) -> None:
    """Prints how many rows were written, the page beside them if there is one, and where what could not be read is listed."""
    skipped = out.with_name(f"{out.name}.skipped.csv")
    bad = ""
    if skipped.exists():
        with skipped.open(newline="", encoding="utf-8") as file:
            n = sum(1 for _ in csv.reader(file)) - 1
        bad = f"; {skipped} lists {n:,} that could not be read"
    print(f"wrote {counted(rows, 'row')} to {out}{f', and a page to {out}.html' if page else ''}{bad}")


def report(command: Report) -> None:
    """Runs ``vergence report``."""
    from vergence.report.page import write_report

    page = write_report(command.run)
    print(f"wrote {page}")
    print(f"next: open {page}")
