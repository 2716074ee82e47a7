"""Of the repository: shapes in signatures are true, since the tests of code by hand pass under them, and a wrong shape fails."""

import pytest
from shapes import run_checked

# A checked call holds its arguments until it ends; the first two of these see that their memory is free before. And it goes
# through a function of the checker's; the last asks in which function a rank hangs.
NOT_UNDER_A_CHECKER = [
    "optim/test_adam8bit.py::test_an_update_needs_little_scratch_space_however_large_the_tensor",
    "optim/test_family.py::test_temporary_bytes_of_fewer_bits_and_directions_are_what_the_allocator_sees",
    "distributed/test_launch_faults.py::test_ranks_that_hang_are_told_with_the_line_of_each",
]


def test_a_wrong_shape_fails_and_right_ones_pass(tmp_path):
    program = (
        "import sys, pytest, torch\n"
        "from course_utils.techniques.attention import attention\n"
        "q, k, v = (torch.ones(2, n, 8) for n in (5, 3, 3))\n"
        "print(attention(q, k, v).shape)\n"
        "try: attention(q, k, torch.ones(2, 2, 8))\n"
        "except TypeError as error: print(type(error).__name__, 'keys d_v' in str(error))\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/precision/test_fp8.py']))"
    )
    result = run_checked(tmp_path, "-c", program, seconds=120)
    assert result.stdout.startswith("torch.Size([2, 5, 8])\nTypeCheckError True\n"), result.stdout + result.stderr
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("room", ["optim", "precision", "techniques", "distributed"])
def test_all_tests_of_code_by_hand_pass_under_its_shapes(room, tmp_path):
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not browser"]
    options += [f"--deselect=tests/{test}" for test in NOT_UNDER_A_CHECKER]
    result = run_checked(tmp_path, "-m", "pytest", *options, f"tests/{room}", seconds=1100)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
