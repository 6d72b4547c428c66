"""``vergence sample``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vergence.cli import options

__all__ = ["Sample", "sample"]


@dataclass(kw_only=True)
class Sample:
    """Sample pairs of embeddings, or targets of contexts, from a run's density; writes them, or the nearest real pictures."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder; its objective needs a conditional density, as gje has."""
    out: Path
    """File to write: .npz for embeddings, .png for a grid of pictures."""
    n: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 64, or 8 a context)")] = None
    """Number of samples."""
    context: Annotated[str | None, arg(metavar="IMAGES", help_behavior_hint="")] = None
    """Sample targets of the first 8 of these items, a row each; any source that train takes."""
    seed: options.Seed = 0
    device: options.Device = "auto"
    trust_code: options.TrustCode = False


def sample(command: Sample) -> None:
    """Runs ``vergence sample``."""
    from vergence.runs.pictures import write_samples
    from vergence.runs.run import load

    n = write_samples(
        load(command.run, device=command.device, trust_code=command.trust_code),
        command.out,
        n=command.n,
        context=command.context,
        seed=command.seed,
    )
    print(f"wrote {n} samples to {command.out}")
