"""The options of ``vergence sample``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

__all__ = ["Sample", "sample"]


@dataclass(kw_only=True)
class Sample:
    """Draw pairs of embeddings, or answers to contexts, from a run's density; writes them, or pictures of them."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder; its objective needs a conditional density, as gje has."""
    out: Path
    """File to write: .npz for embeddings, .png for a grid of pictures."""
    n: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 64, or 8 a context)")] = None
    """Draws."""
    context: Annotated[str | None, arg(metavar="IMAGES", help_behavior_hint="")] = None
    """Draw answers to the first 8 of these items, a row each: anything that train takes as data."""
    decoder: bool = False
    """Paint pictures with a small decoder, trained once and kept in the run folder; else show the nearest real ones."""
    decoder_epochs: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 30)")] = None
    """Passes of the decoder's training; another number trains anew. Implies --decoder."""
    seed: int = 0
    """Seed of the draws."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""


def sample(command: Sample) -> None:
    """Runs ``vergence sample``."""
    from vergence.runs.pictures import write_samples
    from vergence.runs.run import load

    drawn = write_samples(
        load(command.run, device=command.device),
        command.out,
        n=command.n,
        context=command.context,
        decoder=command.decoder,
        epochs=command.decoder_epochs,
        seed=command.seed,
    )
    print(f"wrote {drawn} draws to {command.out}")
