"""The commands on a trained run: evaluate, embed, report."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils import terminal
from vergence.utils.names import counted

__all__ = ["Embed", "Evaluate", "Report", "embed", "evaluate", "print_written", "report"]


@dataclass(kw_only=True)
class Evaluate:
    """Evaluate a run beside its controls; writes evaluation.json and prints a table (of a .npz file the table alone)."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder; with --uncertainty also a .npz file: z, label, and columns of uncertainties, of any model."""
    probes: bool = True
    """Fit linear probes."""
    uncertainty: bool = False
    """Measure what uncertainties say: which of them rank errors, and is the density calibrated."""
    reference: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Second .npz file, with the reference items of the controls (default: a random half of the first)."""
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False


@dataclass(kw_only=True)
class _Use:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    images: Annotated[Positional[str], arg(metavar="IMAGES")]
    """Any source that train takes; of a built-in name the test part is read (cifar10:train reads the other)."""
    out: Path
    """File to write: .npz, .csv or .parquet."""
    data_root: options.DataRoot = None
    batch_size: int = 256
    """Items at a time."""
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False


@dataclass(kw_only=True)
class Embed(_Use):
    """Write embeddings, posterior means, variances and log-densities."""

    crops: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Random views of each item, 2 or more; adds the direction of their mean embedding (z_crops) and their spread."""


@dataclass(kw_only=True)
class Report:
    """Write a run's report: one interactive page that works offline."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""


def evaluate(command: Evaluate) -> None:
    """Runs ``vergence evaluate``."""
    from vergence.report.tables import show_evaluation
    from vergence.runs.evaluate import evaluate as run_evaluation
    from vergence.runs.run import load

    if command.run.suffix.lower() == ".npz":
        return _evaluate_file(command)
    if command.reference is not None:
        raise ValueError(f"expected --reference with a .npz file of embeddings, found {command.run}; leave it out")
    run = load(command.run, device=command.device, trust_code=command.trust_code)
    show_evaluation(run_evaluation(run, probes=command.probes, uncertainty=command.uncertainty))


def _evaluate_file(command: Evaluate) -> None:
    """Prints what the uncertainties in a file say."""
    from vergence.report.tables import show_uncertainty
    from vergence.runs import embeddings

    if not command.uncertainty:
        raise ValueError(f"expected a run folder, found {command.run}; for a file of embeddings add --uncertainty")
    of_runs = {"--no-probes": not command.probes, "--device": command.device != "auto", "--trust-code": command.trust_code}
    if given := [option for option, used in of_runs.items() if used]:
        verb, them = ("is", "it") if len(given) == 1 else ("are", "them")
        raise ValueError(f"{' and '.join(given)} {verb} for run folders, found {command.run}; leave {them} out")
    tested = embeddings.read(command.run)
    reference = None if command.reference is None else embeddings.read(command.reference)
    if tested.unused:
        terminal.note(f"not used, since they are not a number an item: {', '.join(tested.unused)}")
    found = embeddings.measure(tested, reference)
    if found.recall_at_1 in (0, 1):
        terminal.note(f"R@1 is {found.recall_at_1:.0f}, so there is nothing to rank")
    show_uncertainty(found)


def embed(command: Embed) -> None:
    """Runs ``vergence embed``."""
    from vergence.runs.run import load

    run = load(command.run, device=command.device, trust_code=command.trust_code)
    items = run.items(command.images, root=command.data_root)
    if items.conversion is not None:
        terminal.note(f"images are changed from {items.conversion}, as the run reads them")
    print_written(command.out, run.write_embeddings(items, command.out, crops=command.crops or 0, batch_size=command.batch_size))


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

    print(f"wrote {write_report(command.run)}")
