import subprocess
import sys

import pytest

from course_utils import data


def test_every_public_name_is_there():
    assert all(callable(getattr(data, name)) for name in data.__all__)
    with pytest.raises(AttributeError, match="it has EpochSampler, batches, card"):
        data.imdb  # noqa: B018


def test_the_room_and_its_corpus_load_no_library():
    heavy = "{'torch', 'datasets', 'transformers', 'numpy'}"
    code = f"import sys; import course_utils.data.corpus; print(*{heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.strip()) == (0, "")
