"""Makes the two kinds of networks that diffusion models are made of: a U-Net and a transformer.

Both take noised latents, the time step of each, what the picture is to show, and the noise, and return the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def time_features(step: Tensor, width: int) -> Tensor:
    """Encodes time steps by cosines and sines of falling frequencies."""
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, device=step.device))
    angles = step[:, None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], -1)


class Attention(nn.Module):
    """Attends from pixels to pixels, or to words of another width; as one operator."""

    def __init__(self, width: int, heads: int, words: int | None = None, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias)
        self.key, self.value = (nn.Linear(words or width, width, bias) for _ in range(2))
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor, words: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        source = x if words is None else words
        q, k, v = (
            part.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query(x), self.key(source), self.value(source))
        )
        return self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))


class Spatial(nn.Module):
    """Applies a transformer block to the pixels of an image: attention to each other, to words, and a gated GeLU."""

    def __init__(self, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = (
            nn.GroupNorm(32, width),
            nn.Conv2d(width, width, 1),
            nn.Conv2d(width, width, 1),
        )
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, heads), Attention(width, heads, words)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        x = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        x = x + self.own(self.norm1(x))
        x = x + self.cross(self.norm2(x), words)
        inner, gate = self.up(self.norm3(x)).chunk(2, -1)
        x = x + self.down(inner * F.gelu(gate))
        return image + self.leave(x.transpose(1, 2).reshape(image.shape))


class TimedResidual(nn.Module):
    """Applies two convolutions, with the time step added between them, around a shortcut."""

    def __init__(self, narrow: int, wide: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, narrow), nn.Conv2d(narrow, wide, 3, padding=1)
        self.time = nn.Linear(time, wide)
        self.norm2, self.conv2 = nn.GroupNorm(32, wide), nn.Conv2d(wide, wide, 3, padding=1)
        self.short = nn.Identity() if narrow == wide else nn.Conv2d(narrow, wide, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.norm2(y)))


class Level(nn.Module):
    """Applies a residual block, and where there are words attention."""

    def __init__(self, narrow: int, wide: int, time: int, heads: int, words: int | None) -> None:
        super().__init__()
        self.residual = TimedResidual(narrow, wide, time)
        self.attend = Spatial(wide, heads, words) if words else None

    def forward(self, x: Tensor, time: Tensor, words: Tensor) -> Tensor:
        x = self.residual(x, time)
        return x if self.attend is None else self.attend(x, words)


class DiffusionUNet(nn.Module):
    """Predicts noise by the U-Net of Stable Diffusion 1 (Rombach et al. 2022), without dropout."""

    def __init__(
        self, width: int = 320, factors: Sequence[int] = (1, 2, 4, 4), blocks: int = 2, heads: int = 8, words: int = 768
    ) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        widths = [width * factor for factor in factors]
        attended = [words] * (len(widths) - 1) + [None]  # the coarsest level has no attention
        narrow, skips = width, [width]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for i, wide in enumerate(widths):
            for _ in range(blocks):
                self.down.append(Level(narrow, wide, time, heads, attended[i]))
                skips.append(narrow := wide)
            if i < len(widths) - 1:
                self.down.append(nn.Conv2d(wide, wide, 3, 2, 1))
                skips.append(wide)
        self.middle = nn.ModuleList(
            [Level(narrow, narrow, time, heads, words), Level(narrow, narrow, time, heads, None)]
        )
        for i, wide in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(Level(narrow + skips.pop(), wide, time, heads, attended[i]))
                narrow = wide
            if i:
                self.up.append(nn.Conv2d(wide, wide, 3, padding=1))
        self.norm, self.leave = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, latents: Tensor, step: Tensor, words: Tensor, noise: Tensor) -> Tensor:
        time = self.time(time_features(step, self.width))
        skips = [x := self.enter(latents)]
        for layer in self.down:
            x = layer(x, time, words) if isinstance(layer, Level) else layer(x)
            skips.append(x)
        for layer in self.middle:
            x = layer(x, time, words)
        for layer in self.up:
            if isinstance(layer, Level):
                x = layer(torch.cat([x, skips.pop()], 1), time, words)
            else:
                x = layer(F.interpolate(x, scale_factor=2.0))
        return F.mse_loss(self.leave(F.silu(self.norm(x))).float(), noise)


class DiTBlock(nn.Module):
    """Applies a transformer block whose normalizations are shifted and scaled by what it is conditioned on."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, 1e-6, elementwise_affine=False) for _ in range(2))
        self.attend = Attention(width, heads, bias=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, about: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(F.silu(about))[:, None].chunk(6, -1)
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    """Predicts noise and its variance by a transformer over patches of latents (Peebles and Xie 2023)."""

    def __init__(
        self, layers: int, width: int, heads: int, patch: int = 2, side: int = 32, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patch = patch
        self.enter = nn.Conv2d(4, width, patch, patch)
        self.register_buffer("positions", torch.zeros((side // patch) ** 2, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.labels = nn.Embedding(classes + 1, width)  # one for no label
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(layers))
        self.norm, self.condition = nn.LayerNorm(width, 1e-6, elementwise_affine=False), nn.Linear(width, 2 * width)
        self.leave = nn.Linear(width, 8 * patch**2)

    def forward(self, latents: Tensor, step: Tensor, label: Tensor, noise: Tensor) -> Tensor:
        about = self.time(time_features(step, 256)) + self.labels(label)
        x = self.enter(latents).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x, about)
        shift, scale = self.condition(F.silu(about))[:, None].chunk(2, -1)
        x = self.leave(self.norm(x) * (1 + scale) + shift).transpose(1, 2)
        height, width = latents.shape[-2:]
        found = F.fold(x, (height, width), self.patch, stride=self.patch)
        return F.mse_loss(found[:, :4].float(), noise)
