"""Whether the Hugging Face Hub answers; nothing in the course needs it, some cells are richer with it."""

from functools import lru_cache


@lru_cache(maxsize=1)
def is_reachable() -> bool:
    """Whether the Hub can be reached within three seconds, tried once a process. `HF_HUB_OFFLINE` counts as no."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=3.0)
    except Exception:  # whatever stands between here and the Hub, the answer is the same
        return False
    return True
