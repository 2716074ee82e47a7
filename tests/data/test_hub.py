"""Whether the Hub answers is asked within seconds, and never raises."""

from course_utils.data import hub


def test_the_hub_is_asked_within_its_time_and_never_raises(monkeypatch):
    import huggingface_hub.utils

    class Unreachable:
        def head(self, url, timeout):
            assert timeout <= 3
            raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.utils, "get_session", Unreachable)
    hub.is_reachable.cache_clear()
    assert hub.is_reachable() is False
    hub.is_reachable.cache_clear()
