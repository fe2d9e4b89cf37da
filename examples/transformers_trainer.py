"""A transformers Trainer as a worker. Without GEMPS_SERVER it trains alone.

    python examples/transformers_trainer.py
    gemps train --workers 2 --rule downpour -- python examples/transformers_trainer.py

Started again, it resumes from its last checkpoint; a worker then gets the server's parameters.
"""

import os
from pydoc_data.topics import topics

import torch
from gemps.integrations.transformers import GempsCallback
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS = 1000  # of all workers
index, workers = int(os.environ.get("GEMPS_WORKER_INDEX", 0)), int(os.environ.get("GEMPS_WORKERS", 1))
folder = f"runs/transformers-{index}"

text = torch.frombuffer(bytearray("".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()
rows = text.unfold(0, 9, 1)  # eight characters, and the next one
split = len(rows) // 10 * 9


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"inputs": self.rows[at, :-1], "labels": self.rows[at, -1]}


class CharacterModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(128, 16), nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)
        )

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


torch.manual_seed(0)
trainer = Trainer(
    CharacterModel(),
    TrainingArguments(
        folder,
        max_steps=STEPS // workers,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=1000,
        prediction_loss_only=True,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        weight_decay=0.01,
        logging_steps=4,
        save_steps=50,
        save_total_limit=1,
        seed=index,  # each worker its own order of the samples
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=Rows(rows[:split]),
    eval_dataset=Rows(rows[split::20]),
    callbacks=[GempsCallback(every=4)] if "GEMPS_SERVER" in os.environ else [],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
print(f"held-out loss {trainer.evaluate()['eval_loss']:.4f}")
