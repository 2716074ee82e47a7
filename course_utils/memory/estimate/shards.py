"""What each rank keeps when the ranks share the work of keeping (ZeRO: Rajbhandari et al. 2020, section 5)."""

from dataclasses import dataclass

from course_utils.memory.recipe import Recipe


@dataclass(frozen=True)
class Shards:
    """Stage 1 divides the optimizer's state by the number of ranks, stage 2 the gradients too, stage 3 the parameters too."""

    stage: int = 0
    ranks: int = 1

    @classmethod
    def of(cls, recipe: Recipe) -> "Shards":
        """As the recipe says."""
        return cls(recipe.zero_stage, recipe.ranks)

    def of_state(self, size):
        """This rank's part of `size` bytes of state; its update works on the same part."""
        return self._part(size, 1)

    def of_gradients(self, size):
        """This rank's part of `size` bytes of gradients."""
        return self._part(size, 2)

    def of_parameters(self, size):
        """This rank's part of `size` bytes of parameters."""
        return self._part(size, 3)

    def gathered(self, unit):
        """Bytes of whole parameters that are there while the model works: the largest unit of `unit` bytes and the next."""
        return 2 * unit if self.stage == 3 else 0

    def _part(self, size, from_stage: int):
        if self.stage < from_stage:
            return size
        if isinstance(size, int):
            return -(-size // self.ranks)
        from sympy import Symbol  # slow to import, and only the formulas need it

        return size / Symbol("N", positive=True, integer=True)
