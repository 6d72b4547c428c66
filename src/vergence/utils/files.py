"""Files that a kill or a full disk does not halve: written in one step, locked while a process works beside them."""

import contextlib
import errno
import hashlib
import lzma
import os
import re
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vergence.utils.checks import shown

__all__ = ["DAMAGE", "as_path", "exit_on_sigterm", "explained", "locked", "remove_leftovers", "replacing", "require_parent"]
__all__ += ["sha256"]

HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
TEMPORARY = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)\.parts?")
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # of locks
# What numpy and zipfile raise for files that are damaged, encrypted or too large.
DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError)
DAMAGE += (MemoryError, OverflowError, NotImplementedError, RuntimeError)
DAMAGE += (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)


def as_path(value: Any, what: str) -> Path:
    """Returns a path that a person gave, with the home folder in the place of ``~``.

    Anything else, or the home folder of an unknown user, is a ValueError that calls the path ``what``.

    Example:
        >>> as_path("runs/first", "init").parts
        ('runs', 'first')
        >>> as_path(-1, "init")
        Traceback (most recent call last):
        ValueError: expected a path for init, found -1: give it as text
    """
    try:
        return Path(value).expanduser()
    except TypeError:
        raise ValueError(f"expected a path for {what}, found {shown(value)}: give it as text") from None
    except RuntimeError:
        raise ValueError(f"expected a path for {what}, found {shown(value)} of an unknown user: write the path out") from None


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it takes ``path``'s place in one step.

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


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal; the file is read in parts."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def remove_leftovers(folder: Path, prefix: str = ".") -> None:
    """Removes the temporary files that dead processes of this machine left in a folder; ``.NAME.`` begins those of one output."""
    for path in folder.iterdir() if folder.is_dir() else ():
        match = TEMPORARY.fullmatch(path.name) if path.name.startswith(prefix) else None
        if match is not None and match["host"] == HOST and not _is_alive(int(match["pid"])):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to someone else
        return True
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


def require_parent(path: Path) -> None:
    """Raises a ValueError unless the folder exists that ``path`` is to be written in."""
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")


@contextlib.contextmanager
def locked(file: Path, what: str) -> Iterator[bool]:
    """Holds a lock for as long as the context lasts; yields whether it is one that other processes see.

    The file holds the process's number, its host and the time, for the error of the next process, which calls it ``what``. It is
    removed on release; what a killed process left behind is taken over. On a file system or platform without locks a line on
    stderr says so.
    """
    opened = _acquire(file, what)
    try:
        yield opened is not None
    finally:
        if opened is not None:
            with contextlib.suppress(OSError):  # the folder may be gone
                file.unlink()
            opened.close()


def _acquire(file: Path, what: str) -> IO[str] | None:
    """Returns the locked file, or None where locks are not supported."""
    while True:
        opened = file.open("a+", encoding="utf-8")
        try:
            if not _lock(opened, file, what):
                opened.close()
                return None
            if not _is_current(opened, file):  # its last holder removed it in between
                opened.close()
                continue
        except BaseException:
            opened.close()
            raise
        opened.truncate(0)
        holder = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        with contextlib.suppress(OSError):  # a full disk holds no words, but the lock
            os.write(opened.fileno(), holder.encode())
        return opened


def _lock(opened: IO[str], file: Path, what: str) -> bool:
    """Locks an open file; returns False where that is not supported."""
    try:
        import fcntl
    except ImportError:
        _warn(file, "this platform has no advisory locks")
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.seek(0)
        holder = opened.read(200).strip() or "another process"
        raise ValueError(f"{what} is in use by {holder}: wait until it ends, stop it, or choose another folder") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _warn(file, f"the file system does not support locks ({error.strerror})")
        return False
    return True


def _is_current(opened: IO[str], file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened.fileno()), file.stat())
    except FileNotFoundError:
        return False


def _warn(file: Path, reason: str) -> None:
    print(f"warning: cannot know whether another process writes to {file.parent}: {reason}", file=sys.stderr)
