"""A PyTorch training script, distributed by the five lines marked (1) to (5).

Start a server and any number of workers by hand:

    gemps serve --steps 500
    GEMPS_SERVER=127.0.0.1:50051 python examples/custom_training.py

or let gemps start server and workers:

    gemps train --workers 2 --steps 500 -- python examples/custom_training.py

The address comes from GEMPS_SERVER, this worker's name from GEMPS_WORKER_NAME, and learning rate, seed and the number
of steps from the server.
"""

import torch
from gemps import ParameterServer  # (1)
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)  # several workers share this machine

digits = load_digits()
images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
labels = torch.from_numpy(digits.target)
held_out = torch.arange(len(labels)) % 5 == 0

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 10),
)
criterion = nn.CrossEntropyLoss()

with ParameterServer(model=model) as ps:  # (2) joins; uploads the first parameters, or installs the current ones
    order = torch.Generator().manual_seed(1000 * ps.run_settings.seed + ps.rank)  # (3) each worker its own order
    train = TensorDataset(images[~held_out], labels[~held_out])
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True, generator=order)
    while True:  # (4) until the run is finished: the step() after that raises, which the with block absorbs
        for batch, targets in loader:
            loss = criterion(model(batch), targets)
            loss.backward()
            ps.step(loss, samples=len(targets))  # (5) commits, installs fresh parameters, zeroes the gradients

model.eval()
with torch.no_grad():
    accuracy = (model(images[held_out]).argmax(dim=1) == labels[held_out]).float().mean()
print(f"worker {ps.rank}: {ps.applied_steps} steps, accuracy on held-out digits {accuracy:.3f}")
