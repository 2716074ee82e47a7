"""Models that people train, by the sizes in their published `config.json`; nothing is downloaded.

Each has the number of parameters that its publisher counts, and a test counts them again.
"""

from dataclasses import dataclass

from course_utils.errors import CourseError


@dataclass(frozen=True)
class Public:
    """One model: its Transformers class, the sizes in which it differs from the family's defaults, and its `parameters`.

    `source` is where its configuration is published.
    """

    architecture: str
    parameters: int
    source: str
    sizes: dict


def _llama_like(
    kind: str, parameters: int, hub: str, h: int, f: int, layers: int, a: int, k: int, v: int, n: int, **more
):
    sizes = {"hidden_size": h, "intermediate_size": f, "num_hidden_layers": layers, "num_attention_heads": a}
    sizes |= {"num_key_value_heads": k, "vocab_size": v, "max_position_embeddings": n, **more}
    return Public(f"{kind}ForCausalLM", parameters, f"https://huggingface.co/{hub}/blob/main/config.json", sizes)


def _gpt2(parameters: int, hub: str, width: int, layers: int, heads: int) -> Public:
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads}
    return Public("GPT2LMHeadModel", parameters, f"https://huggingface.co/{hub}/blob/main/config.json", sizes)


_TIED = {"tie_word_embeddings": True}
PUBLIC = {
    "gpt2-small": _gpt2(124_439_808, "openai-community/gpt2", 768, 12, 12),
    "gpt2-medium": _gpt2(354_823_168, "openai-community/gpt2-medium", 1024, 24, 16),
    "gpt2-xl": _gpt2(1_557_611_200, "openai-community/gpt2-xl", 1600, 48, 25),
    "llama-2-7b": _llama_like("Llama", 6_738_415_616, "meta-llama/Llama-2-7b-hf", 4096, 11008, 32, 32, 32, 32000, 4096),
    "llama-2-13b": _llama_like(
        "Llama", 13_015_864_320, "meta-llama/Llama-2-13b-hf", 5120, 13824, 40, 40, 40, 32000, 4096
    ),
    "llama-2-70b": _llama_like(
        "Llama", 68_976_648_192, "meta-llama/Llama-2-70b-hf", 8192, 28672, 80, 64, 8, 32000, 4096
    ),
    "llama-3-8b": _llama_like(
        "Llama", 8_030_261_248, "meta-llama/Meta-Llama-3-8B", 4096, 14336, 32, 32, 8, 128256, 8192
    ),
    "llama-3.1-8b": _llama_like(
        "Llama", 8_030_261_248, "meta-llama/Llama-3.1-8B", 4096, 14336, 32, 32, 8, 128256, 131072
    ),
    "llama-3.1-70b": _llama_like(
        "Llama", 70_553_706_496, "meta-llama/Llama-3.1-70B", 8192, 28672, 80, 64, 8, 128256, 131072
    ),
    "llama-3.2-1b": _llama_like(
        "Llama", 1_235_814_400, "meta-llama/Llama-3.2-1B", 2048, 8192, 16, 32, 8, 128256, 131072, head_dim=64, **_TIED
    ),
    "llama-3.2-3b": _llama_like(
        "Llama", 3_212_749_824, "meta-llama/Llama-3.2-3B", 3072, 8192, 28, 24, 8, 128256, 131072, head_dim=128, **_TIED
    ),
    "tinyllama-1.1b": _llama_like(
        "Llama", 1_100_048_384, "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 2048, 5632, 22, 32, 4, 32000, 2048
    ),
    "mistral-7b": _llama_like(
        "Mistral", 7_241_732_096, "mistralai/Mistral-7B-v0.1", 4096, 14336, 32, 32, 8, 32000, 32768, sliding_window=4096
    ),
    "mixtral-8x7b": _llama_like(
        *("Mixtral", 46_702_792_704, "mistralai/Mixtral-8x7B-v0.1", 4096, 14336, 32, 32, 8, 32000, 32768),
        num_local_experts=8,
    ),
    "qwen2.5-0.5b": _llama_like(
        "Qwen2", 494_032_768, "Qwen/Qwen2.5-0.5B", 896, 4864, 24, 14, 2, 151936, 32768, **_TIED
    ),
    "qwen2.5-1.5b": _llama_like(
        "Qwen2", 1_543_714_304, "Qwen/Qwen2.5-1.5B", 1536, 8960, 28, 12, 2, 151936, 131072, **_TIED
    ),
    "qwen2.5-7b": _llama_like("Qwen2", 7_615_616_512, "Qwen/Qwen2.5-7B", 3584, 18944, 28, 28, 4, 152064, 131072),
    "qwen3-0.6b": _llama_like(
        "Qwen3", 596_049_920, "Qwen/Qwen3-0.6B", 1024, 3072, 28, 16, 8, 151936, 40960, head_dim=128, **_TIED
    ),
    "qwen3-8b": _llama_like(
        "Qwen3", 8_190_735_360, "Qwen/Qwen3-8B", 4096, 12288, 36, 32, 8, 151936, 40960, head_dim=128
    ),
    "bert-base": Public(
        "BertForMaskedLM",
        109_514_298,
        "https://huggingface.co/google-bert/bert-base-uncased/blob/main/config.json",
        {},
    ),
    "bert-large": Public(
        "BertForMaskedLM",
        335_174_458,
        "https://huggingface.co/google-bert/bert-large-uncased/blob/main/config.json",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    ),
}


def public_configuration(name: str, changes: dict):
    """The configuration of `PUBLIC[name]`; `changes` replace settings of it."""
    import transformers

    known = PUBLIC[name]
    config = getattr(transformers, known.architecture).config_class
    unknown = [change for change in changes if not hasattr(config(), change)]
    if unknown:
        raise CourseError(
            f"{config.__name__} has no setting {unknown[0]!r}; see its documentation for the names it has."
        )
    made = config(**{**known.sizes, **changes})
    made.architectures = [known.architecture]
    return made
