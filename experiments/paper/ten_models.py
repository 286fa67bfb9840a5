"""Makes the ten models of the paper's section 4: from their packages, or our own; small, or as published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from experiments.models import published, workloads
from experiments.models.hugging_face import MaskedWords, NextToken
from experiments.models.networks import Albert, Scored, resnest, vovnet
from experiments.models.recipe import Sample, fake
from experiments.models.zoo import GPT2
from experiments.paper.methods import FULL, MIN_CUT, NO
from experiments.paper.table import Setting, Unavailable

Layers = Callable[[nn.Module], list[nn.Module]]
"""Finds the layers of a model, in the paper's words: the modules whose inputs full-checkpoint saves."""

Inputs = Callable[[int], tuple[Tensor, ...]]
"""Makes of the size of a batch what a model is called with."""


class Amp(nn.Module):
    """Runs a model in automatic mixed precision: float16 on CUDA, as then; bfloat16 on CPU, good at no other."""

    def __init__(self, model: nn.Module, device: str) -> None:
        super().__init__()
        self.model, self.device = model, device

    def forward(self, *args: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.float16 if self.device == "cuda" else torch.bfloat16):
            return self.model(*args)


@dataclass(frozen=True)
class ModelSource:
    """Says where a model comes from.

    Attributes:
        build: makes it, on torch's default device.
        layers: of it.
        inputs: of it.
    """

    build: Callable[[], nn.Module]
    layers: Layers
    inputs: Inputs

    def sample(self, device: str, batch: int) -> Sample:
        """Makes the model in mixed precision, and a batch of random inputs."""
        with torch.device(device):
            return Amp(self.build().train(), device), self.inputs(batch)

    def fakes(self, batch: int) -> Sample:
        """Makes the model and a batch without contents, on the CPU: for the sizes alone."""
        with torch.device("meta"):
            model, args = Amp(self.build().train(), "cpu"), self.inputs(batch)
        return fake(model, args)

    def for_gpu(self, batch: int) -> Sample:
        """Makes the model and a batch without contents, to be captured for a GPU that is not there."""
        model = Amp(self.build().train(), "cuda")  # with contents at first: timm looks at numbers while it builds
        with torch.device("meta"):
            args = self.inputs(batch)
        return fake(model, args)

    def layers_of(self, model: nn.Module) -> list[nn.Module]:
        """Finds the layers of a sample's model."""
        assert isinstance(model, Amp)
        return self.layers(model.model)


@dataclass(frozen=True, eq=False)
class Whole:
    """Describes a model of the paper.

    Attributes:
        name: in TorchBench.
        batches: Table 2: the largest batch of each method on an A100 of 40 GB.
        small: our own, of a few layers.
        own: our own, at the published widths.
        library: the package's, as TorchBench calls it.
        small_batch: at which the small one is measured.
    """

    name: str
    batches: Mapping[str, int]
    small: ModelSource
    own: ModelSource
    library: ModelSource
    small_batch: int = 8

    def source(self, setting: Setting) -> ModelSource:
        """Chooses the package's model on CUDA at the published size, else our own."""
        if setting.is_small:
            return self.small
        return self.library if setting.device == "cuda" else self.own

    def batch(self, setting: Setting) -> int:
        """Returns the fixed batch: at the published size, the largest that was reached without checkpointing."""
        return self.small_batch if setting.is_small else self.batches[NO]


def children(path: str) -> Layers:
    """Makes a function that finds the children of a submodule."""
    return lambda model: list(model.get_submodule(path).children())


_FEATURES = children("features")


def kinds(*names: str) -> Layers:
    """Makes a function that finds the modules of these classes."""
    return lambda model: [module for module in model.modules() if type(module).__name__ in names]


def images(side: int) -> Inputs:
    """Makes a function that draws pictures of three channels, and a label for each."""
    return lambda batch: (torch.randn(batch, 3, side, side), torch.randint(10, (batch,)))


def words(length: int, count: int) -> Inputs:
    """Makes a function that draws sentences: one tensor for a decoder, words and labels for an encoder."""
    return lambda batch: tuple(torch.randint(512, (batch, length)) for _ in range(count))


def _staged(vgg: nn.Module) -> nn.Module:
    """Makes the convolutions of a VGG between two poolings one module: a layer, as a ReLU alone is none."""
    stages: list[list[nn.Module]] = [[]]
    for module in vgg.get_submodule("features").children():
        stages[-1].append(module)
        if isinstance(module, nn.MaxPool2d):
            stages.append([])
    vgg.features = nn.Sequential(*(nn.Sequential(*stage) for stage in stages if stage))
    return vgg


