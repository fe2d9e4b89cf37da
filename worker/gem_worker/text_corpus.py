"""The text, with a fixed held-out part. Imports no torch."""

import hashlib
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_core.regular_files import read_bytes
from gem_worker.errors import TaskError

# Every byte is a token: all texts have one vocabulary.
VOCABULARY = 256

_HELD_OUT_SHARE = 10
# A CPU evaluates it within a minute.
_MAX_HELD_OUT = 2**20


@dataclass(frozen=True, slots=True)
class TextCorpus:
    """UTF-8 text.

    Attributes:
        train: uint8, the rest.
        held_out: uint8, the last tenth, at most 1 MiB; begins with a whole character.
        sha256: of all its bytes.
    """

    source: str
    train: NDArray[np.uint8]
    held_out: NDArray[np.uint8]
    sha256: str

    def facts(self) -> dict[str, Any]:
        """Identify the text, as JSON values."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "train_bytes": len(self.train),
            "held_out_bytes": len(self.held_out),
        }


def read_corpus(text: str, context: int) -> TextCorpus:
    """Read a file, all files in a folder, or by default ("") `pydoc_data.topics`.

    Files are in path order, without hidden ones. Raises TaskError for a text that is missing, not UTF-8, or too short
    for `context`.
    """
    source = text or f"pydoc_data.topics of Python {platform.python_version()}"
    data = b"".join(_read_files(Path(text)) if text else _read_topics())
    if not data:
        raise TaskError(f"--text {source} holds no text; name a file with UTF-8 text, or a folder with such files")
    split = len(data) - min(len(data) // _HELD_OUT_SHARE, _MAX_HELD_OUT)
    while split < len(data) and _continues_character(data[split]):
        split += 1
    values = np.frombuffer(data, np.uint8)
    corpus = TextCorpus(source, values[:split], values[split:], hashlib.sha256(data).hexdigest())
    if len(corpus.held_out) <= context:
        raise TaskError(
            f"--context {context} needs more than {context} bytes of held-out text, and the last tenth of {source} has "
            f"{len(corpus.held_out)}; use a smaller --context or a longer --text"
        )
    return corpus


def count_characters(text: NDArray[np.uint8]) -> int:
    """The characters that begin in `text`."""
    return int(((text & 0xC0) != 0x80).sum())


def _continues_character(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _read_topics() -> Iterator[bytes]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise TaskError("this Python has no pydoc_data.topics; name another text with --text") from None
    for name in sorted(topics):
        yield f"{topics[name]}\n".encode()


def _read_files(path: Path) -> Iterator[bytes]:
    if not path.exists():
        raise TaskError(f"--text {path} does not exist; name a file with UTF-8 text, or a folder with such files")
    for file in [path] if path.is_file() else _files_in(path):
        try:
            data = read_bytes(file)
            data.decode()
        except OSError as error:
            raise TaskError(f"--text {file} cannot be read ({error.strerror}); name another text") from error
        except UnicodeDecodeError as error:
            raise TaskError(
                f"--text {file} is not UTF-8: byte 0x{data[error.start]:02x} at position {error.start}; convert it, or "
                "move it out of the folder"
            ) from None
        yield data


def _files_in(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.is_file())
    visible = ((file.relative_to(folder).parts, file) for file in files)
    return [file for parts, file in sorted(visible) if not any(part.startswith(".") for part in parts)]
