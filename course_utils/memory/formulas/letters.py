"""Sizes of a model as letters, for formulas such as 32 × (4·h² + 6·f·h) in place of numbers.

The letters are found from a second model of the same kind in which every size contains a prime, so that the factors of a number
of bytes say of which sizes it is the product.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CONFIGURED_NAMES = {
    "h": ("hidden_size", "n_embd", "dim", "d_model"),
    "f": ("intermediate_size", "n_inner", "hidden_dim", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"),
    "V": ("vocab_size",),
    "a": (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
    ),
    "k": ("num_key_value_heads",),
    "d": ("head_dim", "d_kv"),
    "n": ("max_position_embeddings", "n_positions"),
}  # fmt: skip
MEANINGS = {
    "b": "examples of a micro-batch",
    "s": "tokens of an example",
    "h": "width",
    "f": "inner width",
    "V": "vocabulary",
    "a": "attention heads",
    "k": "heads of keys and values",
    "d": "width of a head",
    "n": "positions",
}
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
Monomial = tuple[tuple[str, int], ...]
MONOMIALS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0))
"""Powers of b and s that occur in the sizes of a step."""
DENOMINATOR = 24
"""Coefficients may be fractions, such as halves and thirds, although sizes are integers; all divide this number."""
LENGTH_STEP = 64
"""Kernels round lengths up, each in its own way, to numbers that divide this one; formulas need only hold at its multiples."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of letters. A term is a pair of letters with their powers, and of a factor."""

    terms: tuple[tuple[Monomial, Fraction], ...] = ()

    @classmethod
    def monomial(cls, factor: Fraction | int, **powers: int) -> "Polynomial":
        """The polynomial of a single term: `factor` times the letters to their `powers`."""
        return cls(((tuple(sorted((x, p) for x, p in powers.items() if p)), Fraction(factor)),)) if factor else cls()

    def __add__(self, other: "Polynomial") -> "Polynomial":
        sums: dict[Monomial, Fraction] = {}
        for key, factor in (*self.terms, *other.terms):
            sums[key] = sums.get(key, Fraction(0)) + factor
        return Polynomial(tuple(sorted((key, factor) for key, factor in sums.items() if factor)))

    def times(self, factor: Fraction | int) -> "Polynomial":
        """The polynomial multiplied by a count."""
        return Polynomial(tuple((key, value * factor) for key, value in self.terms if factor))

    def value(self, sizes: Mapping[str, int]) -> Fraction:
        """The polynomial's value at these sizes."""
        return sum((f * prod(Fraction(sizes[x]) ** p for x, p in key) for key, f in self.terms), Fraction(0))

    @property
    def letters(self) -> frozenset[str]:
        """All letters in any term."""
        return frozenset(letter for key, _ in self.terms for letter, _ in key)

    def __str__(self):
        ordered = sorted(self.terms, key=lambda item: (-sum(p for _, p in item[0]), item[0]))
        return " + ".join(_product(key, factor) for key, factor in ordered) or "0"


def _product(key: Monomial, factor: Fraction) -> str:
    letters = "·".join(letter + (str(power).translate(_SUPERSCRIPT) if power > 1 else "") for letter, power in key)
    if not letters or factor == 1:
        return letters or f"{factor}"
    return f"{factor.numerator}·{letters}" + (f"/{factor.denominator}" if factor.denominator > 1 else "")


def _fields_for(letter: str, config: "PretrainedConfig") -> list[str]:
    """The names under which a configuration has the size of this letter."""
    return [name for name in CONFIGURED_NAMES[letter] if type(getattr(config, name, None)) is int]


def sizes_of(config: "PretrainedConfig") -> dict[str, int]:
    """The letters of a configuration and their values; `k` only where it differs from `a`."""
    sizes = {}
    for letter in CONFIGURED_NAMES:
        values = {getattr(config, name) for name in _fields_for(letter, config)}
        if len(values) == 1:
            sizes[letter] = values.pop()
    if sizes.get("k") == sizes.get("a"):
        sizes.pop("k", None)
    if "d" not in sizes and sizes.get("a") and sizes.get("h", 0) % sizes["a"] == 0:
        sizes["d"] = sizes["h"] // sizes["a"]
    return sizes


def siblings(config: "PretrainedConfig") -> Iterator[tuple["PretrainedConfig", dict[str, int]]]:
    """Configurations of the same kind with sizes that contain large primes, each with these sizes by letter.

    Heads divide widths, and heads of keys divide heads, if they do so in the original. The first configuration is for kernels
    that require multiples of 8, the second for rules that treat tensors with fewer than some thousand elements differently.
    """
    sizes = sizes_of(config)
    if not {"h", "a", "d"} <= sizes.keys():
        return
    for k, group, d, odd_width in ((37, 31, 16 * 13, 16 * 59 * 61), (11, 13, 2 * 17, 2 * 1201)):
        primes = {"k": k, "d": d, "f": 16 * 43, "V": 101 * 103, "n": 1033, "a": k * group if "k" in sizes else group}
        primes["h"] = primes["a"] * d if sizes["h"] == sizes["a"] * sizes["d"] else odd_width
        primes = {letter: primes[letter] for letter in sizes}
        sibling = deepcopy(config)
        for letter, value in ({"k": primes["a"]} | primes).items():
            for name in _fields_for(letter, sibling):
                setattr(sibling, name, value)
        yield sibling, primes


def factor_number(number: Fraction | int, primes: Mapping[str, int]) -> Polynomial | None:
    """The product of letters that is `number` at the sizes `primes`; the largest letters are divided out first.

    None if the factor that is left is too large to be one.
    """
    rest = Fraction(number)
    powers: dict[str, int] = {}
    for letter in sorted(primes, key=lambda letter: -primes[letter]):
        large = primes[letter]
        for small in (2, 3, 5, 7):
            while large % small == 0:
                large //= small
        while large > 1 and rest.numerator % large == 0:
            rest /= primes[letter]
            powers[letter] = powers.get(letter, 0) + 1
    return Polynomial.monomial(rest, **powers) if rest.numerator < 4096 or not powers else None
