"""A model with BatchNorm that is evaluated after each epoch, and saved when it is the best so far."""

import sys
from pathlib import Path

import torch
from gemps import ParameterServer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = Path(sys.argv[1])

torch.manual_seed(2)
digits = load_digits()
images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
targets = torch.from_numpy(digits.target)
train_loader = DataLoader(TensorDataset(images[:1500], targets[:1500]), batch_size=50, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])

best = 0.0
with ParameterServer(model=model, optimizer=optimizer) as ps:
    torch.manual_seed(1000 * ps.run_settings.seed + ps.rank)
    for epoch in range(10**9):
        for inputs, labels in train_loader:
            loss = criterion(model(inputs), labels)
            loss.backward()
            ps.step(loss, samples=len(labels))
        model.eval()
        with torch.no_grad():
            accuracy = (model(images[1500:]).argmax(1) == targets[1500:]).float().mean().item()
        model.train()
        print(f"epoch {epoch}: test accuracy {accuracy:.3f}")
        if accuracy > best:
            best = accuracy
            if ps.rank == 0:
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "accuracy": accuracy,
                    },
                    CHECKPOINT,
                )
print(f"best test accuracy {best:.3f}")
