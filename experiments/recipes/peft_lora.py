"""A frozen language model with LoRA adapters by peft: `python -m experiments.recipes.peft_lora`."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.recipes.beside import compare


def train(**how: Any) -> list[float]:
    """Trains the adapters on one batch, and returns the loss of each step."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=256, use_cache=False, **sizes))
    model = get_peft_model(base, LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "up_proj"]))
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-2)

    model.compile(**how)  # backend="remat", options={"remat.cost_model": "memory-budget:budget=0.5"}

    tokens = torch.randint(256, (8, 128))
    losses: list[float] = []
    for _ in range(4):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    compare(train)
