"""An advisory lock on a file, which the system releases when its process ends, however it ends."""

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["locked"]

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextlib.contextmanager
def locked(file: Path, what: str) -> Iterator[bool]:
    """Holds a lock for as long as the context lasts; yields whether it is one that other processes see.

    The file holds the process's number, its host and the time, for the error of the next process. It is removed on release;
    what a killed process left behind is taken over. On a file system or platform without locks a line on stderr says so.

    Args:
        file: Lock file; its folder exists.
        what: What is locked, for the error.

    Raises:
        ValueError: Another process holds the lock.
        OSError: The file cannot be opened.
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
