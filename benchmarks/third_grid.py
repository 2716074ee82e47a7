"""Architectures that no formula was ever written for: written down and committed before any of them was predicted.

Some are Transformers' by configuration, some are plain modules. A row whose prediction is off stays as it is; what changes is
the package.
"""

from collections.abc import Callable

import torch
import transformers as tf
from torch import nn
from torch.nn import functional as F

from benchmarks.grids import Case
from course_utils.memory.step.recipe import Recipe


def _config(family: str, task: str, **sizes):
    """The configuration of Transformers' `{family}For{task}`."""
    return getattr(tf, f"{family}Config")(**sizes, architectures=[f"{family}For{task}"])


_LLAMA_LIKE = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "vocab_size": 3000,
    "max_position_embeddings": 1024,
}
_GROUPED = {**_LLAMA_LIKE, "num_key_value_heads": 2}
_BERT_LIKE = {**_LLAMA_LIKE, "intermediate_size": 768}
_VISION = {
    "hidden_size": 192,
    "intermediate_size": 640,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "image_size": 96,
    "patch_size": 8,
}


def _t5():
    return _config(
        "T5", "ConditionalGeneration", d_model=192, d_ff=600, d_kv=32, num_layers=3, num_decoder_layers=4,
        num_heads=6, vocab_size=3000, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip


def _bart():
    return _config(
        "Bart", "ConditionalGeneration", d_model=128, encoder_layers=2, decoder_layers=2, vocab_size=2000,
        encoder_ffn_dim=300, decoder_ffn_dim=300, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=512,
    )  # fmt: skip


def _whisper():
    return _config(
        "Whisper", "ConditionalGeneration", d_model=128, encoder_layers=2, decoder_layers=2, vocab_size=2000,
        encoder_ffn_dim=400, decoder_ffn_dim=400, encoder_attention_heads=4, decoder_attention_heads=4, num_mel_bins=40,
        max_source_positions=200, max_target_positions=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def _clip():
    text = {
        "hidden_size": 128,
        "intermediate_size": 400,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 2000,
    }
    vision = {**_VISION, "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4}
    text |= {"eos_token_id": 1999}
    return tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=96, architectures=["CLIPModel"])


class _UNet(nn.Module):
    """Down, up, and the way across; mean squared error to its own input."""

    def __init__(self, width: int = 24):
        super().__init__()
        widths = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(self._stage(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths[1:-1], widths[2:], strict=False)
        )
        self.across = nn.ModuleList(self._stage(2 * a, a) for a in widths[1:-1])
        self.head = nn.Conv2d(width, 3, 1)

    @staticmethod
    def _stage(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(4, after),
            nn.SiLU(),
            nn.Conv2d(after, after, 3, padding=1),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x, skips = pictures, []
        for index, stage in enumerate(self.down):
            x = stage(F.max_pool2d(x, 2) if index else x)
            skips.append(x)
        for up, across, other in zip(reversed(self.up), reversed(self.across), skips[-2::-1], strict=True):
            x = across(torch.cat([up(x), other], 1))
        return F.mse_loss(self.head(x), pictures)


class _Recurrent(nn.Module):
    """A language model of recurrent layers: the library's fused ones, or a cell called token by token."""

    def __init__(self, kind: str, width: int = 160, vocabulary: int = 1500):
        super().__init__()
        self.embed, self.head = (
            nn.Embedding(vocabulary, width),
            nn.Linear(width * (1 + (kind == "both ways")), vocabulary),
        )
        self.cell = nn.GRUCell(width, width) if kind == "cell" else None
        self.layers = (
            None if self.cell else nn.LSTM(width, width, 2, batch_first=True, bidirectional=kind == "both ways")
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        if self.cell is None:
            hidden = self.layers(x)[0]
        else:
            state, states = x.new_zeros(len(x), x.shape[-1]), []
            for token in x.unbind(1):
                state = self.cell(token, state)
                states.append(state)
            hidden = torch.stack(states, 1)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), ids.flatten())


class _Encoder(nn.Module):
    """PyTorch's own encoder, which deep-copies its first layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(1500, 192), nn.Linear(192, 1500)
        layer = nn.TransformerEncoderLayer(192, 6, 500, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.encoder(self.embed(ids))).flatten(0, 1), ids.flatten())


def _ids(vocabulary: int = 1500) -> Callable:
    return lambda b, s: torch.randint(vocabulary, (b, s))


def _mask(vocabulary: int, full: bool = True) -> Callable:
    """Token ids with the mask that a tokenizer gives: of ones where every row is full."""

    def batch(b: int, s: int) -> dict:
        ids, mask = torch.randint(5, vocabulary, (b, s)), torch.ones(b, s, dtype=torch.int64)
        if not full:
            mask[0, s // 2 :] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}

    return batch


def _pictures(side: int) -> Callable:
    return lambda b, s: torch.randn(b, 3, side, side)


THIRD = [
    Case("BERT, padded", _config("Bert", "MaskedLM", **_BERT_LIKE), Recipe(batch=6, sequence=120), _mask(3000, False)),
    Case("BERT", _config("Bert", "MaskedLM", **_BERT_LIKE), Recipe("adamw-foreach", "autocast", 6, 120)),
    Case("ALBERT", _config("Albert", "MaskedLM", **_BERT_LIKE), Recipe(precision="bf16", batch=5, sequence=144)),
    Case("DeBERTa", _config("DebertaV2", "MaskedLM", **_BERT_LIKE), Recipe(batch=3, sequence=100)),
    Case("ModernBERT", _config("ModernBert", "MaskedLM", **_BERT_LIKE, pad_token_id=0), Recipe(batch=3, sequence=200)),
    Case("T5", _t5(), Recipe(batch=4, sequence=90)),
    Case("T5", _t5(), Recipe("adafactor-transformers", batch=4, sequence=90, checkpointing=True, accumulation=2)),
    Case("BART", _bart(), Recipe("adamw8bit", batch=4, sequence=110)),
    Case("Whisper", _whisper(), Recipe(batch=3, sequence=64)),
    Case("Mixtral", _config("Mixtral", "CausalLM", **_GROUPED, num_local_experts=4), Recipe(batch=2, sequence=128)),
    Case(
        "Mixtral",
        _config("Mixtral", "CausalLM", **_GROUPED, num_local_experts=4),
        Recipe(precision="autocast", batch=2, sequence=128),
    ),
    Case(
        "Qwen3-MoE",
        _config(
            "Qwen3Moe",
            "CausalLM",
            **_GROUPED,
            head_dim=32,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=256,
        ),
        Recipe(precision="bf16", batch=2, sequence=128),
    ),
    Case(
        "Mistral, window 64",
        _config("Mistral", "CausalLM", **_GROUPED, sliding_window=64),
        Recipe(batch=2, sequence=256),
    ),
    Case(
        "Gemma 3",
        tf.Gemma3TextConfig(**_GROUPED, head_dim=32, sliding_window=48, architectures=["Gemma3ForCausalLM"]),
        Recipe(batch=2, sequence=160, clipping=True),
    ),
    Case("Qwen2, full mask", _config("Qwen2", "CausalLM", **_GROUPED), Recipe(batch=1, sequence=512), _mask(3000)),
    Case("Qwen2", _config("Qwen2", "CausalLM", **_GROUPED), Recipe(batch=2, sequence=256, lora=8)),
    Case(
        "Qwen2",
        _config("Qwen2", "CausalLM", **_GROUPED),
        Recipe(precision="bf16", batch=2, sequence=256, lora=8, quantized="nf4", checkpointing=True),
    ),
    Case("Qwen2", _config("Qwen2", "CausalLM", **_GROUPED), Recipe(batch=2, sequence=256, packed=True)),
    Case("Qwen2", _config("Qwen2", "CausalLM", **_GROUPED), Recipe(batch=2, sequence=256, in_backward=True)),
    Case("GPT-NeoX", _config("GPTNeoX", "CausalLM", **_BERT_LIKE), Recipe("adamw-fused", batch=4, sequence=128)),
    Case(
        "Falcon",
        _config("Falcon", "CausalLM", hidden_size=192, num_hidden_layers=4, num_attention_heads=6, vocab_size=3000),
        Recipe("momentum", batch=4, sequence=128),
    ),
    Case("ViT", _config("ViT", "ImageClassification", **_VISION), Recipe(batch=6)),
    Case(
        "ConvNeXt",
        _config(
            "ConvNext",
            "ImageClassification",
            hidden_sizes=[32, 64, 96, 128],
            depths=[2, 2, 3, 2],
            image_size=96,
            drop_path_rate=0.1,
        ),
        Recipe(batch=6),
    ),
    Case(
        "Swin",
        _config(
            "Swin", "ImageClassification", image_size=64, embed_dim=48, depths=[2, 2], num_heads=[2, 4], window_size=4
        ),
        Recipe(batch=6, precision="autocast"),
    ),
    Case("CLIP", _clip(), Recipe(batch=5, sequence=40)),
    Case("U-Net", _UNet, Recipe(batch=4), _pictures(64)),
    Case("LSTM", lambda: _Recurrent("one way"), Recipe(batch=8, sequence=60), _ids()),
    Case("LSTM, both ways", lambda: _Recurrent("both ways"), Recipe(batch=8, sequence=60), _ids()),
    Case("GRU cell by token", lambda: _Recurrent("cell"), Recipe(batch=8, sequence=40), _ids()),
    Case(
        "Mamba",
        _config("Mamba", "CausalLM", hidden_size=128, num_hidden_layers=2, vocab_size=2000),
        Recipe(batch=2, sequence=48),
    ),
    Case("nn.TransformerEncoder", _Encoder, Recipe(batch=8, sequence=64), _ids()),
]
