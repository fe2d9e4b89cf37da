"""TRL's SFTTrainer, which is a transformers Trainer, as a worker. Without GEMPS_SERVER it trains alone.

python examples/trl_sft.py
gemps train --workers 2 -- python examples/trl_sft.py
"""

import os
from pydoc_data.topics import topics

import torch
from datasets import Dataset
from gemps.integrations.transformers import GempsCallback
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

STEPS = 200  # of all workers
index, workers = int(os.environ.get("GEMPS_WORKER_INDEX", 0)), int(os.environ.get("GEMPS_WORKERS", 1))

text = "".join(topics.values()).encode("ascii", "replace").decode()
rows = Dataset.from_dict({"text": [text[at : at + 32] for at in range(0, 320_000, 32)]})
parts = rows.train_test_split(0.05, seed=0)

tokens = Tokenizer(models.WordLevel({chr(code): code for code in range(128)}, unk_token="?"))
tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="?", eos_token="\x00", pad_token="\x01")

torch.manual_seed(0)
config = GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
trainer = SFTTrainer(
    GPT2LMHeadModel(config),
    SFTConfig(
        f"runs/trl-{index}",
        max_steps=STEPS // workers,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        max_length=32,
        logging_steps=4,
        save_strategy="no",
        seed=index,  # each worker its own order of the samples
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=parts["train"],
    eval_dataset=parts["test"],
    processing_class=tokenizer,
    callbacks=[GempsCallback()] if "GEMPS_SERVER" in os.environ else [],
)
trainer.train()
print(f"held-out loss {trainer.evaluate()['eval_loss']:.4f}")
