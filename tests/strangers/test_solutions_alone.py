"""The solutions as strangers open them: each alone, elsewhere, and all its cells twice in one kernel."""

import pytest
from twice import name, notebooks, run_twice


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", notebooks("solutions"), ids=name)
def test_a_set_runs_alone_and_elsewhere_and_twice_in_one_kernel(path, tmp_path):
    run_twice(path, tmp_path / "elsewhere")
