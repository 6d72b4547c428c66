"""``vergence serve``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils import terminal
from vergence.utils.checks import expect

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

BUSY = 64  # connections at a time; more are answered with 503
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(kw_only=True)
class Serve:
    """Serve decisions over HTTP: POST /scores, /vectors or /images; GET /health and /metrics.

    CALIBRATED is a run, a detector that Calibrated.save wrote, or a table with scores of normal items, for /scores only.
    """

    calibrated: Annotated[Positional[Path], arg(metavar="CALIBRATED")]
    """Run folder, .safetensors file, or a table, .npy or .npz file with calibration scores."""
    column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: score)")] = None
    """Column of the scores of a table."""
    fdr: Annotated[float, arg(help="False-discovery rate of the flags among the items of one request.")] = 0.1
    alarm: Annotated[float, arg(help="Largest p-value at which a single item raises an alarm.")] = 0.01
    fpr: Annotated[float | None, arg(metavar="RATE", help_behavior_hint="(default: alarms by --alarm)")] = None
    """Instead, raise an alarm for at most this share of normal items, with 95 % confidence."""
    host: Annotated[str, arg(help="Address to listen at; others need a proxy with a password.")] = "127.0.0.1"
    port: Annotated[int, arg(help="Port to listen at.")] = 8000
    items: Annotated[int, arg(help="Most items of a request.")] = 1000
    megabytes: Annotated[int, arg(help="Largest size of a request, in MB.")] = 16
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False


def serve(command: Serve) -> None:
    """Runs ``vergence serve``."""
    import socket

    try:
        import uvicorn

        from vergence.decide.service import Service
    except ModuleNotFoundError as error:
        raise ValueError(f"expected the package {error.name} to serve, found none; pip install 'vergence[serve]'") from None
    calibration, scorers = _opened(command)
    limits = {"items": command.items, "megabytes": command.megabytes}
    service = Service(calibration, scorers, fdr=command.fdr, alarm=command.alarm, fpr=command.fpr, **limits)
    expect(command.port < 1 << 16, "a --port below 65,536", command.port)
    family = socket.AF_INET6 if ":" in command.host else socket.AF_INET
    if command.host not in LOOPBACK:
        terminal.note(f"anyone who reaches {command.host} can send requests: use a proxy with a password and TLS")
    try:
        opened = socket.create_server((command.host, command.port), family=family)
    except OSError as error:
        raise ValueError(f"cannot listen at {command.host}:{command.port}: {error.strerror or error}; choose others") from None
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a client's delayed acknowledgment holds each answer back
    print(f"serving {', '.join(f'/{kind}' for kind in service.scorers)} at http://{command.host}:{command.port}", flush=True)
    settings = uvicorn.Config(service.app(), log_level="warning", limit_concurrency=BUSY, server_header=False)
    uvicorn.Server(settings).run(sockets=[opened])


def _opened(command: Serve) -> "tuple[np.ndarray, Mapping[str, Any]]":
    """Returns the calibration scores, and how posted items are scored."""
    from vergence.decide import Calibrated, service
    from vergence.decide.files import read_scores

    path = command.calibrated
    if path.suffix == ".safetensors":
        model = Calibrated.load(path)
        return model.calibration_, {"vectors": service.by_detector(model)}
    if not path.is_dir():
        return read_scores(path, command.column), {}
    from vergence.learn.runs.callables import Scorer
    from vergence.learn.runs.run import load

    run = load(path, device=command.device, trust_code=command.trust_code)
    calibration, about = run.detector().calibration, run.folder.metadata
    scorer = service.by_columns(Scorer(run, device=command.device), about.columns, about.item_shape())
    return calibration, {"images" if len(about.item_shape()) == 3 else "vectors": scorer}
