"""A loop with Accelerate as a worker. Without GEMPS_SERVER it trains alone.

python examples/accelerate_loop.py
gemps train --workers 2 --commits 1000 -- python examples/accelerate_loop.py
"""

import contextlib
import itertools
import os
from pydoc_data.topics import topics

import torch
from accelerate import Accelerator
from gemps import ParameterServer
from torch import nn
from torch.utils.data import DataLoader

index = int(os.environ.get("GEMPS_WORKER_INDEX", 0))

text = torch.frombuffer(bytearray("".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()
rows = text.unfold(0, 9, 1)  # eight characters, and the next one
train, held_out = rows[: len(rows) // 10 * 9], rows[len(rows) // 10 * 9 :: 20]

torch.manual_seed(index)  # each worker its own order of the samples
model = nn.Sequential(nn.Embedding(128, 16), nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
criterion = nn.CrossEntropyLoss()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters(), lr=0.003), DataLoader(train, batch_size=32, shuffle=True)
)

joins = "GEMPS_SERVER" in os.environ
samples = 0
# Accelerate's optimizer wraps the one that the worker needs.
with ParameterServer(model=model, optimizer=optimizer.optimizer) if joins else contextlib.nullcontext() as ps:
    for batch in itertools.islice(loader, 2000):
        with accelerator.accumulate(model):
            loss = criterion(model(batch[:, :-1]), batch[:, -1])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        samples += len(batch)
        if ps is not None and accelerator.sync_gradients:
            ps.exchange(loss, samples)  # commits the optimizer's step; ends the block when the server's budget is spent
            samples = 0

with torch.no_grad():
    print(f"held-out loss {criterion(model(held_out[:, :-1]), held_out[:, -1]):.4f}")
