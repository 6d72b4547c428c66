"""Files that a kill or a full disk does not halve, and what comes from outside: code by name, JSON objects, PyTorch files.

numpy and torch are imported where they are needed.
"""

import contextlib
import errno
import hashlib
import importlib
import json
import lzma
import os
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vergence.utils.checks import expect, shortened, shown

__all__ = ["DAMAGE", "append_lines", "as_path", "explained", "is_registered", "load_outside", "locked", "read_object"]
__all__ += ["read_pytorch", "register_outside", "remove_leftovers", "replacing", "require_apart", "require_parent"]
__all__ += ["require_writable", "sha256"]

HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
TEMPORARY = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)\.parts?")
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # of locks
MAX_BYTES = 64 << 20  # of a JSON file: more is refused before it is parsed
# What numpy and zipfile raise for files that are damaged, encrypted or too large, and torch for damaged ones.
DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError)
DAMAGE += (MemoryError, OverflowError, NotImplementedError, RuntimeError)
DAMAGE += (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)
OF_TORCH = (EOFError, RuntimeError, TypeError, AttributeError, LookupError, AssertionError, ArithmeticError, struct.error)


# Paths


def as_path(value: Any, what: str) -> Path:
    """Returns a path that a person gave, with the home folder in the place of ``~``.

    Anything else, or the home folder of an unknown user, is a ValueError that calls the path ``what``.

    Example:
        >>> as_path("runs/first", "init").parts
        ('runs', 'first')
    """
    try:
        return Path(value).expanduser()
    except TypeError:
        raise ValueError(f"expected a path for {what}, found {shown(value)}; give it as text") from None
    except RuntimeError:
        raise ValueError(f"expected a path for {what}, found {shown(value)} of an unknown user; write the path out") from None


def require_parent(path: Path) -> None:
    """Raises a ValueError unless the folder exists that ``path`` is to be written in."""
    expect(path.parent.is_dir(), f"the folder {path.parent} to write {path.name} in", "no folder")


