"""Models that people train, by the sizes in their published `config.json`; nothing is downloaded.

Each has the number of parameters that its publisher counts, and a test counts them again.
"""

from ast import literal_eval
from dataclasses import dataclass
from pathlib import Path

_HUB = "https://huggingface.co/"
_COLUMNS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings"),
)


@dataclass(frozen=True)
class Public:
    """One model: its Transformers class, its `parameters`, where its configuration is published, and its `sizes`."""

    architecture: str
    parameters: int
    source: str
    sizes: dict

    @property
    def hub(self) -> str:
        """Its name on the Hub, where its weights are."""
        return self.source.removeprefix(_HUB).partition("/blob/")[0]


def _read(architecture: str, parameters: str, hub: str, *sizes: str) -> Public:
    by_column = {name: int(size) for name, size in zip(_COLUMNS, sizes, strict=False) if "=" not in size}
    by_name = {name: literal_eval(value) for name, _, value in (size.partition("=") for size in sizes) if value}
    source = f"{_HUB}{hub}/blob/main/config.json"
    return Public(architecture, int(parameters), source, by_column | by_name)


_ROWS = Path(__file__).with_name("public.txt").read_text(encoding="utf-8").splitlines()
PUBLIC = {name: _read(*rest) for name, *rest in map(str.split, _ROWS)}
"""By name; a row of the file is a name, Transformers' class, the parameters, the place on the Hub, and sizes."""
