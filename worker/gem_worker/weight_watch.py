"""Warns about changes that a script makes to the parameters itself, between two steps.

The server holds the parameters. A worker commits gradients, which do not carry such a change, and each reply replaces
the worker's parameters, so the change would be lost without a word. (It is not added to the delta: the server would
scale it by pi and accumulate it in the moment.) Commits of `optimizer=` are movements, which do carry it.

Two things notice a change. Each parameter has a counter of in-place operations, which replies do not increase, because
they are written through the flat buffers. What is written through `.data` does not increase the counter either; for
that a sample of values is compared every few steps. Either is only a suspicion: an averaged model that is swapped in
for an evaluation is swapped out again, and cuDNN moves weights without changing them. So the suspected tensors are
compared with what was installed before anything is said.
"""

import logging
from bisect import bisect_right
from operator import attrgetter

import torch
from torch import Tensor, nn

from gem_worker.flat_model import FlatModel, TrainedTensor, row_major
from gem_worker.transfer import Transfer

_log = logging.getLogger(__name__)

# Taking and comparing a sample costs about 15 us, and a step of 2 048 parameters 250 us.
_STEPS_BETWEEN_SAMPLES = 16
# Scripts initialise, load weights and begin to clamp early, so each of the first steps is sampled.
_FIRST_STEPS = 4
_SAMPLE_ELEMENTS = 256
# A prime, so that it shares no factor with most strides, and consecutive samples are far apart.
_SAMPLE_JUMP = 7919
# After the n-th false alarm, 2**n - 1 alarms are ignored, with n up to this: a comparison passes over the model.
_MOST_DOUBLINGS = 8
# A weight that was perturbed and restored by subtraction (sharpness-aware minimisation) differs by rounding errors.
_ROUNDINGS = 2

KEPT_OPTIMIZER = "keep the optimizer, whose commits carry such changes: ParameterServer(..., optimizer=...)"
NAMED_RULE = (
    "have the server name its rule (--rule adaptive-staleness): commits are then what the optimizer itself and the "
    "script have moved"
)

_version_of = attrgetter("_version")


