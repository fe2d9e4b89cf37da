"""A transformers Trainer as a worker; alone, it trains as ever:

    python examples/transformers_trainer.py
    gemps train --workers 2 --rule downpour -- python examples/transformers_trainer.py

A worker that is started again goes on from its last checkpoint, with the server's parameters.
"""

import os
from pydoc_data.topics import topics

import torch
from gemps.integrations.transformers import GempsCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS = 320  # of all workers
index, workers = int(os.environ.get("GEMPS_WORKER_INDEX", 0)), int(os.environ.get("GEMPS_WORKERS", 1))
folder = os.path.join(os.environ.get("OUTPUT", "runs/trainer"), str(index))

text = torch.frombuffer(bytearray("".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()
rows = [{"input_ids": row, "labels": row} for row in text[: len(text) // 32 * 32].view(-1, 32)]
held_out = rows[::10][:500]
train = [row for number, row in enumerate(rows) if number % 10]

torch.manual_seed(0)
config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    folder,
    max_steps=STEPS // workers,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=100,
    learning_rate=3e-3,
    warmup_steps=20,
    lr_scheduler_type="cosine",
    weight_decay=0.1,
    logging_steps=4,
    save_steps=20,
    save_total_limit=1,
    seed=index,  # each worker its own order of the samples
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    GPT2LMHeadModel(config),
    arguments,
    train_dataset=train,
    eval_dataset=held_out,
    callbacks=[GempsCallback(every=int(os.environ.get("EVERY", 4)))] if "GEMPS_SERVER" in os.environ else [],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
print(f"held-out loss {trainer.evaluate()['eval_loss']:.4f}")
