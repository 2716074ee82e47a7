"""The planner's page: what it holds, and that its answers are those of Python's dry runs, to the byte."""

import json
import shlex
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
import pytest

from course_staff.site import planner
from course_utils.cli import main
from course_utils.hardware import MACHINES
from course_utils.memory import trial as trials
from course_utils.memory.finder import MONOMIALS, Finder
from course_utils.memory.log import sign
from course_utils.memory.model import source_of
from course_utils.memory.plan import CHANGES, FITS, most_that_fits, needs, verdict_of
from course_utils.memory.recipe import Recipe
from course_utils.memory.trial import attempt, run_once
from course_utils.units import GiB

ROOM = Path(planner.__file__).parent
QUESTIONS = 200
PAGE = """<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Planner</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="planner.css"></head>
<body><h1>Planner</h1>{}<script src="planner-data.js"></script><script src="planner.js"></script></body></html>"""


# ---- What the file holds


def test_every_named_model_has_every_recipe_of_the_page_or_it_is_said_why_not():
    held, out = planner.formulas()["models"], planner.formulas()["out"]
    names = set().union(*(model["pieces"] for model in held.values()), *out.values())
    assert len(names) == 3 * 14 + 3 * 5  # batches of several, of one, and accumulated ones; updates
    for model in planner.MODELS:
        assert names == held[model]["pieces"].keys() | out.get(model, {}).keys(), model
    assert not [why for reasons in out.values() for why in reasons.values() if "not been found yet" in why]


def test_the_page_loads_at_most_two_megabytes(tmp_path):
    assert planner.write(tmp_path).stat().st_size <= 2e6


