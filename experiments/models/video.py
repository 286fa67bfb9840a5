"""Makes the transformer of a diffusion model of video: over patches of latents of all frames, with words across."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models.diffusion import time_features


def rotations(places: tuple[int, int, int], size: int) -> Tensor:
    """Returns cosines and sines (2, patches, size / 2): parts of a head turn by a patch's frame, row and column."""
    parts = [size - 4 * (size // 6), 2 * (size // 6), 2 * (size // 6)]
    angles = [
        torch.outer(torch.arange(n), 10_000.0 ** (-torch.arange(0, part, 2) / part))
        for n, part in zip(places, parts, strict=True)
    ]
    grid = torch.cartesian_prod(*(torch.arange(n) for n in places))
    turned = torch.cat([angle[grid[:, i]] for i, angle in enumerate(angles)], 1)
    return torch.stack([turned.cos(), turned.sin()])


class VideoAttention(nn.Module):
    """Attends as one operator, queries and keys normalized, to other patches or to words."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.norm_query, self.norm_key = (nn.RMSNorm(width, 1e-6) for _ in range(2))

    def forward(self, x: Tensor, source: Tensor, turn: Tensor | None = None) -> Tensor:
        parts = self.norm_query(self.query(x)), self.norm_key(self.key(source)), self.value(source)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if turn is not None:
            q, k = turned(q, turn), turned(k, turn)
        return self.project(F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v).transpose(1, 2).flatten(2))


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Turns pairs of numbers of heads (..., patches, size), in single precision."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * turn[0] - odd * turn[1], even * turn[1] + odd * turn[0]], -1).flatten(-2)


class VideoBlock(nn.Module):
    """Applies attention to patches and to words, and two layers, shifted and scaled by the time step."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, 1e-6, elementwise_affine=False) for _ in range(2))
        self.norm_cross = nn.LayerNorm(width, 1e-6)
        self.own, self.cross = VideoAttention(width, heads), VideoAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU("tanh"), nn.Linear(inner, width))
        self.modulation = nn.Parameter(torch.zeros(1, 6, width))

    def forward(self, x: Tensor, time: Tensor, words: Tensor, turn: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.modulation + time).chunk(6, 1)
        y = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.own(y, y, turn)
        x = x + self.cross(self.norm_cross(x), words)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class VideoDiT(nn.Module):
    """Predicts the velocity of latents by the transformer of Wan 2.1 (Wan team 2025), for a text as features."""

    def __init__(
        self, layers: int = 30, width: int = 1536, heads: int = 12, inner: int = 8960,
        latents: tuple[int, int, int] = (21, 60, 104), channels: int = 16, words: int = 4096,
    ) -> None:  # fmt: skip
        super().__init__()
        frames, height, row = latents
        self.places = frames, height // 2, row // 2
        self.enter = nn.Conv3d(channels, width, (1, 2, 2), (1, 2, 2))
        self.words = nn.Sequential(nn.Linear(words, width), nn.GELU("tanh"), nn.Linear(width, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.condition = nn.Linear(width, 6 * width)
        self.register_buffer("turn", rotations(self.places, width // heads))
        self.blocks = nn.ModuleList(VideoBlock(width, heads, inner) for _ in range(layers))
        self.norm, self.leave = nn.LayerNorm(width, 1e-6, elementwise_affine=False), nn.Linear(width, 4 * channels)
        self.modulation = nn.Parameter(torch.zeros(1, 2, width))

    def forward(self, latents: Tensor, step: Tensor, words: Tensor, velocity: Tensor) -> Tensor:
        time, words = self.time(time_features(step, 256)), self.words(words)
        conditions = self.condition(F.silu(time)).unflatten(-1, (6, -1))
        x = self.enter(latents).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, conditions, words, self.turn)
        shift, scale = (self.modulation + time[:, None]).chunk(2, 1)
        x = self.leave(self.norm(x) * (1 + scale) + shift).unflatten(1, self.places).unflatten(-1, (-1, 2, 2))
        found = x.permute(0, 4, 1, 2, 5, 3, 6).reshape(latents.shape)
        return F.mse_loss(found.float(), velocity)
