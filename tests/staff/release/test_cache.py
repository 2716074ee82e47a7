"""What was released before holds only for the code and the libraries that it was released with."""

from course_staff.release import cache


def test_the_digest_sees_every_file_of_the_course_and_the_libraries(tmp_path, monkeypatch):
    package = tmp_path / "course_utils"
    for name in ("grading/sets/a.json", "grading/kinds.py", "data/text.txt"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("before")
    (package / "__init__.py").write_text("")

    class Package:
        __file__ = str(package / "__init__.py")

    monkeypatch.setattr(cache, "course_utils", Package)
    seen = []

    def digest():
        cache.digest_of_code.cache_clear()
        seen.append(cache.digest_of_code())
        return seen[-1]

    try:
        first = digest()
        (package / "grading" / "sets" / "a.json").write_text("made")
        assert digest() == first, "what is made is not what it is made of"
        for name in ("grading/kinds.py", "data/text.txt"):
            (package / name).write_text("after")
            assert digest() not in seen[:-1]
        (package / "data" / "text.txt").rename(package / "data" / "renamed.txt")
        assert digest() not in seen[:-1]
        monkeypatch.setattr(cache, "version", lambda name: "0")
        assert digest() not in seen[:-1]
    finally:
        cache.digest_of_code.cache_clear()
