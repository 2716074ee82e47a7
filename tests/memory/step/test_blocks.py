"""Estimates from a few blocks, compared with dry runs of the whole model."""

from functools import partial

import pytest
import torch
import transformers

from course_utils import models
from course_utils.memory import Recipe, dry_run, estimate
from course_utils.memory.formulas.trial import run_step, try_recipe
from course_utils.memory.step.blocks import Blocks
from course_utils.memory.step.model import source_of
from course_utils.memory.step.quantized import quantize_linears

RECIPE = Recipe(batch=2, sequence=16)
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 200,
    "max_position_embeddings": 64, "num_hidden_layers": 7, "pad_token_id": 0,
}  # fmt: skip
OTHER_FIELDS = {  # what a family calls otherwise, or asks for besides
    "Albert": {"embedding_size": 32},
    "Bart": {
        "d_model": 64, "encoder_layers": 7, "decoder_layers": 7, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "forced_eos_token_id": 2,
    },
    "DistilBert": {"dim": 64, "hidden_dim": 128, "n_layers": 7, "n_heads": 4},
    "Gemma": {"head_dim": 16, "num_key_value_heads": 2},
    "GPT2": {"n_embd": 64, "n_layer": 7, "n_head": 4, "n_positions": 64},
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"head_dim": 16, "num_key_value_heads": 2},
    "OPT": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "Qwen2": {"num_key_value_heads": 2},
    "Qwen3": {"head_dim": 16, "num_key_value_heads": 2},
    "StableLm": {"num_key_value_heads": 2},
    "T5": {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 7, "num_decoder_layers": 7},
}  # fmt: skip
FAMILIES = (
    "Albert", "Bart", "Bert", "DistilBert", "Electra", "Gemma", "GPT2", "GPTNeoX", "Llama", "Mistral", "MPNet", "OPT",
    "Phi", "Qwen2", "Qwen3", "Roberta", "StableLm", "T5", "XLMRoberta",
)  # fmt: skip
HEADS = (
    "ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering", "ForConditionalGeneration",
)  # fmt: skip


def configuration(family, **changes):
    sizes = (
        SIZES
        | OTHER_FIELDS.get(family, {})
        | {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
        | changes
    )
    return getattr(transformers, f"{family}Config")(**sizes)


def assert_tells_the_whole(model, recipe=RECIPE, blocks=None):
    source = source_of(model)
    tried = try_recipe(source, recipe)
    assert tried.log.totals.tolist() == run_step(source, recipe).log.totals.tolist()
    assert blocks is None or f"3 of its {blocks} " in tried.basis, tried.basis
    return tried


CLASSES = sorted({family + head for family in FAMILIES for head in HEADS} & {*dir(transformers)})
QUICK = ("BertForSequenceClassification",)


@pytest.mark.parametrize("name", [pytest.param(key, marks=() if key in QUICK else pytest.mark.slow) for key in CLASSES])
def test_every_head_is_its_own_as_module_as_function_and_by_its_name(name):
    kind = getattr(transformers, name)
    config = configuration(kind.config_class.__name__.removesuffix("Config"))
    module = assert_tells_the_whole(kind(config))
    assert estimate(partial(kind, config), RECIPE).peak == estimate(kind(config), RECIPE).peak == module.peak
    config.architectures = [kind.__name__]
    assert estimate(config, RECIPE).peak == module.peak


def llama():
    return transformers.LlamaForCausalLM(configuration("Llama"))


def with_adapters(**options):
    import peft

    return peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **options))


def with_a_frozen_body():
    model = transformers.BertForSequenceClassification(configuration("Bert"))
    model.bert.requires_grad_(False)
    return model.to(torch.bfloat16)


def in_bfloat16():
    return llama().to(torch.bfloat16)


def in_four_bits():
    model = llama()
    model.requires_grad_(False)
    quantized = quantize_linears(model)
    quantized.lm_head.weight.requires_grad_(True)
    return quantized


def with_hooks():
    model = llama()
    for block in model.model.layers:
        block.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), "cuda"])
