"""Densities on pairs of embeddings, each with the way it is fitted: one paper, one file. The imports here are the register."""

import inspect
from typing import TYPE_CHECKING

from vergence.learn import classes
from vergence.utils.checks import require_choice, shown
from vergence.utils.files import load_outside
from vergence.utils.lazy import on_request

if TYPE_CHECKING:
    from vergence.learn.objectives.barlow_twins import BarlowTwins
    from vergence.learn.objectives.byol import BYOL
    from vergence.learn.objectives.contrastive import Contrastive
    from vergence.learn.objectives.core import ConditionalObjective, DensityObjective, Objective, PredictiveObjective
    from vergence.learn.objectives.gje import GJE
    from vergence.learn.objectives.gmje import GMJE
    from vergence.learn.objectives.gmje_em import GMJEEM
    from vergence.learn.objectives.gmje_gng import GMJEGNG
    from vergence.learn.objectives.gmje_mdn import GMJEMDN
    from vergence.learn.objectives.gmje_smc import GMJESMC
    from vergence.learn.objectives.jepa import JEPA
    from vergence.learn.objectives.lejepa import LeJEPA
    from vergence.learn.objectives.moco import MoCo
    from vergence.learn.objectives.simsiam import SimSiam
    from vergence.learn.objectives.swav import SwAV
    from vergence.learn.objectives.vi_simsiam import VISimSiam
    from vergence.learn.objectives.vicreg import VICReg
    from vergence.learn.objectives.vje import VJE
    from vergence.learn.objectives.vssl import VSSL
else:
    __getattr__, __dir__ = on_request(__name__)

__all__ = ["BYOL", "GJE", "GMJE", "GMJEEM", "GMJEGNG", "GMJEMDN", "GMJESMC", "JEPA", "VJE", "VSSL", "BarlowTwins"]
__all__ += ["ConditionalObjective", "Contrastive", "DensityObjective", "LeJEPA", "MoCo", "Objective", "PredictiveObjective"]
__all__ += ["SimSiam", "SwAV", "VICReg", "VISimSiam", "get", "names"]

HINT = "methods on images are chosen with `method`, an objective of your own is named 'package.module:Class'"
KNOWN_AS = {"simclr": "SimCLR is 'contrastive'", "sigreg": "SIGReg is the loss of 'lejepa'"}  # by other names of what is here


def names() -> list[str]:
    """Returns the names of the objectives in this folder, those of their files, sorted."""
    return sorted(classes(__name__))


def require(name: str) -> None:
    """Raises a ValueError unless a name is one of `names`, or ``package.module:Class``; loads neither class nor torch."""
    if ":" not in name:
        require_choice("an objective", name, names(), KNOWN_AS.get(name.lower(), HINT))


def get(name: str) -> "type[Objective]":
    """Returns an objective's class by its file's name, or by ``package.module:Class`` for a class outside this folder.

    A class outside is imported, which runs its module: the name has to come from somebody who is trusted.

    Args:
        name: One of `names`, or ``package.module:Class``.

    Example:
        >>> from vergence.learn import objectives
        >>> objectives.get("vje")(8).dim
        8
    """
    from vergence.learn.objectives.core import Objective

    require(name)
    inside = classes(__name__).get(name)
    cls = load_outside("objective", f"{__name__}.{name}:{inside}" if inside else name, "package.module:Class")
    if not (inspect.isclass(cls) and issubclass(cls, Objective)):
        raise ValueError(f"expected a subclass of vergence.learn.objectives.Objective, found {shown(name)}; subclass it")
    return cls
