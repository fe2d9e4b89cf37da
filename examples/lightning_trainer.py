"""A Lightning Trainer as a worker. Without GEMPS_SERVER it trains alone.

python examples/lightning_trainer.py
gemps train --workers 2 --commits 1000 -- python examples/lightning_trainer.py
"""

import logging
import os
from pydoc_data.topics import topics

import lightning
import torch
from gemps.integrations.lightning import GempsCallback
from torch import Tensor, nn
from torch.utils.data import DataLoader

index = int(os.environ.get("GEMPS_WORKER_INDEX", 0))
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

text = torch.frombuffer(bytearray("".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()
rows = text.unfold(0, 9, 1)  # eight characters, and the next one
train, held_out = rows[: len(rows) // 10 * 9], rows[len(rows) // 10 * 9 :: 20]


class CharacterModel(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(128, 16), nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)
        )

    def training_step(self, batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[:, :-1]), batch[:, -1])

    def validation_step(self, batch: Tensor) -> None:
        self.log("held_out_loss", self.training_step(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.003)


torch.manual_seed(index)  # each worker its own order of the samples
trainer = lightning.Trainer(
    max_steps=1000,  # a worker ends earlier, with the server's budget
    accelerator="cpu",
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[GempsCallback()] if "GEMPS_SERVER" in os.environ else [],
)
model = CharacterModel()
trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True))
(measured,) = trainer.validate(model, DataLoader(held_out, batch_size=1000), verbose=False)
print(f"held-out loss {measured['held_out_loss']:.4f}")
