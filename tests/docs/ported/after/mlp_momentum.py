"""An MLP on scikit-learn's digits, with SGD and momentum; batches are drawn by hand."""

import torch
from gemps import ParameterServer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.data).float() / 16
targets = torch.from_numpy(digits.target)
train_images, train_targets = images[:1500], targets[:1500]
test_images, test_targets = images[1500:], targets[1500:]

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

with ParameterServer(model=model, optimizer=optimizer) as ps:
    torch.manual_seed(1000 * ps.run_settings.seed + ps.rank)
    for epoch in range(10**9):
        for numbers in torch.randperm(len(train_images)).split(50):
            inputs, labels = train_images[numbers], train_targets[numbers]
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            ps.step(loss, samples=len(labels))
        print(f"epoch {epoch}: loss {loss.item():.3f}")

with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_targets).float().mean().item()
print(f"test accuracy {accuracy:.3f}")