def require_writable(path: Path) -> None:
    """Raises a ValueError unless ``path`` is a folder, or can become one, that can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}; choose another `out`") from None


def require_apart(
    out: Path,
    read: Iterable[Any],
    *,
    inside: bool = False,
    around: bool = False,
    what: str = "an `out` apart from what is read",
    advice: str = "choose another `out`",
) -> None:
    """Raises a ValueError if a file or folder to write is one that is read, or, if asked, is within it or holds it.

    What is no path, or is not there, is no input. ``what`` is expected, ``advice`` says what to do.
    """
    for source in (Path(source).expanduser() for source in read if isinstance(source, str | os.PathLike)):
        a, b = out.resolve(), source.resolve()
        same = a == b or (out.exists() and source.exists() and out.samefile(source))
        meet = source.exists() and (same or (inside and b in a.parents) or (around and a in b.parents))
        expect(not meet, what, f"{out} and {source}", advice)


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal; the file is read in parts."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


# Writing


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yields a temporary path next to ``path``; on success it takes ``path``'s place in one step.

    With ``durable`` it is flushed to the disk first, so that not even a power cut leaves half a file. On an error or SIGTERM
    ``path`` is untouched and the temporary file is removed; one that a killed process left is removed by the next call.
    """
    remove_leftovers(path.parent, f".{path.name}.")
    temporary = path.with_name(f".{path.name}.{HOST}.{os.getpid()}.part")
    with exit_on_sigterm():
        try:
            yield temporary
            if durable:
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            if error.filename != str(temporary):
                raise
            raise OSError(error.errno, error.strerror, str(path)) from None  # by the name that the caller knows
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path, advice: str) -> Iterator[None]:
    """Turns what stops the writing of a file, such as a full disk, into one line: where, why, and what to do.

    Example:
        >>> with explained(Path("a.npz"), "free space and repeat the command"):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        ValueError: cannot write a.npz: No space left on device; free space and repeat the command
    """
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}; {advice}") from None


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Adds lines to the end of a file, all or none; what a kill left of a line is removed. Calls wait for each other."""
    from filelock import FileLock

    rest = memoryview("".join(lines).encode())
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=60)
    with explained(path, "free space and repeat the command"), lock, exit_on_sigterm(), path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        while end and (file.seek(end - 1), file.read(1))[1] != b"\n":
            end -= 1
        file.truncate(end)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(end)
            raise


def remove_leftovers(folder: Path, prefix: str = ".") -> None:
    """Removes the temporary files that dead processes of this machine left in a folder; ``.NAME.`` begins those of one output."""
    for path in folder.iterdir() if folder.is_dir() else ():
        match = TEMPORARY.fullmatch(path.name) if path.name.startswith(prefix) else None
        if match is not None and match["host"] == HOST and not _is_alive(int(match["pid"])):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        with contextlib.suppress(PermissionError):  # it belongs to someone else
            os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the stack, so that temporary files are removed, unless the program handles the signal itself."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """Holds a lock, the hidden file next to ``file``, for as long as the context lasts.

    ``file`` holds the process's number, its host and the time, for the error of the next process, which calls it ``what``. Both
    are removed on release; what a killed process left behind is taken over. On a file system without locks a line on stderr says
    so.
    """
    from filelock import FileLock, Timeout

    hidden = file.with_name(f".{file.name}")
    lock = FileLock(hidden)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = "another process"
        with contextlib.suppress(OSError):  # it may end in between
            holder = file.read_text(encoding="utf-8")[:200].strip() or holder
        raise ValueError(f"{what} is in use by {holder}: wait until it ends, stop it, or choose another folder") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        reason = f"the file system does not support locks ({error.strerror})"
        print(f"warning: cannot know whether another process writes to {file.parent}: {reason}", file=sys.stderr)
    try:
        with contextlib.suppress(OSError):  # a full disk holds no words, but the lock
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
            file.write_text(holder, encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            file.unlink(missing_ok=True)
            hidden.unlink(missing_ok=True)
        lock.release()


# What comes from outside


_given: dict[str, Any] = {}  # code that the program itself gave, by the name that a run's description has for it


def register_outside(value: Any, name: str | None = None) -> str:
    """Keeps code that the program gives, so that `load_outside` finds it and imports nothing; returns its name.

    A class or a function is named ``module:Name``; the name of an object ends with a digest of its text. Several have theirs,
    joined by ``+``.

    Example:
        >>> register_outside(dict), is_registered("builtins:dict"), load_outside("objective", "builtins:dict", "")
        ('builtins:dict', True, <class 'dict'>)
    """
    if name is None and isinstance(value, tuple | list):
        name = "+".join(map(register_outside, value))
    elif name is None:
        kind = value if hasattr(value, "__qualname__") else type(value)
        name = f"{kind.__module__}:{kind.__qualname__}"
        name += "" if kind is value else f"#{hashlib.blake2b(repr(value).encode(), digest_size=4).hexdigest()}"
    _given[name] = value
    return name


def is_registered(name: str) -> bool:
    """Returns whether the program gave the code of a name."""
    return name in _given


def load_outside(what: str, name: str, expected: str) -> Any:
    """Returns the object of a name ``package.module:attribute``, or what the program gave under it.

    Importing runs the module, so the name has to be trusted. Where there is none, the error calls it ``what``, for instance an
    objective, and shows the ``expected`` form of the name.

    Example:
        >>> load_outside("encoder", "math:sqrt", "package.module:factory")(4)
        2.0
    """
    if name in _given:
        return _given[name]
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        # the module that is named is missing, not one that it imports
        itself = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        advice = ": install the package, or put its folder on PYTHONPATH" if itself else ""
        raise ValueError(f"cannot import {what} '{name}': {error}; expected '{expected}'{advice}") from None


def read_object(file: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds; a file that is too large, or holds something else, is a ValueError.

    Whole numbers that no counter holds become floats, which counts are not.
    """
    size = file.stat().st_size
    expect(size <= MAX_BYTES, f"at most {MAX_BYTES:,} bytes", f"{size:,}")
    try:
        content = json.loads(
            file.read_text(encoding="utf-8"), parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits)
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    expect(isinstance(content, dict), "an object", type(content).__name__)
    return dict(content)


def read_pytorch(file: Path) -> Any:
    """Returns the tensors, numbers and text of a PyTorch file, on the CPU; runs no code of the file's.

    Raises:
        pickle.UnpicklingError: It holds something else, which is not loaded. The message tells how to run the code.
        ValueError: It is damaged; the message is one line.
        OSError: It cannot be read.
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that torch did not write
            return torch.load(file, map_location="cpu", weights_only=True)
    except OF_TORCH as error:
        raise ValueError(shortened(error)) from None
