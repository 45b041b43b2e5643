"""Files that appear whole or not at all, and what several of them are known by.

Whatever writes a file of its own goes through here. What the system refuses stays an ``OSError``, which names the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

# What the system says about a path that cannot be one, or that is something else; anything else is about the disk.
_WRONG_PATH = {
    errno.EEXIST,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENODEV,
    errno.ENOENT,
    errno.ENOTDIR,
}


def is_wrong_path(error: OSError) -> bool:
    """Whether the path is at fault, and not the disk that it is on (full, read-only, broken, somebody else's)."""
    return error.errno in _WRONG_PATH


def write_file(path: str | Path, content: str | bytes | Iterable[str]) -> None:
    """Writes a file under another name in the same folder, then moves it into place.

    Whoever reads it sees the old content or the new one. A link stays a link, and what is written to is its target.

    Args:
        path: The file. Its folder must exist.
        content: Bytes, or text, which is written as UTF-8; or pieces of text, of which one at a time is in memory.

    Raises:
        OSError: It cannot be written, or is not a regular file; what was there is untouched and nothing else is left.
        UnicodeEncodeError: The text is not valid Unicode.
    """
    pieces = [content] if isinstance(content, (str, bytes)) else content
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():  # moving a file onto a device would replace the device
            raise FileExistsError(errno.EEXIST, "it is not a regular file")
        try:
            with part.open("wb") as file:
                for piece in pieces:
                    file.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # not the temporary name; a full disk names no file at all
        raise


def joined(digests: Iterable[str]) -> str:
    """Returns one digest for those of files in any order: of one file its own, of none an empty text."""
    several = sorted(digests)
    return hashlib.sha256("".join(several).encode()).hexdigest() if len(several) > 1 else "".join(several)
