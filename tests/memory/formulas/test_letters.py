"""Letters found from products of primes, and polynomials whose value stays the same."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from course_utils.memory.formulas.letters import Polynomial

SIZES = {"b": 3, "s": 5, "h": 64, "V": 100}
POLYNOMIALS = st.lists(
    st.tuples(st.integers(-20, 20), st.dictionaries(st.sampled_from(list(SIZES)), st.integers(0, 2))), max_size=5
).map(lambda terms: sum((Polynomial.monomial(f, **p) for f, p in terms), Polynomial()))


@given(POLYNOMIALS, POLYNOMIALS, st.integers(-5, 5))
def test_sums_and_multiples_have_the_values_of_numbers(first, second, factor):
    assert (first + second).value(SIZES) == first.value(SIZES) + second.value(SIZES)
    assert first.times(factor).value(SIZES) == factor * first.value(SIZES)
    assert (first + second) == (second + first)
    assert hash(first + second) == hash(second + first)


def test_it_is_written_as_people_write_it():
    of_letters = Polynomial.monomial(4, h=2) + Polynomial.monomial(6, h=1, f=1)
    of_tokens = Polynomial.monomial(Fraction(1, 2), s=1) + Polynomial.monomial(12)
    assert str(of_letters + of_tokens) == "6·f·h + 4·h² + 1·s/2 + 12"
    assert str(Polynomial()) == "0"
