"""A worker that trains a LoRA of a tiny language model: `python peft_worker.py SEED OUTPUT [own]`."""

import sys

import torch
from gemps import ParameterServer
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = torch.arange(48).view(2, 24) % 7


def base(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes))


def lora(seed: int = 0) -> PeftModel:
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    return get_peft_model(base(seed), settings)


def loss_of(model: PeftModel) -> Tensor:
    return model(input_ids=TOKENS, labels=TOKENS).loss


def outputs_of(model: PeftModel) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = lora(int(sys.argv[1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if "own" in sys.argv else None
    with ParameterServer(model=model, optimizer=optimizer) as ps:
        while True:
            loss = loss_of(model)
            loss.backward()
            report = ps.step(loss, samples=2)
            print(f"step {ps.applied_steps}, loss {report.loss}", flush=True)
    torch.save(outputs_of(model), sys.argv[2])
