"""The configurations on which predictions of memory and time are held against measurements.

`FIRST` is the grid that the estimator's formulas were worked out beside. `SECOND` was written down before there was an
estimator and is never edited: other shapes, other heads, other combinations.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from course_utils import models
from course_utils.memory.step.recipe import Recipe
from course_utils.models import ConvNetConfig


@dataclass(frozen=True)
class Case:
    """One configuration: what is trained, and how; `batch` for what is not trained on token ids or pictures by name."""

    model: str
    config: object
    recipe: Recipe
    batch: Callable | None = None

    @property
    def name(self) -> str:
        """The model and whatever of the recipe is not as usual."""
        defaults = Recipe()
        sizes = f"B{self.recipe.batch}" + ("" if isinstance(self.config, ConvNetConfig) else f"S{self.recipe.sequence}")
        differences = (
            value if isinstance(value, str) else field if value is True else f"{field}={value}"
            for field, value in vars(self.recipe).items()
            if field not in ("batch", "sequence") and value != getattr(defaults, field)
        )
        return " ".join([self.model, sizes, *differences])


def _distilbert(width: int, layers: int, heads: int, vocabulary: int, labels: int | None = 10, **changes):
    sizes = {"dim": width, "hidden_dim": 4 * width, "n_layers": layers, "n_heads": heads, "vocab_size": vocabulary}
    return models.configuration("distilbert", labels=labels, **{**sizes, "max_position_embeddings": 512, **changes})


def _gpt2(width: int, layers: int, heads: int, vocabulary: int, labels: int | None = None, **changes):
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary, "n_positions": 1024}
    return models.configuration("gpt2", labels=labels, **{**sizes, **changes})


def _llama(width: int, layers: int, heads: int, vocabulary: int, inner: int, labels: int | None = None, **changes):
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"num_key_value_heads": heads, "vocab_size": vocabulary, "intermediate_size": inner}
    return models.configuration("llama", labels=labels, **{**sizes, "max_position_embeddings": 1024, **changes})


def _first() -> list[Case]:
    sized = {
        "DistilBERT": [
            (_distilbert(128, 2, 4, 4000), Recipe(batch=32, sequence=64)),
            (_distilbert(256, 4, 8, 8000), Recipe(batch=16, sequence=128)),
            (models.configuration("distilbert-base-cased", labels=2), Recipe(batch=8, sequence=128)),
        ],
        "GPT-2": [
            (_gpt2(128, 2, 4, 4000), Recipe(batch=16, sequence=64)),
            (_gpt2(256, 4, 8, 8000), Recipe(batch=8, sequence=128)),
            (_gpt2(512, 8, 8, 16000), Recipe(batch=4, sequence=256)),
        ],
        "Llama": [
            (_llama(128, 2, 4, 4000, 344), Recipe(batch=16, sequence=64)),
            (_llama(256, 4, 8, 8000, 688), Recipe(batch=8, sequence=128)),
            (_llama(512, 8, 8, 16000, 1376), Recipe(batch=4, sequence=256)),
        ],
        "ConvNet": [
            (ConvNetConfig((16, 32), image=64), Recipe(batch=16)),
            (ConvNetConfig((32, 64, 128), image=96), Recipe(batch=16)),
            (ConvNetConfig((64, 128, 256), image=160), Recipe(batch=8)),
        ],
    }
    cases = [
        Case(f"{family} {size}", config, recipe)
        for family, rows in sized.items()
        for size, (config, recipe) in zip("SML", rows, strict=True)
    ]
    for case in [case for case in cases if case.model.endswith(" M")]:
        changes_of_recipe = _OF_ALL if isinstance(case.config, ConvNetConfig) else _OF_ALL + _OF_TRANSFORMERS
        cases += [replace(case, recipe=replace(case.recipe, **changes)) for changes in changes_of_recipe]
    return cases


_OF_ALL = (
    {"optimizer": "sgd"},
    {"optimizer": "adamw-foreach"},
    {"optimizer": "adafactor"},
    {"optimizer": "adafactor-transformers"},
    {"optimizer": "adamw8bit"},
    {"precision": "bf16"},
    {"precision": "autocast"},
    {"accumulation": 4},
    {"clipping": True},
    {"clipping": True, "optimizer": "adamw-foreach", "accumulation": 2},
)
_OF_TRANSFORMERS = (
    {"checkpointing": True},
    {"checkpointing": True, "accumulation": 4},
    {"checkpointing": True, "precision": "autocast"},
    {"checkpointing": True, "precision": "bf16", "optimizer": "adafactor"},
    {"precision": "bf16", "optimizer": "sgd"},
    {"attention": "eager"},
)


def _second() -> list[Case]:
    return [
        Case("DistilBERT 192x3", _distilbert(192, 3, 6, 5003), Recipe(batch=5, sequence=200)),
        Case("DistilBERT 192x3", _distilbert(192, 3, 6, 5003), Recipe("sgd", batch=40, sequence=48)),
        Case("DistilBERT 320x2 wide", _distilbert(320, 2, 5, 900, hidden_dim=2560), Recipe(batch=12, sequence=96)),
        Case("DistilBERT 320x2 thin", _distilbert(320, 2, 5, 900, hidden_dim=160), Recipe("adafactor", batch=3, sequence=384)),
        Case("DistilBERT masked LM", _distilbert(192, 3, 6, 12000, None), Recipe(batch=4, sequence=160)),
        Case("DistilBERT masked LM", _distilbert(192, 3, 6, 12000, None), Recipe("adamw-foreach", "autocast", 2, 64, 3)),
        Case("DistilBERT deep", _distilbert(96, 12, 3, 3000), Recipe(batch=20, sequence=72, checkpointing=True)),
        Case("DistilBERT deep", _distilbert(96, 12, 3, 3000), Recipe(batch=6, sequence=256, attention="eager")),
        Case("GPT-2 192x5", _gpt2(192, 5, 3, 3000), Recipe(batch=7, sequence=111)),
        Case("GPT-2 192x5", _gpt2(192, 5, 3, 3000), Recipe("adafactor-transformers", "fp32", 2, 300, 2, clipping=True)),
        Case("GPT-2 large vocabulary", _gpt2(128, 2, 2, 50257), Recipe("sgd", batch=2, sequence=192)),
        Case("GPT-2 large vocabulary", _gpt2(128, 2, 2, 50257), Recipe("adamw-foreach", batch=1, sequence=32)),
        Case("GPT-2 deep", _gpt2(96, 12, 4, 2000), Recipe("adamw", "autocast", 4, 128, checkpointing=True)),
        Case("GPT-2 classifier", _gpt2(256, 3, 4, 6000, 5), Recipe(batch=9, sequence=100)),
        Case("GPT-2 384x4", _gpt2(384, 4, 6, 4000), Recipe("adamw", "bf16", 6, 128)),
        Case("Llama grouped heads", _llama(256, 3, 8, 5000, 700, num_key_value_heads=2), Recipe(batch=6, sequence=140)),
        Case("Llama grouped heads", _llama(256, 3, 8, 5000, 700, num_key_value_heads=2), Recipe("adafactor", "bf16", 10, 64)),
        Case("Llama tied", _llama(192, 4, 6, 20000, 512, tie_word_embeddings=True), Recipe(batch=2, sequence=256)),
        Case("Llama tied", _llama(192, 4, 6, 20000, 512, tie_word_embeddings=True), Recipe("sgd", "fp32", 3, 90, 3, True)),
        Case("Llama classifier", _llama(320, 2, 5, 2500, 1000, 7), Recipe(batch=8, sequence=128, clipping=True)),
        Case("Llama deep", _llama(128, 10, 4, 1000, 256), Recipe("adamw-foreach", "autocast", 4, 200)),
        Case("ConvNet one stage", ConvNetConfig((48,), depth=1, image=40), Recipe(batch=24)),
        Case("ConvNet deep", ConvNetConfig((24, 40), depth=5, image=28, channels=1), Recipe("adafactor", batch=16)),
        Case("ConvNet wide", ConvNetConfig((16, 384), depth=2, image=16), Recipe("adamw-foreach", batch=8)),
        Case("ConvNet deep", ConvNetConfig((24, 40), depth=5, image=28, channels=1), Recipe(batch=10, accumulation=3)),
    ]  # fmt: skip


FIRST, SECOND = _first(), _second()