@pytest.mark.parametrize("checkpointing", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "make",
    [
        with_adapters,
        *(pytest.param(make, marks=pytest.mark.slow) for make in (with_a_frozen_body, with_hooks, in_bfloat16)),
    ],
)
def test_what_was_done_to_a_model_stays(make, checkpointing, device):
    recipe = Recipe(batch=2, sequence=16, checkpointing=checkpointing, device=device)
    assert assert_tells_the_whole(make(), recipe, 7).peak == assert_tells_the_whole(make, recipe, 7).peak


def test_weights_in_four_bits_stay():
    assert_tells_the_whole(in_four_bits, Recipe(batch=2, sequence=16, device="cuda"), 7)


@pytest.mark.slow
def test_where_blocks_differ_only_equal_ones_are_left_out():
    """Adapters on two blocks of seven; and experts from the fourth block on, of which the configuration says only a number."""
    assert_tells_the_whole(partial(with_adapters, layers_to_transform=[0, 1]), blocks=5)
    sizes = {"moe_intermediate_size": 32, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 2}
    groups = {"n_group": 1, "topk_group": 1, "num_key_value_heads": 2, "head_dim": 16, "first_k_dense_replace": 3}
    config = configuration("Glm4Moe", **sizes, **groups, num_hidden_layers=10)
    tried = assert_tells_the_whole(config, blocks=7)
    parameter_bytes = models.parameter_bytes(models.from_configuration(config))
    assert tried.log.by_kind(tried.log.before_step - 1)["parameters"] == parameter_bytes


def test_half_of_the_blocks_frozen_is_run_whole():
    model = llama()
    model.model.layers[:4].requires_grad_(False)
    assert "of its" not in assert_tells_the_whole(model).basis


def test_a_pattern_is_repeated_whole():
    gemma = transformers.Gemma3TextConfig(**SIZES, head_dim=16, num_key_value_heads=2)
    gemma.num_hidden_layers, gemma.layer_types = 36, gemma.layer_types[:6] * 6
    stretch = source_of(gemma).blocks.lists["model.layers"]
    assert (stretch.period, stretch.count) == (6, 6)
    assert source_of(gemma).with_blocks(3).make().config.num_hidden_layers == 18


def test_of_ones_own_forward_nothing_is_left_out():
    """A class that is not Transformers' own may treat equal blocks differently, such as save every third one's output."""

    class OwnLlama(transformers.LlamaModel):
        def __init__(self, config):
            super().__init__(config)
            self.stack = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(9))

    OwnLlama.__module__ = "somebody"
    assert Blocks.from_model(OwnLlama(configuration("Llama", num_hidden_layers=7))) is None
    assert source_of(models.ConvNetConfig()).blocks is None


@pytest.mark.slow
def test_the_users_configuration_is_not_touched():
    config = configuration("T5")
    before = config.to_dict()
    assert_tells_the_whole(partial(transformers.T5ForConditionalGeneration, config), blocks=6)
    assert config.to_dict() == before


class WithAPooler(torch.nn.Module):
    """The pooler is trained although nothing uses it."""

    def __init__(self):
        super().__init__()
        self.body, self.pooler = torch.nn.Linear(64, 64), torch.nn.Linear(256, 256)

    def forward(self, x):
        return self.body(x).square().mean()


def test_what_gets_no_gradient_has_no_state():
    """The result is that of `dry_run` with a whole first step."""
    recipe = Recipe("adamw", batch=4)
    predicted = estimate(WithAPooler, recipe, batch=lambda b, s: torch.ones(b, 64))
    workload = predicted.workload
    assert predicted.peak == dry_run(workload.build, workload.step).peak
    state = 2 * 4 * 65 * 64 + 2 * 4  # two averages of the body's, and a step for each of its parameters
    assert predicted.by_instant()["update"]["optimizer state"] == state


def test_attention_is_as_wide_as_its_values_on_cuda():
    """In latent attention queries are wider than values."""
    widths = []

    def build():
        wide, narrow = (torch.nn.Linear(64, 4 * width).bfloat16() for width in (24, 16))
        return wide, narrow, torch.ones(2, 32, 64).bfloat16()

    def step(wide, narrow, x):
        q, v = (layer(x).view(2, 32, 4, -1).transpose(1, 2) for layer in (wide, narrow))
        y = torch.nn.functional.scaled_dot_product_attention(q, q, v, is_causal=True)
        widths.append(y.shape[-1])
        y.float().square().mean().backward()

    dry_run(build, step, device="cuda")
    assert set(widths) == {16}