def _without_dropout(model: nn.Module) -> nn.Module:
    """Removes dropout: what small models compute is compared, and compiled code may draw other numbers than eager."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def _torchvision(name: str) -> nn.Module:
    return getattr(_package("torchvision.models"), name)(weights=None)


def _timm(name: str) -> nn.Module:
    return _package("timm").create_model(name, pretrained=False)


def _transformers(classes: str, head: type[nn.Module], **options: int) -> nn.Module:
    package = _package("transformers")
    model, config = classes.split()
    settings = getattr(package, config)(**options)
    settings._attn_implementation = "eager"  # in 2022 attention was written out
    return head(getattr(package, model)(settings))


def _package(module: str) -> Any:
    name = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        raise Unavailable(f"needs the package {name}: pip install {name} ({error})") from None


def _vision(
    name: str,
    batches: tuple[int, int, int],
    small: Callable[[], nn.Module],
    own: Callable[[], nn.Module],
    library: Callable[[], nn.Module],
    layers: Layers,
    own_layers: Layers = _FEATURES,
) -> Whole:
    return Whole(
        name,
        dict(zip((FULL, MIN_CUT, NO), batches, strict=True)),
        ModelSource(small, own_layers, images(64)),
        ModelSource(own, own_layers, images(224)),
        ModelSource(lambda: Scored(library()), layers, images(224)),
    )


def _language(
    name: str,
    batches: tuple[int, int, int],
    small: Callable[[], nn.Module],
    own: Callable[[], nn.Module],
    library: Callable[[], nn.Module],
    layers: tuple[Layers, Layers],
    tensors: int,
) -> Whole:
    return Whole(
        name,
        dict(zip((FULL, MIN_CUT, NO), batches, strict=True)),
        ModelSource(small, layers[0], words(64, tensors)),
        ModelSource(own, layers[0], words(512, tensors)),
        ModelSource(library, layers[1], words(512, tensors)),
    )


_GPT2 = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "context": 512}
_SMALL_GPT2 = {"layers": 2, "width": 128, "heads": 4, "vocabulary": 512, "context": 64}
_ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_MOBILE, _SQUEEZED = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3)), ((1, 16, 1, 1, 3), (6, 24, 2, 2, 5))

MODELS = (
    _vision(
        "densenet121",
        (2880, 512, 384),
        partial(published.densenet121, (2, 2), 16),
        published.densenet121,
        partial(_torchvision, "densenet121"),
        kinds("_DenseLayer", "_Transition"),
    ),
    _language(
        "hf_Albert",
        (1088, 64, 48),
        partial(Albert, 2, 128, 4, 512, 64),
        partial(Albert, 12, 768, 12, 30000, 512),
        partial(_transformers, "AlbertForMaskedLM AlbertConfig", MaskedWords, **_ALBERT),
        (children("bert.layers"), kinds("AlbertLayer")),
        2,
    ),
    _language(
        "hf_GPT2",
        (480, 56, 32),
        partial(GPT2, **_SMALL_GPT2),
        partial(GPT2, dropout=0.1, **_GPT2),
        partial(_transformers, "GPT2LMHeadModel GPT2Config", NextToken),
        (children("blocks"), kinds("GPT2Block")),
        1,
    ),
    _vision(
        "mobilenet_v2",
        (5504, 768, 512),
        partial(published.mobile, _MOBILE, nn.ReLU6, squeezes=False),
        published.mobilenet_v2,
        partial(_torchvision, "mobilenet_v2"),
        children("classifier.features"),
    ),
    _vision(
        "resnet18",
        (5504, 2560, 1536),
        partial(workloads.ResNet, (1, 1), 16, 10),
        partial(workloads.ResNet, (2, 2, 2, 2), 64, 1000),
        partial(_torchvision, "resnet18"),
        kinds("BasicBlock"),
        lambda model: [model.get_submodule("stem"), *model.get_submodule("blocks").children()],
    ),
    _vision(
        "timm_efficientnet",
        (5120, 768, 512),
        partial(published.mobile, _SQUEEZED, nn.SiLU, squeezes=True),
        published.efficientnet_b0,
        partial(_timm, "efficientnet_b0"),
        kinds("DepthwiseSeparableConv", "InvertedResidual"),
    ),
    _vision(
        "timm_regnet",
        (5120, 768, 512),
        partial(published.bottleneck_net, (1, 2), (24, 56), group_width=8, expansion=1, stem=32),
        published.regnetx,
        partial(_timm, "regnety_120"),
        kinds("Bottleneck"),
    ),
    _vision(
        "timm_resnest",
        (4096, 896, 768),
        partial(resnest, (1, 1), 32),
        resnest,
        partial(_timm, "resnest14d"),
        kinds("ResNestBottleneck"),
    ),
    _vision(
        "timm_vovnet",
        (4352, 768, 512),
        partial(vovnet, (1, 1), (32, 40), (64, 96), 16, 3),
        vovnet,
        partial(_timm, "vovnet39a"),
        kinds("OsaBlock"),
    ),
    _vision(
        "vgg16",
        (4096, 512, 512),
        lambda: _without_dropout(_staged(published.VGG((1, 1, 1), (16, 32, 64), 128, 64))),
        lambda: _staged(published.VGG((2, 2, 3, 3, 3))),
        lambda: _staged(_torchvision("vgg16")),
        children("classifier.features"),
    ),
)
"""The models in the order of Table 2, whose columns are full-checkpoint, min-cut and no-checkpoint."""