class WeightWatch:
    """Watches the trained parameters of `flat`. Not thread-safe.

    Each step calls `compare` before it writes to the parameters, and `remember` after that.
    """

    def __init__(self, flat: FlatModel, transfer: Transfer, way_out: str = KEPT_OPTIMIZER) -> None:
        """Begin at the parameters that `transfer` has installed; `way_out`: how commits carry the script's changes."""
        self._way_out = way_out
        self._flat = flat
        self._transfer = transfer
        self._tensors = [one.tensor for one in flat.trained]
        self._starts = [one.start for one in flat.trained]
        self._versions = list(map(_version_of, self._tensors))
        self._has_warned = False
        # The numbers of embeddings with max_norm, once one of them was warned of.
        self._shortened: frozenset[int] = frozenset()
        self._false_alarms = self._ignored_alarms = 0
        self._steps = self._samples = 0
        self._sample: tuple[int, slice, Tensor] | None = None
        # What the parameters are after a local step, for one comparison: no payload has those.
        self._copy: Tensor | None = None
        self._needs_copy = False
        self._sample_values()

    def compare(self, *, is_installed: bool, is_explained: bool) -> None:
        """Warn if the script has changed a parameter since `remember`.

        Args:
            is_installed: whether the parameters were those of the last payload then; local steps move them.
            is_explained: whether an optimizer changed them, about which `OptimizerWatch` warns.
        """
        if self._has_warned:
            return
        suspects = self._compare_sample()
        if self._flat.moved:
            suspects.update(self._flat.moved)
            self._flat.moved.clear()
        versions = list(map(_version_of, self._tensors))
        if versions != self._versions:
            pairs = zip(versions, self._versions, strict=True)
            suspects.update(number for number, (now, before) in enumerate(pairs) if now != before)
            self._versions = versions
        copy, self._copy = self._copy, None
        suspects -= self._shortened
        if suspects and not is_explained:
            self._compare_whole(suspects, copy, is_installed=is_installed)

    def remember(self) -> None:
        """Remember what is compared in the next step."""
        if self._has_warned:
            return
        self._steps += 1
        if self._steps < _FIRST_STEPS or self._steps % _STEPS_BETWEEN_SAMPLES == 0:
            self._sample_values()
        if self._needs_copy:
            self._needs_copy = False
            self._copy = torch.empty(self._flat.layout.parameter_count, device=self._flat.device)
            self._flat.read_parameters(self._copy)

    @torch.no_grad()
    def _compare_whole(self, suspects: set[int], copy: Tensor | None, *, is_installed: bool) -> None:
        if self._ignored_alarms:
            self._ignored_alarms -= 1
            return
        if not is_installed and copy is None:
            self._needs_copy = True  # and so another change is needed
            return
        expected = self._transfer.installed_parameters() if is_installed or copy is None else copy
        trained = self._flat.trained
        changed = [number for number in sorted(suspects) if _is_different(trained[number], expected)]
        if changed:
            self._warn(changed)
        else:
            self._false_alarms = min(self._false_alarms + 1, _MOST_DOUBLINGS)
            self._ignored_alarms = 2**self._false_alarms - 1

    def _warn(self, changed: list[int]) -> None:
        shortened = self._embeddings_with_max_norm()
        names = [self._flat.trained[number].name for number in changed if number not in shortened]
        if not names:
            self._shortened = shortened
            _log.warning(
                "%s: max_norm shortens rows of this embedding in each forward, but only in this worker: the server's "
                "rows keep their length, and its reply replaces these. Leave max_norm out and shorten the vectors that "
                "forward looks up, or %s",
                self._flat.trained[changed[0]].name,
                self._way_out,
            )
            return
        self._has_warned = True
        when, constraint = (
            (
                "between two steps",
                "Compute a constraint in forward, with torch.nn.utils.parametrize or from a clamped copy",
            )
            if self._steps
            else ("after the model joined", "Initialise and load weights before ParameterServer(...)")
        )
        _log.warning(
            "%s %s changed by the script %s. This has no effect on the run: the server holds the parameters, and its "
            "reply replaces these. %s; or %s",
            names[0],
            "was" if len(names) == 1 else f"and {len(names) - 1} other tensors were",
            when,
            constraint,
            self._way_out,
        )

    def _embeddings_with_max_norm(self) -> frozenset[int]:
        """The numbers of the parameters to which forward itself writes."""
        found = {
            id(entry.tensor)
            for entry in self._flat.tensors
            for module, _ in entry.owners
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
        }
        return frozenset(number for number, tensor in enumerate(self._tensors) if id(tensor) in found)

    def _sample_values(self) -> None:
        """Copy elements of a whole group of parameters or, every other time, of one tensor, which may be small."""
        turn, is_of_one = divmod(self._samples, 2)
        self._samples += 1
        groups, trained = self._flat.groups, self._flat.trained
        one, group = trained[turn % len(trained)], groups[turn % len(groups)]
        start, stop = (one.start, one.start + one.tensor.numel()) if is_of_one else (group.start, group.stop)
        if start == stop:
            return
        number = next(number for number, group in enumerate(groups) if start < group.stop)
        stride = -(-(stop - start) // _SAMPLE_ELEMENTS)
        first = start - groups[number].start
        place = slice(first + turn * _SAMPLE_JUMP % stride, first + stop - start, stride)
        self._sample = number, place, groups[number].parameters[place].clone()

    def _compare_sample(self) -> set[int]:
        """Return the numbers of tensors that have another value at a place of the sample."""
        sample, self._sample = self._sample, None
        if sample is None:
            return set()
        number, place, before = sample
        group = self._flat.groups[number]
        now = group.parameters[place]
        if torch.equal(now, before):
            return set()
        changed = now.ne(before).nonzero().view(-1).tolist()
        return {self._number_at(group.start + place.start + place.step * index) for index in changed}

    def _number_at(self, element: int) -> int:
        return bisect_right(self._starts, element) - 1


def _is_different(one: TrainedTensor, expected: Tensor) -> bool:
    """Whether a tensor is not that of `expected` (float32, in layout order), apart from rounding errors."""
    values = one.values
    if not values.numel():
        return False
    installed = row_major(one, expected).to(values.device, values.dtype)
    if torch.equal(values, installed):
        return False
    precision = max(torch.finfo(values.dtype).eps, torch.finfo(torch.float32).eps)
    bound = _ROUNDINGS * precision * installed.float().abs().amax()
    return not bool((values.float() - installed.float()).abs().le(bound).all())  # NaN is a difference
