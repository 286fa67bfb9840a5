"""Makes held-out models that take sequences, written out in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from experiments.models.workloads import Encoder, Sample

_BATCH, _LENGTH, _WIDTH, _HEADS = 8, 64, 128, 4


class Words(nn.Module):
    """Applies an embedding, layers and a head; returns the loss of given labels."""

    def __init__(self, *layers: nn.Module, smoothing: float = 0.0, vocabulary: int = 512) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(vocabulary, _WIDTH), nn.Sequential(*layers)
        self.head, self.smoothing = nn.Linear(_WIDTH, vocabulary), smoothing

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.layers(self.table(words)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=self.smoothing)


class GatedConvolutions(nn.Module):
    """Applies one-dimensional convolutions with normalized weights, gated linear units, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(weight_norm(nn.Conv1d(_WIDTH, 2 * _WIDTH, 5, padding=2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        for layer in self.layers:
            y = (y + F.glu(layer(y), 1)) * 0.5**0.5
        return y.transpose(1, 2)


class Dilated(nn.Module):
    """Applies causal dilated convolutions, and tanh times sigmoid, as WaveNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(_WIDTH, 2 * _WIDTH, 2, dilation=2**i) for i in range(3))
        self.mix = nn.ModuleList(nn.Conv1d(_WIDTH, _WIDTH, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y, skips = x.transpose(1, 2), 0.0
        for i, (layer, mix) in enumerate(zip(self.layers, self.mix, strict=True)):
            left, right = layer(F.pad(y, (2**i, 0))).chunk(2, 1)
            skip = mix(left.tanh() * right.sigmoid())
            y, skips = y + skip, skips + skip
        return F.relu(skips).transpose(1, 2)  # type: ignore[arg-type]


class Gru(nn.Module):
    """Runs GRU cells, step by step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(width, width), nn.Linear(width, width)

    def forward(self, sequence: Tensor) -> Tensor:
        state, states = torch.zeros_like(sequence[:, 0]), list[Tensor]()
        for step in range(sequence.shape[1]):
            state = self.cell(sequence[:, step], state)
            states.append(state)
        return F.huber_loss(self.head(torch.stack(states[:-1], 1)), sequence[:, 1:])


class RmsNorm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Rotary(nn.Module):
    """Applies rotary positions, grouped queries and a gated perceptron, as Llama does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(), RmsNorm()
        self.q, self.kv = nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(_WIDTH, 3 * _WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * _WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y, size = self.norm1(x), _WIDTH // _HEADS
        angles = torch.outer(torch.arange(_LENGTH), 100 ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)
        q = self.rotated(self.q(y).unflatten(-1, (_HEADS, size)).transpose(1, 2), angles)
        k, v = self.kv(y).unflatten(-1, (2, _HEADS // 2, size)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, self.rotated(k, angles), v, is_causal=True, enable_gqa=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def rotated(x: Tensor, angles: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-right, left], -1) * angles.sin()


class Masked(nn.Module):
    """Computes attention as one operator under a boolean mask, then under a learned bias."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(_WIDTH, 3 * _WIDTH) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(_HEADS, _LENGTH, _LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        allowed = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).tril(4).triu(-16)
        for qkv, mask in zip(self.qkv, (allowed, self.bias), strict=True):
            q, k, v = qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return x


class Alibi(nn.Module):
    """Computes attention by einsum, with a bias that grows with the distance, and a soft cap on its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (_HEADS, -1)) for part in self.qkv(x).chunk(3, -1))
        scores = 20 * torch.tanh(torch.einsum("bqhd,bkhd->bhqk", q, k) / 20)
        distance = torch.arange(_LENGTH)[None] - torch.arange(_LENGTH)[:, None]
        slopes = 2.0 ** -torch.arange(1, _HEADS + 1)
        scores = scores + (slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)
        return x + torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)


class LinearAttention(nn.Module):
    """Computes causal attention without a softmax: by sums over all that came before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return x + q * (k * v).cumsum(1) / (q * k.cumsum(1)).sum(-1, keepdim=True)


class LogSpace(nn.Module):
    """Computes a gated linear recurrence at once, by sums of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(_WIDTH, 2 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.both(x).chunk(2, -1)
        kept = -F.softplus(gate).cumsum(1)
        added = -F.softplus(-gate) + torch.where(value >= 0, (F.relu(value) + 0.5).log(), -F.softplus(-value))
        return x + (kept + torch.logcumsumexp(added - kept, 1)).exp()


class Experts(nn.Module):
    """Sends each word through the two best of four perceptrons, which all run, and balances their load."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, 4)
        self.up, self.down = (nn.Parameter(torch.randn(4, *shape) / 16) for shape in ((128, 256), (256, 128)))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        weights = torch.zeros(*x.shape[:2], 4).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        hidden = F.gelu(torch.einsum("btd,edf->ebtf", x, self.up), approximate="tanh")
        return x + torch.einsum("ebtf,efd,bte->btd", hidden, self.down, weights)


class Modulated(nn.Module):
    """Applies layer normalization whose scale and shift come from the time, as in a diffusion transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.encoder = nn.Sequential(nn.SiLU(), nn.Linear(64, 6 * _WIDTH)), Encoder(_WIDTH, _HEADS)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU("tanh"), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.exp(-math.log(1e4) * torch.arange(32) / 32)
        about = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        shift1, scale1, gate1, shift2, scale2, gate2 = about[:, None].chunk(6, -1)
        kept = (1 - time)[:, None, None]
        y = kept * x + (1 - kept) * noise
        y = y + gate1 * self.encoder(F.layer_norm(y, (_WIDTH,)) * (1 + scale1) + shift1)
        y = y + gate2 * self.mlp(F.layer_norm(y, (_WIDTH,)) * (1 + scale2) + shift2)
        return F.mse_loss(y, noise - x)


class Fourier(nn.Module):
    """Takes the real part of a Fourier transform in the place of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(_WIDTH), nn.Sequential(nn.Linear(_WIDTH, 256), nn.Linear(256, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x + torch.fft.fft2(x).real))


class Half(nn.Module):
    """Applies a transformer layer in bfloat16 by autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Encoder(_WIDTH, _HEADS)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(x).float()


def _words(*layers: Callable[[], nn.Module], smoothing: float = 0.0) -> Callable[[], Sample]:
    def make() -> Sample:
        words = torch.randint(512, (2, _BATCH, _LENGTH))
        return Words(*(layer() for layer in layers), smoothing=smoothing), (words[0], words[1])

    return make


def floats(model: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[], Sample]:
    """Makes a model, and tensors of these shapes to call it with."""
    return lambda: (model(), tuple(torch.rand(shape) for shape in shapes))


_WHOLE = (_BATCH, _LENGTH, _WIDTH)

MODELS: dict[str, Callable[[], Sample]] = {
    "conv1d, weight norm, GLU": _words(GatedConvolutions),
    "WaveNet: dilated conv1d, tanh times sigmoid": _words(Dilated),
    "GRU cells, Huber loss": floats(lambda: Gru(_WIDTH), (128, 6, _WIDTH)),
    "RMSNorm, rotary, SwiGLU, grouped queries": _words(Rotary),
    "SDPA under masks": _words(Masked),
    "ALiBi, soft cap, einsum": _words(Alibi),
    "linear attention: cumsum, ELU": _words(LinearAttention),
    "linear recurrence: softplus, logcumsumexp": _words(LogSpace),
    "mixture of experts: top-k, scatter": _words(Experts),
    "diffusion transformer: modulated layer norm": floats(Modulated, _WHOLE, _WHOLE, (_BATCH,)),
    "FNet: Fourier transform": _words(Fourier),
    "bfloat16 by autocast": _words(Half),
    "label smoothing, CELU": _words(lambda: nn.Linear(_WIDTH, _WIDTH), nn.CELU, smoothing=0.1),
}
"""Makers of the models, by what these contain."""
