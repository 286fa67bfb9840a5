"""Makes the training steps that are measured on real devices, mostly of models by `transformers`, without weights."""

# transformers types its configurations loosely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.models.diffusion import DiT
from experiments.models.foreign import LanguageLoss, language_sizes
from experiments.models.hugging_face import NextToken
from experiments.models.published import UNet
from experiments.models.workloads import Sample

DEFAULT, CHECKPOINTED = "PyTorch's default", "every layer checkpointed"
BUDGETED = "activation_memory_budget = "
USUAL = (DEFAULT, f"{BUDGETED}0.5", f"{BUDGETED}0.2", CHECKPOINTED)


@dataclass(frozen=True)
class Case:
    """Describes a training step.

    Attributes:
        name: of the model and its sizes.
        make: makes the model and its arguments, on torch's default device; the model returns a loss.
        device: "cpu" or "cuda".
        autocast: whether the model runs in bfloat16 where PyTorch's automatic mixed precision says so.
        rivals: PyTorch's ways to train it.
        has_ours: whether our plans are measured, too.
    """

    name: str
    make: Callable[[], Sample]
    device: str
    autocast: bool = False
    rivals: tuple[str, ...] = USUAL
    has_ours: bool = True


def _hugging_face(model: str, config: str, sizes: Mapping[str, Any]) -> nn.Module:
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(use_cache=False, **sizes))


def _words(batch: int, length: int, vocabulary: int) -> tuple[Tensor]:
    return (torch.randint(vocabulary, (batch, length)),)


def _gpt2(layers: int, width: int, heads: int, words: tuple[int, int], vocabulary: int, *, labels: bool) -> Sample:
    sizes: dict[str, Any] = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary}
    sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = _hugging_face("GPT2LMHeadModel", "GPT2Config", sizes)
    return (LanguageLoss(model) if labels else NextToken(model)), _words(*words, vocabulary)


def _decoder(kind: str, sizes: Mapping[str, int], words: tuple[int, int], dtype: torch.dtype = torch.float32) -> Sample:
    model = NextToken(_hugging_face(f"{kind}ForCausalLM", f"{kind}Config", sizes))
    return model.to(dtype), _words(*words, sizes["vocab_size"])


class SumOfStates(nn.Module):
    """Applies a model of `transformers` without a head, and returns the sum of its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        return self.model(words).last_hidden_state.sum()


def thin_llama(words: tuple[int, int] = (2, 1024), layers: int = 32) -> Sample:
    """Makes the Llama of which peaks on other people's GPUs were published (`experiments.accuracy.gpu_peaks`)."""
    sizes = language_sizes(width=256, inner=688, layers=layers, heads=8, key_heads=8, words=1000)
    model = _hugging_face("LlamaModel", "LlamaConfig", sizes)
    return SumOfStates(model), _words(*words, 1000)


def _encoder(layers: int, width: int, words: tuple[int, int]) -> Sample:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), MeanSquare())
    return model, (torch.randn(*words, width),)


class MeanSquare(nn.Module):
    """Returns the mean square of what it is given, as a loss."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def _dit(layers: int, images: int) -> Sample:
    latents, noise = torch.randn(images, 4, 32, 32), torch.randn(images, 4, 32, 32)
    return DiT(layers, 1152, 16), (latents, torch.randint(1000, (images,)), torch.randint(1000, (images,)), noise)


def _unet(images: int, side: int) -> Sample:
    return UNet(), (torch.randn(images, 3, side, side), torch.randint(2, (images, side, side)))


_SMALL = language_sizes(width=256, inner=688, layers=4, heads=4, key_heads=2, words=8000)
_LLAMA_3 = language_sizes(width=4096, inner=14336, layers=4, heads=32, key_heads=8, words=128256)
_LLAMA_2 = language_sizes(width=4096, inner=11008, layers=6, heads=32, key_heads=32, words=32000)

CASES = (
    Case("GPT-2, 3 layers", partial(_gpt2, 3, 256, 4, (8, 256), 8000, labels=False), "cpu"),
    Case("GPT-2, 3 layers, its own loss: two graphs", partial(_gpt2, 3, 256, 4, (8, 256), 8000, labels=True), "cpu"),
    Case("Llama, 4 layers", partial(_decoder, "Llama", _SMALL, (4, 256)), "cpu"),
    Case("Qwen3, 4 layers", partial(_decoder, "Qwen3", _SMALL | {"head_dim": 64}, (4, 256)), "cpu"),
    Case("TransformerEncoder, 4 layers", partial(_encoder, 4, 256, (8, 256)), "cpu"),
    Case("U-Net, 128 pixels", partial(_unet, 2, 128), "cpu", rivals=USUAL[:3]),
    Case(
        "Llama, 32 thin layers",
        thin_llama,
        "cuda",
        rivals=tuple(f"{BUDGETED}{budget}" for budget in (0.05, 0.1, 0.15, 0.2, 0.3)),
        has_ours=False,
    ),
    Case(
        "GPT-2 medium, 12 of 24 layers",
        partial(_gpt2, 12, 1024, 16, (8, 1024), 50257, labels=False),
        "cuda",
        autocast=True,
    ),
    Case(
        "GPT-2 medium, 6 of 24 layers, its own loss: two graphs",
        partial(_gpt2, 6, 1024, 16, (8, 1024), 50257, labels=True),
        "cuda",
        autocast=True,
    ),
    Case("DiT-XL/2, 8 of 28 layers", partial(_dit, 8, 64), "cuda", autocast=True),
    Case(
        "Llama 3 8B, 4 of 32 layers, 32k tokens",
        partial(_decoder, "Llama", _LLAMA_3, (1, 32768), torch.bfloat16),
        "cuda",
        rivals=(DEFAULT, f"{BUDGETED}0.5", CHECKPOINTED),
    ),
    Case("Llama 2 7B, 6 of 32 layers", partial(_decoder, "Llama", _LLAMA_2, (2, 4096), torch.bfloat16), "cuda"),
)
