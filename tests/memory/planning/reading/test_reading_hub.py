"""Names on the Hub: found in the cache, or refused in a sentence."""

from urllib.error import HTTPError, URLError

import pytest
from reading_files import values, write

from course_utils.errors import CourseError
from course_utils.memory.planning.reading import hub
from course_utils.memory.planning.reading.read import read


def test_a_name_on_the_hub_is_found_in_the_cache_or_refused(tmp_path):
    with pytest.raises(CourseError, match="HF_HUB_OFFLINE") as refusal:
        read(["HuggingFaceTB/SmolLM2-135M"])
    assert "mean" not in str(refusal.value)
    for name in ("meta-llama/Llama-3.1-8", "meta-llama/Llama-3.1-8B-Instruct"):
        with pytest.raises(CourseError, match="did you mean llama-3.1-8b"):
            read([name])
    folder = tmp_path / "cache/hub/models--HuggingFaceTB--SmolLM2-135M"
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc/config.json").write_text('{"model_type": "llama", "torch_dtype": "bfloat16"}')
    assert read(["HuggingFaceTB/SmolLM2-135M"]).model == str(folder / "snapshots/abc/config.json")
    model = "AutoModelForCausalLM.from_pretrained('HuggingFaceTB/SmolLM2-135M')"
    write("train.py", f"TrainingArguments('o')\nm = {model}\nLoraConfig()\n")
    reading = read(["train.py"])
    assert values(reading, "precision", "lora", "lora_targets") == ["bf16", 8, ("q_proj", "v_proj")]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (HTTPError("url", 401, "Unauthorized", {}, None), "gated, private or not on the Hub"),
        (HTTPError("url", 404, "Not Found", {}, None), "no config.json"),
        (URLError("Name or service not known"), "did not answer in 3 s"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(error, message, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(hub, "urlopen", refuse)
    with pytest.raises(CourseError, match=message):
        read(["someone/something"])
