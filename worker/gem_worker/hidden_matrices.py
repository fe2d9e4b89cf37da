"""Which of a model's parameters are hidden matrices: those that map features to features.

Rows of embeddings and of an output head stand for tokens or classes, and their gradients are far from orthogonal: to
orthogonalise a classifier's head costs half of its quality (docs/rules.md).
"""

from collections.abc import Sequence

from gem_core.layout import TensorKind
from gem_worker.model_tensors import EMBEDDINGS, ModelTensor


def hidden_matrices(tensors: Sequence[ModelTensor]) -> tuple[int, ...]:
    """Their numbers among the PARAMETERs of `tensors`, which are in layout order.

    A matrix has two dimensions or more. Embeddings are none, and neither is the output head of a model with an
    embedding: that is the last matrix, unless an embedding is also another module's weight, and so the head.
    """
    trained = [one for one in tensors if one.spec.kind is TensorKind.PARAMETER]
    found = [
        number
        for number, one in enumerate(trained)
        if len(one.spec.shape) >= 2 and one.spec.elements and not one.spec.is_embedding
    ]
    embeddings = [one for one in trained if one.spec.is_embedding]
    if found and embeddings and not any(map(_is_head, embeddings)):
        found.pop()
    return tuple(found)


def has_trained_embedding(tensors: Sequence[ModelTensor]) -> bool:
    """Whether an embedding is among the PARAMETERs; one that is frozen, as below a LoRA adapter, does not count."""
    return any(one.spec.is_embedding and one.spec.kind is TensorKind.PARAMETER for one in tensors)


def _is_head(embedding: ModelTensor) -> bool:
    return any(not isinstance(module, EMBEDDINGS) for module, _ in embedding.owners)
