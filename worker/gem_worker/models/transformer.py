"""Decoder-only transformer."""

import torch
from torch import Tensor, nn

from gem_worker.model_sizes import TransformerSizes

# Of the embeddings, as in GPT-2.
_DEVIATION = 0.02


class Transformer(nn.Module):
    """Pre-norm blocks, causal attention, learned positions, no dropout.

    `heads`, without elements, gives the layout all sizes: workers of others are refused.
    """

    def __init__(self, context: int, classes: int, sizes: TransformerSizes) -> None:
        super().__init__()
        width = sizes.width
        self.embedding = nn.Embedding(classes, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, sizes.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, classes, bias=False)
        for embedding in (self.embedding, self.positions):
            nn.init.normal_(embedding.weight, std=_DEVIATION)
        self.register_buffer("heads", torch.empty(sizes.heads, 0))
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map int64 [batch, positions] to logits [batch, classes, positions]; at most `context` positions."""
        count = inputs.shape[1]
        hidden = self.embedding(inputs) + self.positions.weight[:count]
        mask = self.get_buffer("mask")[:count, :count]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.output(self.norm(hidden))
        return logits.transpose(1, 2)
