"""A training script with AdamW, clipping and a cosine schedule, as it is without gemps."""

import pydoc_data.topics

import torch
from torch import nn

STEPS, BATCH, CONTEXT = 160, 16, 12

topics = "".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
text = torch.frombuffer(bytearray(topics), dtype=torch.uint8).long()
rows = text.unfold(0, CONTEXT + 1, 1)
split = len(rows) // 10 * 9
train, held_out = rows[:split], rows[split::40]

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(128, 16),
    nn.Flatten(),
    nn.Linear(CONTEXT * 16, 64),
    nn.GELU(),
    nn.Linear(64, 64),
    nn.GELU(),
    nn.Linear(64, 128),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

for _ in range(STEPS):
    batch = train[torch.randint(len(train), (BATCH,))]
    loss = criterion(model(batch[:, :-1]), batch[:, -1])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()

with torch.no_grad():
    loss = criterion(model(held_out[:, :-1]), held_out[:, -1])
print(f"held-out loss {loss:.4f} at rate {scheduler.get_last_lr()[0]:.6f}")
