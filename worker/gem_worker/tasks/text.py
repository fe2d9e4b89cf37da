"""The next byte of a text."""

import numpy as np
import torch
from numpy.typing import NDArray

from gem_worker.tasks.options import TaskOptions
from gem_worker.tasks.samples import Batch, Samples, Task
from gem_worker.text_corpus import VOCABULARY, count_characters, read_corpus


class TextWindows(Samples):
    """Windows, numbered by their first byte.

    A batch has `context` bytes (int64 [batch, context]), and as labels the byte after each of them. An epoch is one
    pass over the text, cut at a random offset.
    """

    def __init__(self, text: NDArray[np.uint8], context: int) -> None:
        self._text = text
        self._context = context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    @property
    def is_slow(self) -> bool:
        """Always False."""
        return False

    def numbers(self) -> NDArray[np.int64]:
        """Disjoint windows from the beginning."""
        return self._context * np.arange(len(self), dtype=np.int64)

    def shuffled(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """From a random offset; the last may overlap."""
        starts = self.numbers() + generator.integers(self._context)
        return generator.permutation(np.minimum(starts, len(self._text) - self._context - 1))

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """See `Samples.batch`."""
        windows = self._text[numbers[:, np.newaxis] + np.arange(self._context + 1)]
        values = torch.from_numpy(windows.astype(np.int64))
        return values[:, :-1].contiguous(), values[:, 1:].contiguous()

    def predictions_per_character(self) -> float:
        """A character's bytes, averaged over the labels of `numbers()`."""
        labels = self._text[1 : len(self) * self._context + 1]
        return len(labels) / max(1, count_characters(labels))


def load_text(options: TaskOptions) -> Task:
    """Load the task. Raises TaskError if the text does not serve (`read_corpus`)."""
    corpus = read_corpus(options.text, options.context)
    train, test = (TextWindows(part, options.context) for part in (corpus.train, corpus.held_out))
    return Task(
        "text",
        (options.context,),
        VOCABULARY,
        train,
        test,
        "transformer",
        sizes=options.sizes,
        predictions_per_character=test.predictions_per_character(),
    )
