"""Supervised fine-tuning of a causal language model by TRL: `python -m experiments.recipes.trl_sft`."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from experiments.recipes.beside import compare
from experiments.recipes.hugging_face_trainer import SHORT, STEPS, losses


def train(**how: Any) -> list[float]:
    """Trains on tokens that are there already, and returns the loss of each step."""
    set_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, attention_dropout=0.1, use_cache=False, **sizes))
    words = {f"word{i}": i for i in range(254)} | {"<pad>": 254, "<eos>": 255}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, "<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    data = Dataset.from_dict({"input_ids": torch.randint(254, (8 * STEPS, 128)).tolist()})

    model.compile(**how)  # backend="remat", options={"remat.cost_model": "memory-budget:budget=0.5"}

    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            gradient_checkpointing=False,  # True is TRL's default: then a budget applies to the checkpointed model
            bf16=False,
            **SHORT,
        )
        return losses(SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer))


if __name__ == "__main__":
    compare(train)
