"""Makes models of the `transformers` package at their published sizes, with no weights: nothing to download."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models import setups
from experiments.models.recipe import Inputs, Recipe, images, on_meta, tokens
from remat import NotInstalled
from remat.words import pip_install


class NextToken(nn.Module):
    """Applies a decoder, and returns the loss of the next token."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, words: Tensor) -> Tensor:
        logits = self.decoder(input_ids=words, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


class MaskedWords(nn.Module):
    """Applies an encoder, and returns the loss of the words that are labelled."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.encoder(input_ids=words).logits.flatten(0, 1), labels.flatten())


class Translation(nn.Module):
    """Applies an encoder and a decoder, and returns the loss of the decoder's next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, decoded: Tensor, labels: Tensor) -> Tensor:
        out = self.model(input_ids=words, decoder_input_ids=decoded, use_cache=False)
        return F.cross_entropy(out.logits.flatten(0, 1), labels.flatten())


class Labelled(nn.Module):
    """Classifies images, and returns the loss."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(pixel_values=image).logits, label)


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


@dataclass(frozen=True)
class PackageModel:
    """Names a model of the package and its sizes.

    Attributes:
        name, model, sizes, cite, family, dtype: of its `Recipe`.
        head: adds the loss.
        inputs: of the head.
        classes: names of the model and of its configuration; of `options` the latter is made.
        attention: which of the package's implementations.
        adapted: changes the model to how it is trained.
        device, within: of its `Recipe`.
    """

    name: str
    model: str
    sizes: str
    cite: str
    head: type[nn.Module]
    inputs: Inputs
    classes: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attention: str | None = "eager"
    family: str = "transformer"
    dtype: torch.dtype = torch.float32
    adapted: Callable[[nn.Module], nn.Module] = _as_it_is
    device: str = ""
    within: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def recipe(self) -> Recipe:
        """A recipe that makes the model when it is called, not before: listing needs no package."""
        written = {None: "", "eager": ", attention written out", "sdpa": ", attention as one operator"}
        return Recipe(
            name=f"hf-{self.name}",
            family=self.family,
            model=self.model + written[self.attention],
            sizes=self.sizes,
            make=lambda: on_meta(self._build, self.inputs, self.dtype),
            cite=self.cite,
            package="transformers",
            dtype=self.dtype,
            device=self.device,
            within=self.within,
        )

    def _build(self) -> nn.Module:
        try:
            package = import_module("transformers")
        except ImportError as error:
            raise NotInstalled(f"{self.name} is made of transformers: {pip_install('corpus')} ({error})") from None
        model, config = self.classes.split()
        settings = getattr(package, config)(**self.options)
        if self.attention is not None:
            settings._attn_implementation = self.attention
        return self.adapted(self.head(getattr(package, model)(settings)))


def hugging_face() -> list[Recipe]:
    """Makes recipes that need the package only when they are called."""
    return [model.recipe for model in (*_ENCODERS, *_DECODERS, *_VISION, *_AS_TRAINED)]


# On the CPU, attention with dropout is never one operator: torch writes it out.
_LENGTH = "batch 16, 512 tokens"
_MASKED = (tokens(16, 512), tokens(16, 512))
_BERT = "Devlin et al. 2019, BERT"
_LARGE = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_T5 = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12}

_ENCODERS = (
    PackageModel("bert-base", "BERT base", _LENGTH, _BERT, MaskedWords, _MASKED, "BertForMaskedLM BertConfig"),
    PackageModel(
        "bert-large-sdpa", "BERT large, no dropout of attention", _LENGTH, _BERT, MaskedWords, _MASKED,
        "BertForMaskedLM BertConfig", _LARGE, attention="sdpa",
    ),
    PackageModel(
        "albert-base", "ALBERT base, 12 layers of one set of weights", _LENGTH, "Lan et al. 2020, ALBERT",
        MaskedWords, _MASKED, "AlbertForMaskedLM AlbertConfig", _ALBERT,
    ),
    PackageModel(
        "t5-base", "T5 base", "batch 8, 512 tokens in, 114 out", "Raffel et al. 2020, T5", Translation,
        (tokens(8, 512), tokens(8, 114), tokens(8, 114)), "T5ForConditionalGeneration T5Config", _T5,
    ),
)  # fmt: skip

_GPT2 = "Radford et al. 2019, Language models are unsupervised multitask learners"
_LONG = "batch 8, 1024 tokens"
_TINY = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
_TINY |= {"num_attention_heads": 32, "num_key_value_heads": 4}
LLAMA = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
LLAMA |= {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}

_DECODERS = (
    PackageModel("gpt2", "GPT-2 small", _LONG, _GPT2, NextToken, (tokens(8, 1024),), "GPT2LMHeadModel GPT2Config"),
    PackageModel(
        "gpt2-sdpa", "GPT-2 small, no dropout of attention", _LONG, _GPT2, NextToken, (tokens(8, 1024),),
        "GPT2LMHeadModel GPT2Config", {"attn_pdrop": 0.0}, attention="sdpa",
    ),
    PackageModel(
        "tinyllama-1.1b", "TinyLlama 1.1B: RMSNorm, SwiGLU, grouped queries", "batch 4, 2048 tokens",
        "Zhang et al. 2024, TinyLlama", NextToken, (tokens(4, 2048),), "LlamaForCausalLM LlamaConfig", _TINY,
    ),
    PackageModel(
        "llama3-8b-sdpa", "Llama 3 8B: RMSNorm, SwiGLU, grouped queries", "batch 1, 8192 tokens",
        "Grattafiori et al. 2024, The Llama 3 herd of models", NextToken, (tokens(1, 8192),),
        "LlamaForCausalLM LlamaConfig", LLAMA, attention="sdpa", dtype=torch.bfloat16,
    ),
    PackageModel(
        "mamba-130m", "Mamba 130M, 6 of its 24 layers, the scan written out", "batch 8, 64 tokens",
        "Gu and Dao 2023, Mamba", NextToken, (tokens(8, 64),), "MambaForCausalLM MambaConfig",
        {"num_hidden_layers": 6}, attention=None, family="recurrent",
    ),
)  # fmt: skip

_HERD = "Grattafiori et al. 2024, The Llama 3 herd of models"
_GROUPED = "RMSNorm, SwiGLU, grouped queries"
_LLAMA_CLASSES = "LlamaForCausalLM LlamaConfig"
_LLAMA_70B = LLAMA | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 20}
_LLAMA_70B |= {"num_attention_heads": 64}
_MIXTRAL = {"num_hidden_layers": 8, "experts_implementation": "grouped_mm"}
_MAMBA2 = {"hidden_size": 768, "num_hidden_layers": 12, "num_heads": 24, "n_groups": 1, "vocab_size": 50288}
_MAMBA2 |= {"tie_word_embeddings": True}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def llama3(name: str, model: str, length: int, layers: int = 32, **how: Any) -> PackageModel:
    """Describes Llama 3 8B in bfloat16, of one sequence, attention as one operator."""
    sizes = f"batch 1, {length} tokens"
    return PackageModel(
        name, model, sizes, how.pop("cite", _HERD), NextToken, (tokens(1, length),), _LLAMA_CLASSES,
        LLAMA | {"num_hidden_layers": layers}, attention="sdpa", dtype=torch.bfloat16, **how,
    )  # fmt: skip


_AS_TRAINED = (
    llama3("llama3-8b-32k", f"Llama 3 8B, 4 of its 32 layers: {_GROUPED}", 32768, layers=4),
    llama3(
        "llama3-8b-lora", "Llama 3 8B, 4 of its 32 layers, frozen, adapters of rank 16 at all linear layers of these",
        8192, layers=4, cite="Hu et al. 2021, LoRA",
        adapted=partial(setups.with_adapters, layers=LINEAR, rank=16, alpha=32.0, dropout=0.05),
    ),
    llama3("llama3-8b-h100", f"Llama 3 8B: {_GROUPED}", 8192, device="h100"),
    llama3(
        "llama3-8b-sharded", f"Llama 3 8B, each parameter sharded over {setups.RANKS} ranks and gathered where used",
        8192, cite="Zhang et al. 2024, SimpleFSDP", adapted=setups.sharded, within=setups.ranks,
    ),
    PackageModel(
        "llama3-70b", f"Llama 3 70B, 20 of its 80 layers: {_GROUPED}", "batch 1, 8192 tokens", _HERD, NextToken,
        (tokens(1, 8192),), _LLAMA_CLASSES, _LLAMA_70B, attention="sdpa", dtype=torch.bfloat16,
    ),
    PackageModel(
        "mixtral-8x7b",
        "Mixtral 8x7B, 8 of its 32 layers: of 8 experts each token goes to 2, by grouped matrix products",
        "batch 1, 4096 tokens", "Jiang et al. 2024, Mixtral of experts", NextToken, (tokens(1, 4096),),
        "MixtralForCausalLM MixtralConfig", _MIXTRAL, attention="sdpa", dtype=torch.bfloat16,
    ),
    PackageModel(
        "mamba2-130m", "Mamba-2 130M, 12 of its 24 layers, the scan in chunks of 256 written out, bfloat16 autocast",
        "batch 8, 2048 tokens", "Dao and Gu 2024, Mamba-2", NextToken, (tokens(8, 2048),),
        "Mamba2ForCausalLM Mamba2Config", _MAMBA2, attention=None, family="recurrent", adapted=setups.Autocast,
    ),
)  # fmt: skip

_SIZE = "batch 64, images of 224 x 224"

_VISION = (
    PackageModel(
        "vit-base", "ViT-B/16", _SIZE, "Dosovitskiy et al. 2021, ViT", Labelled, images(64),
        "ViTForImageClassification ViTConfig", {"num_labels": 1000},
    ),
    PackageModel(
        "swin-tiny", "Swin-T, without stochastic depth", _SIZE, "Liu et al. 2021, Swin transformer", Labelled,
        images(64), "SwinForImageClassification SwinConfig", {"num_labels": 1000, "drop_path_rate": 0.0},
    ),
    PackageModel(
        "convnext-tiny", "ConvNeXt-T", _SIZE, "Liu et al. 2022, A ConvNet for the 2020s", Labelled, images(64),
        "ConvNextForImageClassification ConvNextConfig", {"num_labels": 1000}, attention=None, family="convolution",
    ),
)  # fmt: skip
