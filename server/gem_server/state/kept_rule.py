"""The state of the run that a rule keeps over restarts of the server."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_core import UpdateRule
from gem_core.aligned import aligned_copy


class KeptRule(NamedTuple):
    """Vectors (float32[parameter_count]), and a record: JSON values that identify the rule and contain its scalars."""

    record: dict[str, Any]
    vectors: tuple[NDArray[np.float32], ...] = ()


def rule_record(rule: UpdateRule) -> dict[str, Any]:
    """Return the record of a rule."""
    return {"name": rule.name, "scalars": rule.kept_scalars}


def kept_vectors(rule: UpdateRule, parameters: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
    """Return the rule's vectors, not copied."""
    return rule.vectors_of_run(parameters) if rule.kept_vectors else ()


def copy_rule(rule: UpdateRule, parameters: NDArray[np.float32]) -> KeptRule:
    """Return a copy of the rule's state, which later commits do not change."""
    return KeptRule(rule_record(rule), tuple(map(aligned_copy, kept_vectors(rule, parameters))))


def restore_rule(rule: UpdateRule, kept: KeptRule) -> bool:
    """Restore the rule; return False if another rule, or an older version of gemps, kept this.

    Raises KeyError, TypeError or ValueError.
    """
    record = kept.record
    if not record or record["name"] != rule.name:
        return False
    rule.restore_run(kept.vectors, record["scalars"])
    return True


def has_begun(rule: UpdateRule, parameters: NDArray[np.float32]) -> bool:
    """Whether the rule has state that a new one does not have."""
    return rule.kept_scalars != dict(rule.first_scalars if rule.keeps_run else {}) or any(
        vector.any() for vector in kept_vectors(rule, parameters)
    )
