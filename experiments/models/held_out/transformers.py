"""Makes models of the `transformers` package, a layer or two of each, with random weights: nothing to download."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from experiments.models.hugging_face import Labelled, MaskedWords, NextToken, Translation
from experiments.models.workloads import Sample
from remat import NotInstalled
from remat.words import pip_install

_BATCH, _LENGTH, _WORDS = 4, 64, 512
_TEXT: dict[str, Any] = {"vocab_size": _WORDS, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
_TEXT |= {"intermediate_size": 256, "max_position_embeddings": 128, "pad_token_id": 0}
_IMAGE: dict[str, Any] = {"image_size": 64, "num_labels": 10}


def _maker(
    head: Callable[[nn.Module], nn.Module], classes: str, inputs: int, options: dict[str, Any], attention: str | None
) -> Callable[[], Sample]:
    """Returns a function that makes a model when it is called.

    Args:
        head: adds the loss.
        classes: names of the model and of its configuration.
        inputs: how many tensors of words the model takes; 0 for one that takes images and labels.
        options: of the configuration.
        attention: which of the package's implementations; None where there is one.
    """

    def make() -> Sample:
        try:
            package = import_module("transformers")
        except ImportError as error:
            raise NotInstalled(f"{classes} needs transformers: {pip_install('corpus')} ({error})") from None
        model, config = classes.split()
        settings = getattr(package, config)(**options)
        if attention is not None:
            settings._attn_implementation = attention
        module = head(getattr(package, model)(settings)).train()
        if not inputs:
            return module, (torch.randn(_BATCH, 3, 64, 64), torch.randint(10, (_BATCH,)))
        return module, tuple(torch.randint(1, _WORDS, (_BATCH, _LENGTH)) for _ in range(inputs))

    return make


def _decoder(classes: str, attention: str = "eager", **options: Any) -> Callable[[], Sample]:
    return _maker(NextToken, classes, 1, options, attention)


def _encoder(classes: str, attention: str = "eager", **options: Any) -> Callable[[], Sample]:
    return _maker(MaskedWords, classes, 2, _TEXT | options, attention)


def _vision(classes: str, attention: str | None, **options: Any) -> Callable[[], Sample]:
    return _maker(Labelled, classes, 0, _IMAGE | options, attention)


_GPT2 = {"vocab_size": _WORDS, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128, "eos_token_id": 1}
_GPT2 |= {"bos_token_id": 1}
_T5 = {"vocab_size": _WORDS, "d_model": 128, "d_ff": 256, "d_kv": 32, "num_layers": 1, "num_heads": 4}
_VIT = {"patch_size": 8, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_SEGMENTS = {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 64}
_GROUPED = _TEXT | {"num_key_value_heads": 2, "head_dim": 32}

MODELS: dict[str, Callable[[], Sample]] = {
    "HF GPT-2: dropout": _decoder("GPT2LMHeadModel GPT2Config", **_GPT2),
    "HF BERT: dropout": _encoder("BertForMaskedLM BertConfig", num_hidden_layers=2),
    "HF Llama": _decoder("LlamaForCausalLM LlamaConfig", "sdpa", **_GROUPED),
    "HF T5: relative positions": _maker(Translation, "T5ForConditionalGeneration T5Config", 3, _T5, "eager"),
    "HF ViT": _vision("ViTForImageClassification ViTConfig", "sdpa", **_VIT),
    "HF DeBERTa: disentangled attention": _encoder(
        "DebertaV2ForMaskedLM DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "HF Gemma 2: soft caps, sliding window": _decoder(
        "Gemma2ForCausalLM Gemma2Config", **_GROUPED | {"num_hidden_layers": 2, "sliding_window": 16}
    ),
    "HF BLOOM: ALiBi": _decoder(
        "BloomForCausalLM BloomConfig", vocab_size=_WORDS, hidden_size=128, n_layer=2, n_head=4
    ),
    "HF GPT-NeoX: parallel residual, partial rotary": _decoder("GPTNeoXForCausalLM GPTNeoXConfig", **_TEXT),
    "HF ConvNeXt V2: response normalization": _vision(
        "ConvNextV2ForImageClassification ConvNextV2Config", None, hidden_sizes=[32, 64, 64, 64], depths=[1, 1, 1, 1]
    ),
    "HF SegFormer: reduced attention": _vision("SegformerForImageClassification SegformerConfig", None, **_SEGMENTS),
}
"""Makers of the models, by what these contain."""
