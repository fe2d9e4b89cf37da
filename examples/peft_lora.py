"""Fine-tune a LoRA adapter of a language model as a worker. Without GEMPS_SERVER it trains alone.

python examples/peft_lora.py
gemps train --workers 2 --rule downpour --commits 600 -- python examples/peft_lora.py
"""

import contextlib
import os
from pydoc_data.topics import topics

import torch
from gemps import ParameterServer
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

STEPS, BATCH, CONTEXT = 600, 16, 32

text = torch.frombuffer(bytearray("".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()
shouted = text - 32 * ((text >= 97) & (text <= 122)).long()  # upper case, which the base has hardly seen
general, train, held_out = text[: len(text) // 2], shouted[len(text) // 2 : -40_000], shouted[-40_000:]


def draw(source: Tensor, order: torch.Generator) -> Tensor:
    """Token ids [BATCH, CONTEXT] of random places."""
    starts = torch.randint(len(source) - CONTEXT, (BATCH,), generator=order)
    return source[starts[:, None] + torch.arange(CONTEXT)]


def pretrained() -> LlamaForCausalLM:
    """Stands for from_pretrained(...): the same weights in each worker."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    base, order = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(base.parameters(), lr=0.003)
    for _ in range(300):
        tokens = draw(general, order)
        base(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return base


model = get_peft_model(pretrained(), LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

order = torch.Generator().manual_seed(int(os.environ.get("GEMPS_WORKER_INDEX", 0)))
joins = "GEMPS_SERVER" in os.environ
with ParameterServer(model=model, optimizer=optimizer) if joins else contextlib.nullcontext() as ps:
    for _ in range(STEPS):
        tokens = draw(train, order)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if ps is not None:
            ps.step(loss, samples=BATCH)  # ends the block when the server's budget is spent
        else:
            optimizer.step()
            optimizer.zero_grad()

with torch.no_grad():
    tokens = held_out.unfold(0, CONTEXT, CONTEXT)
    print(f"held-out loss {model(input_ids=tokens, labels=tokens).loss:.4f}")
