"""Training with a teacher: updates compared with a plain loop, and bytes with the allocator."""

from dataclasses import replace

import pytest
import torch
from llamas import TIED, assert_measured, small_llama, value_of

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Workload, dry_run, estimate

LLAMA, DEEP = small_llama(2), small_llama(6)
LARGER = small_llama(3, hidden_size=128, intermediate_size=320, head_dim=32)
RECIPE = Recipe(batch=3, sequence=40)


def classifier(blocks, dim, labels=3):
    sizes = {"dim": dim, "hidden_dim": 2 * dim, "n_layers": blocks, "n_heads": 4, "vocab_size": 300}
    return models.configuration("distilbert-base-cased", labels=labels, **sizes, max_position_embeddings=128)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """Paths of models by name, as a recipe takes them."""
    folder = tmp_path_factory.mktemp("teachers")
    for name, config in {"language": LARGER, "classes": classifier(3, 128)}.items():
        config.save_pretrained(folder / name)
    return {name: str(folder / name) for name in ("language", "classes")}


def by_plain_loop(config, larger, batch, shifted) -> dict[str, torch.Tensor]:
    """The parameters after a step of SGD by half the label's loss and half of T² KL at T = 2 (Hinton et al. 2015)."""
    student, teacher = models.from_configuration(config), models.from_configuration(larger).eval()
    outputs = student(**batch)
    end = -1 if shifted else None  # the last token has nobody after it
    with torch.no_grad():
        logits = teacher(**{name: x for name, x in batch.items() if name != "labels"}).logits
        targets = (logits[:, :end] / 2).softmax(-1)
    divergence = (targets * (targets.log() - (outputs.logits[:, :end] / 2).log_softmax(-1))).sum(-1).mean()
    (0.5 * outputs.loss + 0.5 * 4 * divergence).backward()
    torch.optim.SGD(student.parameters(), lr=1e-4).step()
    return dict(student.named_parameters())


@pytest.mark.parametrize(
    ("config", "larger", "name"),
    [(LLAMA, LARGER, "language"), (TIED, LARGER, "language"), (classifier(2, 64), classifier(3, 128), "classes")],
    ids=["untied", "tied", "classes"],
)
def test_an_update_is_that_of_a_plain_loop(config, larger, name, teachers):
    workload = Workload(config, replace(RECIPE, optimizer="sgd", teacher=teachers[name]))
    model, optimizer, batches = workload.build()
    torch.manual_seed(1)  # for the student's dropout; the teacher has none
    expected = by_plain_loop(config, larger, batches[0], shifted=name == "language")
    torch.manual_seed(1)
    workload.step(model, optimizer, batches)
    before, parameters = dict(models.from_configuration(config).named_parameters()), dict(model.named_parameters())
    for key, parameter in expected.items():
        update = (parameter - before[key]).norm()
        assert (parameters[key] - parameter).norm() <= 1e-3 * update + 1e-12, key  # a key's bias moves nothing


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (LLAMA, {"precision": "bf16", "attention": "eager"}),
        (LLAMA, {"precision": "autocast", "checkpointing": True, "accumulation": 2}),
        *(
            pytest.param(LLAMA, changes, marks=pytest.mark.slow)
            for changes in ({"keeps_outputs": False, "in_backward": True}, {"lora": 4}, {"galore": 8, "packed": True})
        ),
        (TIED, {}),
        (DEEP, {}),
        (classifier(2, 64), {}),
    ],
)
def test_an_estimate_is_what_the_allocator_counts(config, changes, teachers):
    name = "classes" if config.model_type == "distilbert" else "language"
    predicted = estimate(config, replace(RECIPE, teacher=teachers[name], **changes))
    assert_measured(predicted, 0.0005)


@pytest.mark.slow
def test_few_blocks_tell_of_all_the_students_and_the_teacher_stays_whole(teachers):
    first = estimate(DEEP, replace(RECIPE, teacher=teachers["language"]))
    assert first.basis == "a dry run of 3 of its 6 blocks"
    names = first.working("forward")["what"].tolist()
    assert {"parameters of 6 model.layers", "parameters of 3 teacher.model.layers"} <= set(names)
    predicted = first.with_fields(batch=5, sequence=64)
    assert "formulas found" in predicted.basis
    for prediction in (first, predicted):
        assert prediction.peak == dry_run(prediction.workload.build, prediction.workload.step).peak
    terms = predicted.working("forward")
    for formula, size in zip(terms["formula"], terms["bytes"], strict=True):
        assert value_of(formula, predicted.sizes) == size, formula


def test_the_teacher_is_there_when_the_student_is_saved_and_no_part_of_it(teachers):
    without, with_teacher = (estimate(LLAMA, replace(RECIPE, teacher=name)) for name in ("", teachers["language"]))
    bytes_of_teacher = sum(p.nbytes for p in models.from_configuration(LARGER).parameters())
    for moment, peak in without.beside_training().items():
        assert with_teacher.beside_training()[moment] - peak == pytest.approx(bytes_of_teacher, rel=0.01), moment


def test_a_teacher_that_does_not_suit_the_student_is_refused(teachers, tmp_path):
    with pytest.raises(CourseError, match="The student says 300 numbers for each label and the teacher 50,257"):
        estimate(LLAMA, replace(RECIPE, teacher="gpt2-small"))
    classifier(2, 64, labels=5).save_pretrained(tmp_path)
    with pytest.raises(CourseError, match="the same classes"):
        estimate(classifier(2, 64), replace(RECIPE, teacher=str(tmp_path)))
    longer = small_llama(2, max_position_embeddings=512)
    with pytest.raises(CourseError, match="sequence of 200 tokens is longer than the model's 128 positions"):
        estimate(longer, replace(RECIPE, sequence=200, teacher=teachers["language"]))
    with pytest.raises(CourseError, match="A teacher needs labels .* leave teacher out for OwnLinear"):
        estimate(OwnLinear, replace(RECIPE, teacher=teachers["language"]), batch=lambda b, s: (torch.ones(b, 4),))
    with pytest.raises(CourseError, match="No model is called 'nobody'"):
        estimate(LLAMA, replace(RECIPE, teacher="nobody"))


class OwnLinear(torch.nn.Linear):
    """A network of one's own, which returns its loss."""

    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        return super().forward(x).sum()
