"""Makes models of 2024 and later of the `transformers` package, and ways in which they are trained."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.models import setups
from experiments.models.hugging_face import LINEAR, LLAMA, NextToken, PackageModel, llama3
from experiments.models.recipe import Recipe, floats, tokens


class Stage(nn.Module):
    """Applies layers from the middle of a decoder, as a stage of a pipeline: its gradient comes from the next stage."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.decoder.embed_tokens = self.decoder.norm = nn.Identity()  # other stages have them

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(inputs_embeds=x, use_cache=False).last_hidden_state


class Pictured(nn.Module):
    """Returns the loss of a reply to a picture and a question; all of the reply's words see these two as a whole."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor, question: Tensor, reply: Tensor) -> Tensor:
        model: Any = self.model
        words = model.get_input_embeddings()(torch.cat([question, reply], 1))
        x = torch.cat([model.get_image_features(image).pooler_output, words], 1)
        length, answered = x.shape[1], reply.shape[1]
        place = torch.arange(length, device=x.device)
        seen = (place <= place[:, None]) | (place < length - answered)
        decoder = model.model.language_model
        x = decoder(inputs_embeds=x, attention_mask=seen[None, None], use_cache=False).last_hidden_state
        logits = model.lm_head(x[:, -answered - 1 : -1])
        return F.cross_entropy(logits.flatten(0, 1).float(), reply.flatten())


def recent() -> list[Recipe]:
    """Makes recipes that need the package only when they are called."""
    return [model.recipe for model in _MODELS]


_ACTIVATIONS = partial(torch.empty, 1, 8192, 4096, dtype=torch.bfloat16, requires_grad=True)
_QWEN3 = {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 8, "head_dim": 128, "norm_topk_prob": True}
_QWEN3 |= {"num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}
_QWEN3 |= {"moe_intermediate_size": 768, "experts_implementation": "grouped_mm"}
_DEEPSEEK = {"num_hidden_layers": 6, "experts_implementation": "grouped_mm"}  # the package's defaults are its sizes
_GEMMA3 = {"vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 18}
_GEMMA3 |= {"num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512, "max_position_embeddings": 32768}
_SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "image_size": 224}
_SIGLIP |= {"num_hidden_layers": 18, "num_attention_heads": 16, "patch_size": 14, "vision_use_head": False}
_GEMMA = {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 12}
_GEMMA |= {"num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 257152}

_MODELS = (
    PackageModel(
        "qwen3-30b-a3b",
        "Qwen3 30B-A3B, 8 of its 48 layers: of 128 experts each token goes to 8, by grouped matrix products",
        "batch 8, 4096 tokens", "Yang et al. 2025, Qwen3", NextToken, (tokens(8, 4096),),
        "Qwen3MoeForCausalLM Qwen3MoeConfig", _QWEN3, attention="sdpa", dtype=torch.bfloat16,
    ),
    PackageModel(
        "deepseek-v3-h100",
        "DeepSeek-V3, 6 of its 61 layers, 3 of them with 256 experts, for an H100: queries, keys and values of low "
        "rank, in PyTorch's memory-efficient kernel",
        "batch 8, 4096 tokens", "DeepSeek-AI 2024, DeepSeek-V3", NextToken, (tokens(8, 4096),),
        "DeepseekV3ForCausalLM DeepseekV3Config", _DEEPSEEK, attention="sdpa", dtype=torch.bfloat16, device="h100",
        within=partial(sdpa_kernel, SDPBackend.EFFICIENT_ATTENTION),  # cuDNN's depends on its version
    ),
    PackageModel(
        "gemma3-1b", "Gemma 3 1B, 18 of its 26 layers: five of a sliding window of 512 tokens to each of all tokens",
        "batch 2, 4096 tokens", "Gemma team 2025, Gemma 3", NextToken, (tokens(2, 4096),),
        "Gemma3ForCausalLM Gemma3TextConfig", _GEMMA3, attention="sdpa", dtype=torch.bfloat16,
    ),
    PackageModel(
        "paligemma-3b", "PaliGemma 3B, 18 of 27 layers of its vision encoder SigLIP and 12 of 18 of its decoder Gemma",
        "batch 8, images of 224 x 224, 64 tokens in, 192 out", "Beyer et al. 2024, PaliGemma", Pictured,
        (floats(8, 3, 224, 224, dtype=torch.bfloat16), tokens(8, 64), tokens(8, 192)),
        "PaliGemmaForConditionalGeneration PaliGemmaConfig", {"vision_config": _SIGLIP, "text_config": _GEMMA},
        attention="sdpa", dtype=torch.bfloat16,
    ),
    llama3(
        "llama3-8b-float8-h100", "Llama 3 8B, 4 of its 32 layers, products of their linear layers in float8, for an "
        "H100", 8192, layers=4, cite="Micikevicius et al. 2022, FP8 formats for deep learning", device="h100",
        adapted=partial(setups.in_float8, layers=LINEAR),
    ),
    PackageModel(
        "llama3-8b-stage", "Llama 3 8B, 8 layers from its middle as a stage of a pipeline: takes and returns "
        "activations, and their gradients", "batch 1, 8192 tokens", "Huang et al. 2019, GPipe", Stage, (_ACTIVATIONS,),
        "LlamaModel LlamaConfig", LLAMA | {"num_hidden_layers": 8}, attention="sdpa", dtype=torch.bfloat16,
    ),
)  # fmt: skip
