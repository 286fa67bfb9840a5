"""Small models of other people's packages, with random weights; each returns its loss.

A package that is not installed raises ImportError, as its maker is called.
"""

from __future__ import annotations

# The packages have no types, or are not there.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Any, ...]]


def language_sizes(*, width: int, inner: int, layers: int, heads: int, key_heads: int, words: int) -> dict[str, Any]:
    """Names the sizes of a language model as `transformers` does."""
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": words,
    }


_TEXT = language_sizes(width=64, inner=128, layers=2, heads=4, key_heads=2, words=128) | {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
_VIT: dict[str, Any] = {"num_classes": 10, "dim": 64, "depth": 3, "heads": 4, "mlp_dim": 128}


class Loss(nn.Module):
    """Gives a number that falls with what a model answers: its own loss, or the mean square of all answers."""

    def __init__(self, model: nn.Module, **named: Any) -> None:
        super().__init__()
        self.model, self.named = model, named

    def forward(self, *args: Any) -> Tensor:
        answer = self.model(*args, **self.named)
        if (loss := getattr(answer, "loss", None)) is not None:
            return loss
        answer = getattr(answer, "sample", answer)
        parts = answer if isinstance(answer, (tuple, list)) else [answer]
        return torch.stack([part.float().square().mean() for part in parts if isinstance(part, Tensor)]).sum()


class LanguageLoss(nn.Module):
    """Predicts the tokens that it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss


def language(kind: str, *, model: str = "", **options: Any) -> Callable[[], Made]:
    """A language model of `transformers`, by the beginning of the names of its classes."""

    def make() -> Made:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**(_TEXT | options))
        head = "ForMaskedLM" if kind == "ModernBert" else "ForCausalLM"
        made = getattr(transformers, f"{model or kind}{head}")(config)
        return LanguageLoss(made), (torch.randint(4, 128, (2, 32)),)

    return make


def whisper() -> Made:
    """Speech to text."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    size = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    wide = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 128, "num_mel_bins": 16}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(**size, **wide, **ends, max_source_positions=32, use_cache=False)
    labels = torch.randint(4, 128, (2, 24))
    return Loss(WhisperForConditionalGeneration(config), labels=labels), (torch.randn(2, 16, 64),)


def clip() -> Made:
    """Images beside texts."""
    from transformers import CLIPConfig, CLIPModel

    text = {k: v for k, v in _TEXT.items() if k not in ("num_key_value_heads", "use_cache")}
    image = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {**image, "image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))
    tokens = torch.randint(4, 128, (4, 16))
    return Loss(model, return_loss=True), (tokens, torch.randn(4, 3, 32, 32))


def vit(module: str, name: str, **options: Any) -> Callable[[], Made]:
    """A model of `vit-pytorch`."""

    def make() -> Made:
        if (
            "vit_pytorch" not in sys.modules
        ):  # the package itself imports torchvision, for which most modules have no use
            package, found = ModuleType("vit_pytorch"), find_spec("vit_pytorch")
            if found is None:
                raise ImportError("No module named 'vit_pytorch'")
            package.__path__ = list(found.submodule_search_locations or [])
            sys.modules["vit_pytorch"] = package
        size = {("img_size" if name == "CCT" else "image_size"): 32}
        model = getattr(import_module(f"vit_pytorch.{module}"), name)(**(options | size))
        return Loss(model), (torch.randn(4, 3, 32, 32),)

    return make


def x_decoder(**options: Any) -> Callable[[], Made]:
    """A language model of `x-transformers`."""

    def make() -> Made:
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        layers = Decoder(dim=64, depth=3, heads=4, attn_dim_head=16, **options)
        model = AutoregressiveWrapper(TransformerWrapper(num_tokens=128, max_seq_len=64, attn_layers=layers))
        return Loss(model), (torch.randint(0, 128, (2, 33)),)

    return make


def x_encoder() -> Made:
    """An encoder with normalized queries and keys."""
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=64, depth=3, heads=4, attn_dim_head=16, ff_glu=True, attn_qk_norm=True)
    return Loss(TransformerWrapper(num_tokens=128, max_seq_len=64, attn_layers=layers)), (
        torch.randint(0, 128, (2, 32)),
    )


def unet_condition() -> Made:
    """The network of Stable Diffusion."""
    from diffusers import UNet2DConditionModel

    blocks = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    sizes = {"sample_size": 16, "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32}
    model = UNet2DConditionModel(**sizes, **blocks, attention_head_dim=8, norm_num_groups=8)
    return Loss(model), (torch.randn(2, 4, 16, 16), torch.tensor([5, 9]), torch.randn(2, 7, 32))


def unet_2d() -> Made:
    """A network that takes noise away, with attention."""
    from diffusers import UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = UNet2DModel(sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, **blocks)
    return Loss(model), (torch.randn(2, 3, 16, 16), torch.tensor([5, 9]))


def autoencoder() -> Made:
    """Images to few numbers and back."""
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    model = AutoencoderKL(block_out_channels=(32, 64), norm_num_groups=8, **blocks)
    return Loss(model), (torch.randn(2, 3, 32, 32),)


def dit() -> Made:
    """A transformer over patches of noise."""
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8, patch_size=2
    )
    return Loss(model), (torch.randn(2, 4, 8, 8), torch.tensor([5, 9]), torch.tensor([1, 2]))


def graph_network(name: str, **options: Any) -> Callable[[], Made]:
    """A network over a graph, of `torch_geometric`."""

    def make() -> Made:
        from torch_geometric.nn import models

        model = getattr(models, name)(16, 32, num_layers=3, out_channels=8, **options)
        return Loss(model), (torch.randn(64, 16), torch.randint(0, 64, (2, 256)))

    return make


def segmentation(name: str) -> Callable[[], Made]:
    """A network of `segmentation-models-pytorch`, over images."""

    def make() -> Made:
        import segmentation_models_pytorch as smp

        model = getattr(smp, name)("resnet18", encoder_weights=None, in_channels=3, classes=4)
        return Loss(model), (torch.randn(2, 3, 64, 64),)

    return make


def medical(name: str, *, size: int = 32, **options: Any) -> Callable[[], Made]:
    """A network of `monai`, over images of one channel."""

    def make() -> Made:
        from monai.networks import nets

        return Loss(getattr(nets, name)(**options)), (torch.randn(2, 1, size, size),)

    return make


def gaussian_process() -> Made:
    """A Gaussian process, by its marginal likelihood."""
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = torch.rand(24, 3, dtype=torch.float64)
    model = SingleTaskGP(x, x.sin().sum(-1, keepdim=True)).train()
    likelihood = ExactMarginalLogLikelihood(model.likelihood, model)

    class Negative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.likelihood = likelihood

        def forward(self) -> Tensor:
            return -self.likelihood(model(*model.train_inputs), model.train_targets)

    return Negative(), ()


class Quantized(nn.Module):
    """Codes of `vector-quantize-pytorch` between two layers."""

    def __init__(self) -> None:
        super().__init__()
        from vector_quantize_pytorch import FSQ

        self.ahead, self.behind, self.codes = nn.Linear(32, 4), nn.Linear(4, 32), FSQ(levels=[8, 5, 5, 5])

    def forward(self, x: Tensor) -> Tensor:
        codes, _ = self.codes(functional.gelu(self.ahead(x)))
        return (self.behind(codes) - x).square().mean()


FOREIGN: dict[str, Callable[[], Made]] = {
    "transformers Qwen3": language("Qwen3", head_dim=16, attention_dropout=0.1),
    "transformers Qwen3, 4 layers": language("Qwen3", head_dim=16, num_hidden_layers=4),
    "transformers Gemma 3": language("Gemma3Text", model="Gemma3", head_dim=16, sliding_window=16),
    "transformers Mistral": language("Mistral", sliding_window=16),
    "transformers Llama": language("Llama"),
    "transformers DeepSeek-V3": language(
        "DeepseekV3",
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        kv_lora_rank=16,
        q_lora_rank=32,
        qk_rope_head_dim=8,
        v_head_dim=16,
        qk_nope_head_dim=8,
        num_key_value_heads=4,
    ),
    "transformers Phi": language("Phi"),
    "transformers ModernBERT": language("ModernBert", max_position_embeddings=64),
    "transformers RWKV": language("Rwkv", attention_hidden_size=64, context_length=64),
    "transformers Whisper": whisper,
    "transformers CLIP": clip,
    "vit-pytorch ViT": vit("vit", "ViT", patch_size=8, **_VIT),
    "vit-pytorch SimpleViT": vit("simple_vit", "SimpleViT", patch_size=8, **_VIT),
    "vit-pytorch CaiT": vit("cait", "CaiT", patch_size=8, cls_depth=1, **_VIT),
    "vit-pytorch DeepViT": vit("deepvit", "DeepViT", patch_size=8, **_VIT),
    "vit-pytorch CCT": vit(
        "cct", "CCT", embedding_dim=64, n_conv_layers=1, num_layers=2, num_heads=4, mlp_ratio=2.0, num_classes=10
    ),
    "x-transformers decoder, rotary": x_decoder(rotary_pos_emb=True),
    "x-transformers decoder, ALiBi, GLU": x_decoder(alibi_pos_bias=True, ff_glu=True, use_rmsnorm=True),
    "x-transformers encoder": x_encoder,
    "diffusers UNet2DConditionModel": unet_condition,
    "diffusers UNet2DModel": unet_2d,
    "diffusers AutoencoderKL": autoencoder,
    "diffusers DiT": dit,
    "torch_geometric GCN": graph_network("GCN"),
    "torch_geometric GAT": graph_network("GAT", heads=4),
    "torch_geometric GIN": graph_network("GIN"),
    "segmentation-models-pytorch Unet": segmentation("Unet"),
    "segmentation-models-pytorch FPN": segmentation("FPN"),
    "monai UNet": medical(
        "UNet", spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1
    ),
    "monai SegResNet": medical("SegResNet", spatial_dims=2, init_filters=8, in_channels=1, out_channels=2),
    "monai SwinUNETR": medical(
        "SwinUNETR", size=64, in_channels=1, out_channels=2, feature_size=12, spatial_dims=2, depths=(1, 1, 1, 1)
    ),
    "monai AttentionUnet": medical(
        "AttentionUnet", spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2)
    ),
    "monai ViT": medical(
        "ViT",
        spatial_dims=2,
        in_channels=1,
        img_size=32,
        patch_size=8,
        hidden_size=48,
        mlp_dim=96,
        num_layers=2,
        num_heads=4,
    ),
    "botorch SingleTaskGP": gaussian_process,
    "vector-quantize-pytorch FSQ": lambda: (Quantized(), (torch.randn(4, 16, 32),)),
}
