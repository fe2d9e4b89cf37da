"""Supervised fine-tuning with TRL as a worker: its SFTTrainer is a transformers Trainer. Alone, it trains as before:

    python examples/trl_sft.py
    gemps train --workers 2 --rule downpour -- python examples/trl_sft.py
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
