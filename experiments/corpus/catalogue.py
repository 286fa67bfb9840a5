"""Lists a recipe for every instance of the corpus."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from experiments.models import published, setups, workloads
from experiments.models.deepnet import DeepEncoder
from experiments.models.diffusion import DiffusionUNet, DiT
from experiments.models.hugging_face import hugging_face
from experiments.models.recent import recent
from experiments.models.recipe import Inputs, Recipe, floats, images, on_meta, tokens
from experiments.models.video import VideoDiT
from experiments.models.workloads import KERNEL_ZOO
from experiments.models.zoo import GPT2


def recipes() -> dict[str, Recipe]:
    """Lists all recipes by name.

    Raises:
        ValueError: two recipes have one name.
    """
    found: dict[str, Recipe] = {}
    for recipe in chain(
        _small(), _gpts(), _convolutional(), _recurrent(), _acquisition(), hugging_face(), _today(), recent()
    ):
        if recipe.name in found:
            raise ValueError(f"two recipes are named {recipe.name!r}; rename one")
        found[recipe.name] = recipe
    return found


def _small() -> list[Recipe]:
    return [
        Recipe(
            name="small-" + re.sub("[^a-z0-9]+", "-", name.lower()),
            family="small",
            model=f"{name}: a small model of our own",
            sizes="as in experiments/models/workloads.py",
            make=make,
        )
        for name, make in KERNEL_ZOO.items()
    ]


@dataclass(frozen=True)
class _Sizes:
    """Holds the sizes that `GPT2` takes."""

    layers: int
    width: int
    heads: int
    context: int
    dropout: float = 0.0
    fused: bool = False
    vocabulary: int = 50257


def _gpts() -> list[Recipe]:
    second = "Radford et al. 2019, Language models are unsupervised multitask learners"
    third = "Brown et al. 2020, Language models are few-shot learners"

    def gpt(name: str, model: str, batch: int, sizes: _Sizes, cite: str, dtype: torch.dtype = torch.float32) -> Recipe:
        about = f"{sizes.layers} layers, width {sizes.width}, {sizes.heads} heads, dropout {sizes.dropout}"
        return Recipe(
            name=name,
            family="transformer",
            model=model,
            sizes=f"{about}, batch {batch}, {sizes.context} tokens",
            make=partial(on_meta, partial(GPT2, **asdict(sizes)), (tokens(batch, sizes.context),), dtype),
            cite=cite,
            dtype=dtype,
        )

    small, fused = _Sizes(12, 768, 12, 1024), _Sizes(12, 768, 12, 1024, fused=True)
    return [
        gpt("gpt2-small", "GPT-2 small, attention and GeLU written out", 8, _Sizes(12, 768, 12, 1024, 0.1), second),
        gpt("gpt2-small-fused", "GPT-2 small, attention as one operator", 8, fused, second),
        gpt("gpt2-small-bf16", "GPT-2 small in bfloat16", 8, small, second, torch.bfloat16),
        gpt("gpt2-medium", "GPT-2 medium", 4, _Sizes(24, 1024, 16, 1024, 0.1), second),
        gpt("gpt2-xl", "GPT-2 XL", 2, _Sizes(48, 1600, 25, 1024, 0.1), second),
        gpt("gpt3-175b", "GPT-3 175B, all attention dense", 1, _Sizes(96, 12288, 96, 2048, 0.1), third),
    ]


def _convolutional() -> list[Recipe]:
    def net(name: str, model: str, batch: int, build: Callable[[], nn.Module], cite: str) -> Recipe:
        make = partial(on_meta, build, images(batch))
        return Recipe(name, "convolution", model, f"batch {batch}, images of 224 x 224", make, cite)

    resnet, vgg = "He et al. 2016, Deep residual learning", "Simonyan and Zisserman 2015, Very deep networks"
    return [
        net("resnet18", "ResNet-18", 64, partial(workloads.ResNet, (2, 2, 2, 2), 64, 1000), resnet),
        net("resnet50", "ResNet-50", 64, published.resnet50, resnet),
        net("resnet152", "ResNet-152", 32, partial(published.resnet50, (3, 8, 36, 3)), resnet),
        net("evonorm-resnet50", "ResNet-50 with EvoNorm-S0", 64, published.evonorm50, "Liu et al. 2020, EvoNorm"),
        net("vgg16", "VGG-16", 64, partial(published.VGG, (2, 2, 3, 3, 3)), vgg),
        net("vgg19", "VGG-19", 64, partial(published.VGG, (2, 2, 4, 4, 4)), vgg),
        net("densenet121", "DenseNet-121", 32, published.densenet121, "Huang et al. 2017, DenseNet"),
        net("mobilenet-v2", "MobileNetV2", 64, published.mobilenet_v2, "Sandler et al. 2018, MobileNetV2"),
        net("efficientnet-b0", "EfficientNet-B0", 64, published.efficientnet_b0, "Tan and Le 2019, EfficientNet"),
        net("regnetx-1.6gf", "RegNetX-1.6GF", 64, published.regnetx, "Radosavovic et al. 2020, RegNet"),
        Recipe(
            name="unet",
            family="convolution",
            model="U-Net, padded, with batch normalization",
            sizes="batch 8, images of 512 x 512",
            make=partial(on_meta, published.UNet, (floats(8, 3, 512, 512), tokens(8, 512, 512))),
            cite="Ronneberger et al. 2015, U-Net",
        ),
    ]


def _recurrent() -> list[Recipe]:
    return [
        Recipe(
            name=f"lstm-{steps}",
            family="recurrent",
            model="Two LSTM cells, step by step",
            sizes=f"width {width}, {steps} steps, batch 64",
            make=partial(on_meta, partial(workloads.Recurrent, width), (floats(64, steps, width),)),
            cite="Hochreiter and Schmidhuber 1997, Long short-term memory",
        )
        for steps, width in ((16, 512), (128, 1024))
    ]


def _acquisition() -> list[Recipe]:
    restarts, samples, points, dims, double = 16, 512, 256, 6, torch.float64
    daulton = "Daulton et al. 2020, Differentiable expected hypervolume improvement"

    def function(q: int, objectives: int, cells: int) -> tuple[str, type[published.Posterior], Inputs]:
        shapes = [(points, dims), (objectives, points), (samples, restarts, q, objectives)]
        boxes = [(cells, objectives)] * 2 if cells else []
        sizes = f"{restarts} restarts, {samples} samples, {points} points of {dims} dimensions"
        about = f"{sizes}, {objectives} objectives, {cells} cells" if cells else sizes
        kind = published.ExpectedHypervolumeImprovement if cells else published.ExpectedImprovement
        return about, kind, tuple(floats(*shape, dtype=double) for shape in (*shapes, *boxes))

    def recipe(name: str, model: str, cite: str, q: int, objectives: int = 1, cells: int = 0) -> Recipe:
        about, kind, inputs = function(q, objectives, cells)
        make = partial(on_meta, partial(kind, restarts, q, dims), inputs, double)
        return Recipe(f"{name}-{q}", "acquisition", model, f"q = {q}, {about}", make, cite, dtype=double)

    improvement = "Monte Carlo q-expected improvement over a Gaussian process"
    hypervolume = "Monte Carlo q-expected hypervolume improvement over Gaussian processes"
    return [
        recipe("qei", improvement, "Wilson et al. 2018, Maximizing acquisition functions", q=8),
        recipe("qehvi", hypervolume, daulton, q=4, objectives=2, cells=32),
        recipe("qehvi", hypervolume, daulton, q=8, objectives=4, cells=32),
    ]


def _today() -> list[Recipe]:
    """Models as they are trained today, of our own code: under autocast, for a GPU, as one graph."""
    second = "Radford et al. 2019, Language models are unsupervised multitask learners"

    def recipe(
        name: str,
        family: str,
        model: str,
        sizes: str,
        cite: str,
        make: tuple[Callable[[], nn.Module], Inputs],
        **how: Any,
    ) -> Recipe:
        return Recipe(name, family, model, sizes, partial(on_meta, *make), cite, **how)

    def cast(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        return lambda: setups.Autocast(build())

    def medium(dropout: float) -> Callable[[], nn.Module]:
        return partial(GPT2, **asdict(_Sizes(24, 1024, 16, 1024, dropout, fused=True)))

    words = "24 layers, width 1024, 16 heads, dropout {}, batch 8, 1024 tokens"
    latents, steps = floats(8, 4, 64, 64), tokens(8)
    video = floats(1, 16, 21, 60, 104)
    patches, labels = floats(32, 4, 32, 32), tokens(32)
    gpt = "GPT-2 medium, attention as one operator"
    return [
        recipe(
            "gpt2-medium-autocast", "transformer", f"{gpt}, bfloat16 autocast", words.format(0.0), second,
            (cast(medium(0.0)), (tokens(8, 1024),)),
        ),
        recipe(
            "gpt2-medium-h100", "transformer", f"{gpt}, bfloat16 autocast, for an H100", words.format(0.1), second,
            (cast(medium(0.1)), (tokens(8, 1024),)), device="h100",
        ),
        recipe(
            "gpt2-medium-step", "transformer", f"{gpt}, forward pass, loss and backward pass traced as one graph",
            words.format(0.0), second, (medium(0.0), (tokens(8, 1024),)), whole=True,
        ),
        recipe(
            "deepnet-500", "transformer", "DeepNet, an encoder: forward, loss and backward traced as one graph",
            "500 layers, width 512, 8 heads, batch 8, 256 tokens",
            "Wang et al. 2022, DeepNet: Scaling Transformers to 1,000 Layers",
            (partial(DeepEncoder, 500, 512, 8, 32768, 256), (tokens(8, 256), tokens(8, 256))), whole=True,
        ),
        recipe(
            "resnet50-a100", "convolution", "ResNet-50, bfloat16 autocast, for an A100",
            "batch 256, images of 224 x 224", "He et al. 2016, Deep residual learning",
            (cast(published.resnet50), images(256)), device="a100",
        ),
        recipe(
            "stable-diffusion-unet", "diffusion",
            "U-Net of Stable Diffusion 1, attention as one operator, bfloat16 autocast",
            "batch 8, latents of 64 x 64, 77 words", "Rombach et al. 2022, Latent diffusion models",
            (cast(DiffusionUNet), (latents, steps, floats(8, 77, 768), latents)),
        ),
        recipe(
            "dit-xl-2", "diffusion", "DiT-XL/2, attention as one operator, bfloat16 autocast",
            "28 layers, width 1152, 16 heads, batch 32, latents of 32 x 32", "Peebles and Xie 2023, DiT",
            (cast(partial(DiT, 28, 1152, 16)), (patches, labels, labels, patches)),
        ),
        recipe(
            "wan-1.3b", "diffusion",
            "Transformer of Wan 2.1 1.3B for video, 12 of its 30 layers, attention as one operator, bfloat16 autocast",
            "12 layers, width 1536, 12 heads, batch 1, 81 frames of 480 x 832 as latents of 21 x 60 x 104, 512 words",
            "Wan team 2025, Wan: Open and advanced large-scale video generative models",
            (cast(partial(VideoDiT, 12)), (video, tokens(1), floats(1, 512, 4096), video)),
        ),
    ]  # fmt: skip
