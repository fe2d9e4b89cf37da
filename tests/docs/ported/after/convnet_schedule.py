"""A convnet in functions, with a DataLoader, a learning-rate schedule and gradient clipping."""

import argparse

import torch
from gemps import ParameterServer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        x = functional.max_pool2d(self.conv1(x).relu(), 2)
        x = functional.max_pool2d(self.conv2(x).relu(), 2)
        return self.out(self.dropout(x.flatten(1)))


def train(model, loader, ps, epoch):
    model.train()
    for batch, (inputs, labels) in enumerate(loader):
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        ps.step(loss, samples=len(labels))
        if batch % 10 == 0:
            print(f"epoch {epoch}, batch {batch}: loss {loss.item():.3f}")


@torch.no_grad()
def test(model, loader):
    model.eval()
    correct = sum(int((model(inputs).argmax(1) == labels).sum()) for inputs, labels in loader)
    print(f"test accuracy {correct / len(loader.dataset):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    digits = load_digits()
    data = TensorDataset(torch.from_numpy(digits.images).float().unsqueeze(1) / 16, torch.from_numpy(digits.target))
    train_data, test_data = random_split(data, [1437, 360])
    train_loader = DataLoader(train_data, batch_size=arguments.batch_size, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=360)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    with ParameterServer(model=model, optimizer=optimizer, scheduler=scheduler) as ps:
        torch.manual_seed(1000 * ps.run_settings.seed + ps.rank)
        for epoch in range(10**9):
            train(model, train_loader, ps, epoch)
            scheduler.step()
    test(model, test_loader)


if __name__ == "__main__":
    main()
