"""Tries at the start of a server whatever checkpoints and the log need from the file system.

Some network file systems and FUSE mounts lack symbolic links, or cannot sync folders. Without this, a run would begin
and fail at its first checkpoint.
"""

from pathlib import Path

from gem_server.durability.files import Files, is_full
from gem_server.errors import StartupError

FOLDER = ".probe"
_CONTENT = b"gemps"


def probe(files: Files, data_dir: Path, *, allocates: bool) -> None:
    """Make, sync, rename, link and delete a few bytes in `data_dir`; `allocates`: reserve room for a file, too.

    A full disk is no reason not to start: the server waits until there is room. Raises StartupError, with the fix.
    """
    place = data_dir / FOLDER
    files.remove(place)
    step = "make folders"
    try:
        files.make_directory(place / "unfinished")
        step = "create and write files"
        file = place / "unfinished" / "file"
        descriptor = files.create(file)
        try:
            files.write(descriptor, [memoryview(_CONTENT)], 0)
            if allocates:
                step = "reserve room for files"
                files.allocate(descriptor, 2 * len(_CONTENT))
            step = "sync files"
            files.sync_data(descriptor)
        finally:
            files.close(descriptor)
        files.sync(file)
        step = "sync folders"
        files.sync(place / "unfinished")
        step = "rename folders"
        files.rename(place / "unfinished", place / "whole")
        step = "make symbolic links"
        files.link(place / "fresh", Path("whole"))
        files.link(place / "latest", Path("nothing"))
        step = "replace a symbolic link by another one"
        files.rename(place / "fresh", place / "latest")
        step = "follow symbolic links"
        if not (place / "latest" / "file").read_bytes().startswith(_CONTENT):
            raise OSError(0, "they do not read as written")
    except OSError as error:
        if not is_full(error):
            raise StartupError(
                f"the file system of --data-dir {data_dir} cannot {step} ({error.strerror}), which checkpoints need: "
                "choose a directory on a local disk, and copy checkpoints elsewhere from there"
            ) from error
    finally:
        files.remove(place)