@pytest.mark.parametrize(
    ("model", "name", "recipe"),
    [
        ("gpt2-small", "forward all autocast 0 2", Recipe("sgd", "autocast", 7, 96, device="cuda")),
        ("qwen2.5-0.5b", "forward qlora bf16 1 1",
         Recipe("sgd", "bf16", 1, 160, checkpointing=True, lora=16, quantized="nf4", device="cuda")),
    ],
)  # fmt: skip
def test_a_held_formula_gives_a_fresh_dry_run(model, name, recipe):
    held = planner.formulas()
    place, *rows = held["models"][model]["pieces"][name]
    pattern, words = held["patterns"][place], held["words"]
    sizes = []
    for row in rows:
        terms = zip(row_of(held, model, row)[::2], row_of(held, model, row)[1::2], strict=True)
        powers = [(MONOMIALS[term], factor) for term, factor in terms]
        sizes.append(sum(f * recipe.batch**i * recipe.sequence**j for (i, j), f in powers) // planner.DENOMINATOR)
    changes = [int(np.sign(slot)) * sizes[abs(slot) - 1] for slot in pattern["events"]]
    labels = [tuple(words[n] for n in held["labels"][4 * place : 4 * place + 4]) for place in pattern["labels"]]
    log = run_once(source_of(model).with_blocks(3), recipe).log
    assert changes == log.changes.tolist()
    assert labels == list(map(sign, log.labels))


def row_of(held: dict, model: str, place: int) -> list[int]:
    return held["models"][model]["rows"][place]


def test_a_change_of_the_page_sets_what_the_change_of_the_package_sets():
    known = {change.name: change for change in CHANGES}
    found = {change["name"]: change for change in planner.facts()["changes"]}
    assert {name: known[name].costs for name in found} == {name: change["costs"] for name, change in found.items()}
    for name, change in found.items():
        for fields, keys in change["sets"]:
            optimizer, precision, checkpointing, kind, batch = keys[0].split()
            asked = {
                **planner.QUESTION,
                "optimizer": optimizer,
                "precision": precision,
                "kind": kind,
                "batch": int(batch),
            }
            asked["checkpointing"] = checkpointing == "1"
            recipe = planner.recipe_of(asked)
            assert planner.recipe_of(asked | fields) == replace(recipe, **known[name].apply(recipe)), (name, keys[0])


# ---- What the page answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page on its own, as it opens from a folder."""
    folder = tmp_path_factory.mktemp("page")
    planner.write(folder)
    for path in (ROOM / "static").glob("planner.*"):
        shutil.copy(path, folder)
    (folder / "planner.html").write_text(PAGE.format((ROOM / "pages" / "planner.html").read_text(encoding="utf-8")))
    return folder


@pytest.fixture
def page(browser, folder):
    """A tab that reaches nothing but files; whatever goes wrong in it is an error here."""
    tab, said = browser.new_page(), []
    tab.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("requestfailed", lambda request: said.append(request.url))
    yield tab
    tab.close()
    assert said == []


def open_page(page, folder, search: str = ""):
    page.goto(f"{(folder / 'planner.html').as_uri()}{search}")
    page.evaluate("window.coursePlanner.ready")


def random_questions(count: int) -> list[dict]:
    random, held, found = Random(26), planner.formulas()["models"], []
    while len(found) < count:
        model = random.choice(planner.MODELS)
        kind = random.choice(list(planner.TRAINED))
        batch = random.choice([1, 1, 2, random.randint(2, 16), random.randint(2, planner.LARGEST["batch"])])
        longest = held[model]["longest"] // planner.UNIT
        length = random.choice([random.randint(1, min(longest, 128)), random.randint(1, longest)])
        found.append(
            {
                "model": model,
                "card": random.choice(list(MACHINES)),
                "batch": batch,
                "sequence": length * planner.UNIT,
                "optimizer": random.choice(planner.OPTIMIZERS),
                "precision": random.choice(planner.PRECISIONS[kind != "all" :]),
                "checkpointing": random.random() < 0.5,
                "kind": kind,
                "accumulation": random.choice([1, 1, 2, 3]) if batch == 1 else 1,
            }
        )
    return found


def answer_dry(question: dict) -> dict:
    """By a dry run of two and three blocks of just this step: no formula has a part in it.

    All micro-batches are run, where a plan runs two of many.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trials, "run_once", lambda source, recipe, *_, **__: trials.run_whole(source, recipe))
        log = trials.attempt(source_of(question["model"]), planner.recipe_of(question)).log
    need = needs(log, "cuda")
    in_use = {phase: log.by_kind(place) for phase, place in log.fullest().items()}
    return {
        "peak": log.peak,
        "reserved": log.reserved,
        "need": list(need),
        "verdict": verdict_of(need, MACHINES[question["card"]].memory),
        "instants": in_use,
    }


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_questions_are_answered_as_by_dry_runs_to_the_byte(page, folder):
    open_page(page, folder)
    questions = random_questions(QUESTIONS)
    found = page.evaluate(
        "all => all.map(q => window.coursePlanner.refusalOf(q) || window.coursePlanner.answer(q))", questions
    )
    out = planner.formulas()["out"]
    refused = [
        q for q, answer in zip(questions, found, strict=True) if isinstance(answer, str) and q["model"] not in out
    ]
    assert refused == []
    asked = [(q, answer) for q, answer in zip(questions, found, strict=True) if not isinstance(answer, str)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        expected = list(pool.map(answer_dry, [q for q, _ in asked], chunksize=4))
    differ = []
    for (question, answer), known in zip(asked, expected, strict=True):
        answer["instants"] = {instant["name"]: instant["by_kind"] for instant in answer["instants"]}
        if answer != known:
            differ.append((question, answer, known))
    assert differ == []


SMALL = {**planner.QUESTION, "model": "gpt2-small", "card": "4GB", "batch": 4, "sequence": 512}


@pytest.mark.browser
@pytest.mark.slow
def test_the_ladder_has_pythons_rows_the_least_disturbing_first(page, folder):
    open_page(page, folder)
    rows = page.evaluate("q => window.coursePlanner.ladder(q)", SMALL)
    known, recipe, source = (
        {change.name: change for change in CHANGES},
        planner.recipe_of(SMALL),
        source_of("gpt2-small"),
    )
    base = attempt(source, recipe)
    assert rows
    assert [row["level"] for row in rows] == sorted(row["level"] for row in rows)
    for row in rows:
        changes = [known[name] for name in row["names"]]
        fields = {name: value for change in changes for name, value in change.apply(recipe).items()}
        trial = attempt(source, replace(recipe, **fields))
        assert planner.recipe_of(row["question"]) == trial.recipe
        assert (row["peak"], row["saves"]) == (trial.peak, base.peak - trial.peak)
        assert row["need"] == list(needs(trial.log, "cuda"))
        assert row["verdict"] == verdict_of(needs(trial.log, "cuda"), 4 * GiB) == FITS
        assert row["level"] == max(change.level for change in changes)
        assert row["costs"] == "; ".join(dict.fromkeys(change.costs for change in changes))
    shown = {row["names"][0] for row in rows if len(row["names"]) == 1}
    for name in (change["name"] for change in planner.facts()["changes"]):
        fields = known[name].apply(recipe)
        if not fields or {"lora", "quantized"} & fields.keys():  # which the page has in half precision only
            continue
        if verdict_of(needs(attempt(source, replace(recipe, **fields)).log, "cuda"), 4 * GiB) == FITS:
            assert name in shown


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(("batch", "card"), [(64, "T4"), (2, "L4")])
def test_the_largest_batch_is_pythons(page, folder, batch, card):
    open_page(page, folder)
    question = {**SMALL, "batch": batch, "card": card}
    recipe, memory = planner.recipe_of(question), MACHINES[card].memory
    finder = Finder(source_of("gpt2-small"), replace(recipe, batch=1, sequence=1))

    def fits(log) -> bool:
        return verdict_of(needs(log, "cuda"), memory) == FITS

    most = most_that_fits(finder, lambda b: (b, recipe.sequence), batch, planner.LARGEST["batch"], fits)
    assert page.evaluate("q => window.coursePlanner.largestBatch(q)", question) == most


@pytest.mark.browser
def test_the_pages_command_asks_the_same_question(page, folder, capsys):
    open_page(page, folder)
    question = {**SMALL, "card": "RTX 4090", "optimizer": "adamw8bit", "precision": "autocast", "kind": "qlora"}
    command = page.evaluate("q => window.coursePlanner.commandOf(q)", question)
    course, *words = shlex.split(command)
    assert course == "course"
    assert main([*words, "--again", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    answer = page.evaluate("q => window.coursePlanner.answer(q)", question)
    assert (said["need"], said["verdict"], said["reserved"]) == (answer["need"], answer["verdict"], answer["reserved"])


@pytest.mark.browser
def test_an_address_holds_the_question_and_what_it_cannot_mean_is_said(page, folder):
    open_page(page, folder, "?model=gpt2-small&card=rtx%203090&batch=4&precision=fp32&optimizer=lion&colour=red")
    told = page.inner_text("#planner-said")
    assert "lion" in told
    assert "colour" in told
    assert page.locator("#planner-answer").is_hidden(), "a verdict would be another question's"
    assert "lion" in page.url
    page.focus("#planner-precision")
    page.keyboard.press("ArrowDown")  # to autocast
    page.focus("#planner-checkpointing")
    page.keyboard.press("Space")
    page.focus("#planner-batch")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("16")
    page.keyboard.press("Tab")
    verdict, address = page.inner_text("#planner-verdict"), page.url
    assert "RTX 3090" in verdict
    asked = {"model": "gpt2-small", "card": "RTX 3090", "batch": 16, "precision": "autocast", "checkpointing": True}
    search = address.partition("planner.html")[2]
    assert page.evaluate("s => window.coursePlanner.read(s).question", search) == {**planner.QUESTION, **asked}
    assert page.locator("#planner-said").is_hidden()
    page.goto("about:blank")
    page.goto(address)
    page.evaluate("window.coursePlanner.ready")
    assert page.inner_text("#planner-verdict") == verdict


@pytest.mark.browser
@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "LLAMA-3.1-8b"])
def test_a_model_is_known_by_its_name_on_the_hub_and_in_capitals(page, folder, name):
    open_page(page, folder, f"?model={name}&card=h100")
    question = page.evaluate("s => window.coursePlanner.read(s).question", f"?model={name}&card=h100")
    assert (question["model"], question["card"]) == ("llama-3.1-8b", "H100")
    assert "the H100" in page.inner_text("#planner-verdict")


@pytest.mark.browser
def test_an_unknown_model_gets_its_command_and_no_verdict(page, folder):
    open_page(page, folder, "?model=acme/giant&card=H100")
    assert page.locator("#planner-answer").is_hidden()
    assert page.inner_text("#planner-command").startswith("course plan acme/giant --memory H100")
    page.click("#planner-said button")
    assert page.locator("#planner-answer").is_visible()
    assert page.locator("#planner-said").is_hidden()


@pytest.mark.browser
def test_going_back_undoes_a_change(page, folder):
    open_page(page, folder, page_search(SMALL))
    before = page.inner_text("#planner-verdict")
    page.check("#planner-checkpointing")
    assert page.inner_text("#planner-verdict") != before
    page.go_back()
    page.wait_for_function("text => document.getElementById('planner-verdict').innerText === text", arg=before)
    assert not page.is_checked("#planner-checkpointing")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("?model=mixtral-8x7b&kind=qlora&precision=bf16&card=L4", "nn.Linear"),
        ("?model=gpt2-small&kind=qlora&precision=bf16&card=L4", ""),
        ("?model=qwen2.5-0.5b&kind=qlora&precision=bf16&card=L4", ""),
        ("?model=gpt2-small&card=T4", "float16"),
    ],
)
def test_what_one_might_not_expect_is_said(page, folder, search, said):
    open_page(page, folder, search)
    notes = page.inner_text("#planner-notes")
    assert said in notes if said else notes == ""


@pytest.mark.browser
def test_a_question_that_is_refused_has_no_command(page, folder):
    open_page(page, folder, page_search(SMALL))
    for typed, is_asked in (("0", False), ("4", True)):
        page.fill("#planner-batch", typed)
        page.keyboard.press("Tab")
        assert page.inner_text("#planner-command").startswith("course plan") is is_asked
        assert page.is_enabled("#planner-copy") is is_asked


@pytest.mark.browser
def test_on_paper_the_question_and_the_changes_have_their_names(page, folder):
    open_page(page, folder, page_search(SMALL))
    page.locator("#planner-ladder-rows button").first.wait_for(timeout=60_000)
    page.emulate_media(media="print")
    assert page.locator("#planner-ladder-rows button").first.is_visible()
    assert page.locator("#planner-form").is_visible()
    assert page.locator("#planner-other").is_hidden()


@pytest.mark.browser
def test_a_change_of_the_ladder_is_asked_by_the_keyboard(page, folder):
    open_page(page, folder, page_search(SMALL))
    button = page.locator("#planner-ladder-rows button").first
    button.focus(timeout=60_000)
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('planner-verdict').dataset.verdict === 'fits'")
    assert page.evaluate("document.activeElement.id") == "planner-verdict"


def page_search(question: dict) -> str:
    values = {name: int(value) if isinstance(value, bool) else value for name, value in question.items()}
    return "?" + "&".join(f"{name}={value}" for name, value in values.items())


@pytest.mark.browser
def test_another_model_gets_the_command_and_a_known_ones_sizes_are_recognized(page, folder):
    open_page(page, folder)
    page.fill("#planner-other", "models/mine")
    assert "course plan models/mine --memory 'RTX 4090'" in page.inner_text("#planner-other-said pre")
    page.fill("#planner-other", json.dumps({"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16}))
    assert "gpt2-medium" in page.inner_text("#planner-other-said")
    page.click("#planner-other-said button")
    assert page.input_value("#planner-model") == "gpt2-medium"
    page.fill("#planner-other", '{"model_type": "gpt2", "n_embd": 1000, "n_layer": 24, "n_head": 16}')
    assert page.locator("#planner-other-said button").count() == 0
    page.fill("#planner-other", "GPT2-XL")
    assert "Ask about gpt2-xl" in page.inner_text("#planner-other-said")
    page.fill("#planner-other", "{}")
    assert "no model_type" in page.inner_text("#planner-other-said")
    page.fill("#planner-other", '{"model_type": ')
    assert "no config.json" in page.inner_text("#planner-other-said")


MINE = json.dumps({"model_type": "gpt2", "n_embd": 1000, "n_layer": 24, "n_head": 16})


def withdrawn(page) -> bool:
    verdict = page.locator("#planner-verdict")
    hidden = page.locator("#planner-answer").is_hidden()
    return hidden and verdict.get_attribute("data-verdict") == "unknown" and "GiB" not in verdict.inner_text()


@pytest.mark.browser
def test_a_verdict_names_its_model_and_goes_once_another_model_is_given(page, folder, tmp_path):
    open_page(page, folder, "?model=qwen2.5-0.5b&card=RTX%203090")
    verdict = page.inner_text("#planner-verdict")
    assert verdict.startswith("qwen2.5-0.5b fits on the RTX 3090 (24.0\xa0GiB).")
    assert "only writes the command for course plan" in page.inner_text("#planner-other-why")
    page.fill("#planner-other", MINE)
    assert withdrawn(page)
    assert page.inner_text("#planner-command").startswith("course plan config.json --memory 'RTX 3090'")
    page.fill("#planner-other", "")
    assert page.inner_text("#planner-verdict") == verdict
    (tmp_path / "config.json").write_text(MINE, encoding="utf-8")
    page.set_input_files("#planner-file", tmp_path / "config.json")
    page.locator("#planner-answer").wait_for(state="hidden")
    assert withdrawn(page)
    page.click("#planner-said button")
    assert page.inner_text("#planner-verdict") == verdict
    assert page.input_value("#planner-other") == MINE, "nothing that a reader gave is lost"


@pytest.mark.browser
def test_another_model_is_asked_about_until_one_of_the_list_is_chosen(page, folder):
    open_page(page, folder)
    page.fill("#planner-other", "models/mine")
    page.select_option("#planner-card", "L4")
    assert withdrawn(page)
    assert page.inner_text("#planner-command").startswith("course plan models/mine --memory L4 ")
    asked = page.inner_text("#planner-command")
    page.reload()
    page.evaluate("window.coursePlanner.ready")
    assert withdrawn(page)
    assert page.inner_text("#planner-command") == asked
    page.select_option("#planner-model", "gpt2-small")
    assert page.inner_text("#planner-verdict").startswith("gpt2-small fits on the L4")
    page.fill("#planner-other", "{")
    assert withdrawn(page)
    assert "no config.json" in page.inner_text("#planner-said")


@pytest.mark.browser
def test_the_box_stays_in_sight_while_the_answer_above_it_goes(page, folder):
    page.set_viewport_size({"width": 1280, "height": 720})
    open_page(page, folder)
    box = page.locator("#planner-other")
    box.scroll_into_view_if_needed()
    box.focus()
    before = box.bounding_box()["y"]
    page.keyboard.insert_text(MINE)
    assert withdrawn(page)
    page.wait_for_timeout(300)  # whatever the browser itself scrolls
    assert abs(box.bounding_box()["y"] - before) <= 2


LINES = """[...document.querySelectorAll('#planner-ladder-table :is(thead th, td:nth-child(-n+4))')].map((one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  return [one.textContent, new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size];
})"""


def show_ladder(page, folder, width):
    page.set_viewport_size({"width": width, "height": 720})
    open_page(page, folder, page_search(SMALL))
    page.locator("#planner-ladder-rows button").first.wait_for(timeout=60_000)


@pytest.mark.browser
@pytest.mark.parametrize("width", [800, 1280])
def test_heads_and_numbers_of_the_ladder_stay_on_one_line(page, folder, width):
    show_ladder(page, folder, width)
    lines = page.evaluate(LINES)
    assert len(lines) >= 6 + 3
    assert {count for _, count in lines} == {1}, lines


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page, folder, width):
    show_ladder(page, folder, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#planner-bars svg rect").count() > 3


@pytest.mark.browser
def test_without_scripts_the_page_says_what_to_type(browser, folder):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((folder / "planner.html").as_uri())
    assert "course plan qwen2.5-0.5b" in tab.inner_text("body")
    context.close()


@pytest.mark.browser
def test_a_browser_that_cannot_unpack_the_formulas_says_so(page, folder):
    page.add_init_script("delete window.DecompressionStream")
    open_page(page, folder)
    assert "too old" in page.inner_text("#planner-without")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("change", "said"),
    [({"sequence": 100}, "96 or 128"), ({"batch": 4, "accumulation": 2}, "one example"),
     ({"sequence": 2048}, "1,024 positions"), ({"kind": "lora", "precision": "fp32"}, "adapters"),
     ({"batch": 0}, "examples of a micro-batch")],
)  # fmt: skip
def test_what_the_page_does_not_know_gets_a_reason_and_the_command(page, folder, change, said):
    question = {**SMALL, **change}
    open_page(page, folder)
    assert said in page.evaluate("q => window.coursePlanner.refusalOf(q)", question)
    command = page.evaluate("q => window.coursePlanner.commandOf(q)", question)
    assert command.startswith("course plan gpt2-small --memory 4GB")


@pytest.mark.browser
def test_a_number_that_cannot_be_is_told_beside_the_command(page, folder):
    open_page(page, folder, page_search(SMALL))
    page.fill("#planner-sequence", "100")
    page.keyboard.press("Tab")
    assert "multiple of 32" in page.inner_text("#planner-verdict")
    assert page.locator("#planner-answer").is_hidden()
    assert "--sequence 100" in page.inner_text("#planner-command")
