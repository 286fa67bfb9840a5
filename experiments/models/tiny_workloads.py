"""Makes the models of `KERNEL_ZOO` at sizes that an interpreter of kernels runs in seconds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from experiments.models.workloads import Bert, ConvNet, Mixer, Recurrent, ResNet, Sample
from experiments.models.zoo import GPT2


def _gpt(*, fused: bool = False) -> Sample:
    model = GPT2(layers=1, width=32, heads=2, vocabulary=40, context=16, fused=fused)
    return model, (torch.randint(40, (2, 16)),)


def _bert() -> Sample:
    tokens = torch.randint(40, (2, 16))
    return Bert(1, 32, 2, 40, 16), (tokens, torch.arange(16).expand(2, 16) < 12, tokens)


def _labelled(model: nn.Module, *shape: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return model, (torch.randn(*shape), torch.randint(5, shape[:1]))


def _perceptron(*between: nn.Module) -> Sample:
    return nn.Sequential(nn.Linear(48, 48), *between, nn.Linear(48, 24)), (torch.randn(20, 48),)


def _encoder() -> Sample:
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 1), (torch.randn(2, 16, 32),)


TINY_ZOO: dict[str, Callable[[], Sample]] = {
    "GPT, attention written out": _gpt,
    "GPT, fused attention": lambda: _gpt(fused=True),
    "BERT": _bert,
    "ResNet": lambda: _labelled(ResNet((1, 1), 8, 5), 4, 3, 16, 16),
    "MLP-Mixer": lambda: _labelled(Mixer(1, 16, 32), 2, 16, 32),
    "EvoNorm": lambda: _labelled(ConvNet(2, 16, 5), 2, 3, 8, 8),
    "LayerNorm-GeLU MLP": lambda: _perceptron(nn.GELU(), nn.LayerNorm(48)),
    "dropout MLP": lambda: _perceptron(nn.ReLU(), nn.Dropout(0.1)),
    "nn.TransformerEncoder": _encoder,
    "LSTM cells": lambda: (Recurrent(16), (torch.randn(4, 3, 16),)),
}
"""Makers of models and their inputs, by the names of `KERNEL_ZOO`; set a seed before the call."""
