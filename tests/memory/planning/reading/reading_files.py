"""Files for readings, and what readings say of them."""

from pathlib import Path

MODEL = "model_name_or_path: gpt2-small\n"


def write(name, text):
    """Writes a file in the test's folder; gives its name back."""
    Path(name).write_text(text, encoding="utf-8")
    return name


def values(reading, *names):
    """What a reading says of these fields; None where nothing."""
    return [reading.fields.get(name) for name in names]
