"""Several micro-batches to an update: the same parameters as from all of them at once."""

from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from course_utils import data, memory, models, optim, training
from course_utils.errors import CourseError
from course_utils.memory.step.losses import learn_from
from course_utils.training import Accumulate, Autocast, ClipGradients, SaveCheckpoints

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
GPT2 = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
VOCABULARY, LENGTH = 30, 7


class Tagger(nn.Module):
    """A label for each token, so that -100 can leave any of them out; small enough for hundreds of examples."""

    def __init__(self, dropout=0.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.table = nn.Embedding(VOCABULARY, 4, dtype=torch.float64)
            self.head = nn.Linear(4, 3, dtype=torch.float64)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids, labels):
        logits = self.head(self.dropout(torch.tanh(self.dropout(self.table(input_ids)))))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)


def ragged(counts, seed=0, rows=2):
    """A micro-batch for each count: `rows` rows of tokens of which so many carry a label."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for count in counts:
        ids = torch.randint(VOCABULARY, (rows, LENGTH), generator=draw)
        labels = torch.randint(3, (rows * LENGTH,), generator=draw)
        labels[torch.randperm(rows * LENGTH, generator=draw)[count:]] = -100
        batches.append({"input_ids": ids, "labels": labels.view(rows, LENGTH)})
    return batches


def concatenate(micro_batches):
    return {name: torch.cat([batch[name] for batch in micro_batches]) for name in micro_batches[0]}


def groups_of(batches, k):
    return [concatenate(batches[i : i + k]) for i in range(0, len(batches), k)]


def train(batches, callbacks=(), **options):
    """A tagger after training, and the history."""
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    options |= {"schedule": schedule, "callbacks": list(callbacks), "progress": False}
    return model, training.train(model, optimizer, batches, **options)


def assert_same(first, second, tolerance=1e-12):
    for (name, p), q in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=tolerance), (name, (p - q).abs().max())


@given(
    counts=st.lists(st.integers(1, 2 * LENGTH), min_size=1, max_size=7),
    k=st.integers(1, 8),
    epochs=st.integers(1, 2),
    clip=st.sampled_from([None, 0.05]),
    seed=st.integers(0, 1000),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_parameters_are_those_of_whole_batches(counts, k, epochs, clip, seed):
    batches = ragged(counts, seed)
    clipping = [ClipGradients(clip)] if clip else []
    accumulated, history = train(batches, [Accumulate(k), *clipping], epochs=epochs)
    expected, expected_history = train(groups_of(batches, k), clipping, epochs=epochs)
    assert_same(accumulated, expected)
    rates = history.frame()["learning_rate"].tolist()
    at_updates = [rates[i] for i in range(len(rates)) if i % len(batches) % k == 0]
    assert at_updates == expected_history.frame()["learning_rate"].tolist()
    assert len(at_updates) == training.num_updates(len(batches), k, epochs)


def test_a_micro_batch_in_which_nothing_counts_changes_nothing():
    batches = ragged([0, 4, 0, 9])
    assert_same(train(batches, [Accumulate(4)])[0], train([concatenate(batches)])[0])
    model, _ = train(ragged([0, 0]), [Accumulate(2)])
    assert_same(model, Tagger(), 0)


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_the_end_of_the_run_makes_an_update_of_what_is_left(steps):
    batches = ragged([3, 9, 5, 7, 2])
    accumulated, _ = train(batches, [Accumulate(3)], steps=steps)
    assert_same(accumulated, train(groups_of(batches[:steps], 3))[0])


class Interrupt(training.Callback):
    """Ends the run as a failure would."""

    def __init__(self, after):
        self.after = after

    def after_batch(self, run):
        if run.step == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stopped_after", [1, 2, 4, 6])
def test_a_run_resumed_in_the_middle_of_a_group_gives_the_same_losses(tmp_path, stopped_after):
    batches = ragged([3, 9, 5, 7, 2])
    path = tmp_path / "run.pt"

    class Repeatable(list):
        sampler = SimpleNamespace(set_epoch=lambda epoch: None)

    def run_training(*extra_callbacks, **options):
        model = Tagger(dropout=0.5)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        schedule = training.linear_decay(optimizer, training.num_updates(5, 3, 2))
        callbacks = [Accumulate(3), ClipGradients(0.1), *extra_callbacks]
        run = {"schedule": schedule, "callbacks": callbacks, "progress": False, "epochs": 2}
        return model, training.train(model, optimizer, Repeatable(batches), **run, **options)

    model, expected = run_training()
    with pytest.raises(KeyboardInterrupt):
        run_training(SaveCheckpoints(path, stopped_after), Interrupt(stopped_after))
    resumed_model, resumed = run_training(resume_from=path)
    assert resumed.losses == expected.losses
    assert_same(resumed_model, model, 0)


def test_padding_and_autocast_on_a_real_model(split):
    """Autocast rounds by row and not by batch, so both ways round alike but for the sums over the batch."""
    batches = list(data.batches(split, 8))
    results = {}
    for name, examples, callbacks in [
        ("whole", [concatenate(batches)], []),
        ("accumulated", batches, [Accumulate(len(batches))]),
    ]:
        for autocast in ([], [Autocast(torch.bfloat16)]):
            model = models.build("distilbert", labels=3, **NO_DROPOUT)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            training.train(model, optimizer, examples, callbacks=[*callbacks, *autocast], progress=False)
            results[name, bool(autocast)] = model
    assert_same(results["accumulated", False], results["whole", False], 1e-6)
    assert_same(results["accumulated", True], results["whole", True], 2e-3)


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("labels", [None, 3])
def test_terms_are_those_of_the_models_own_loss(family, labels):
    model = models.build(family, labels=labels).eval()
    ids = torch.randint(1, 900, (3, 9))
    targets = torch.where(torch.rand(3, 9) < 0.4, -100, ids) if labels is None else torch.tensor([0, 2, 1])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": targets}
    assert_terms(model, batch, shifts=labels is None and family != "distilbert")


def assert_terms(model, batch, shifts):
    """A loss that is a mean of T terms, times T, is the sum that its logits give."""
    with torch.no_grad():
        output = model(**batch)
    logits, targets = output.logits, batch["labels"]
    if shifts:
        logits, targets = logits[:, :-1], targets[:, 1:]
    total = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
    assert total.item() == pytest.approx(training.num_loss_tokens(model, batch) * output.loss.item(), rel=1e-5)


def test_labels_of_floating_point_all_count():
    model = models.build("distilbert", labels=1)
    assert training.num_loss_tokens(model, {"labels": torch.tensor([-100.0, 0.5, 2.0])}) == 3


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_no_number_of_micro_batches_is_refused(k):
    with pytest.raises(ValueError, match="1 or more"):
        Accumulate(k)


def test_the_joint_loss_of_a_step_is_the_mean_over_its_terms():
    batches = ragged([3, 9, 0])
    model = Tagger()
    expected = model(**concatenate(batches)).loss.item()
    step = training.accumulated_step(model, torch.optim.SGD(model.parameters()), batches)
    assert step == pytest.approx(expected, rel=1e-12)


def test_the_peak_rises_by_one_gradient_and_no_more():
    model = models.build("distilbert", labels=2)
    recipe = memory.Recipe(batch=16, sequence=32)
    batch = memory.Workload(model.config, recipe).build()[2][0]
    optimizer = optim.AdamW(model.parameters())
    peaks = [
        memory.measure((model, optimizer, [batch] * k), training.accumulated_step, timed=0).peak for k in (1, 2, 4)
    ]
    gradients = models.parameter_bytes(model)
    assert peaks[1] - peaks[0] == pytest.approx(gradients, rel=0.1)
    assert peaks[2] == pytest.approx(peaks[1], rel=0.01)


class Scaled(training.Callback):
    """Another callback that rescales, as a loss scaler does."""

    rescales = True

    def scale_loss(self, run, loss):
        return loss * 1024

    def before_update(self, run):
        for parameter in run.model.parameters():
            parameter.grad /= 1024


def test_the_order_among_callbacks_that_rescale_does_not_matter():
    batches = ragged([3, 9, 5, 7, 2])
    right, _ = train(batches, [Accumulate(2), ClipGradients(0.05)])
    for callbacks in ([Accumulate(2), Scaled()], [Scaled(), Accumulate(2)]):
        assert_same(train(batches, [*callbacks, ClipGradients(0.05)])[0], right)


def test_a_class_of_the_readers_own_shifts_labels_like_the_class_it_extends():
    model = models.build("llama")
    subclass = type("Mine", (type(model),), {})
    batch = {"labels": torch.arange(6).view(2, 3)}
    model.__class__ = subclass
    assert training.num_loss_tokens(model, batch) == 4
    learn_from(model, models.build("llama"))  # another class, whose forward is no plain function
    assert training.num_loss_tokens(model, batch) == 4


class Wrapper(nn.Module):
    """Hands its batch on to the module in it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, **batch):
        return self.module(**batch)


def with_adapters(model):
    options = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
    return peft.get_peft_model(model, peft.LoraConfig(**options))


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "wrap",
    [
        with_adapters,
        nn.parallel.DistributedDataParallel,
        Wrapper,
        pytest.param(lambda model: torch.compile(model, backend="eager"), marks=pytest.mark.slow),
        lambda model: Wrapper(with_adapters(model)),
    ],
    ids=["PEFT", "DDP", "module", "compile", "module around PEFT"],
)
def test_a_wrapped_causal_model_accumulates_to_the_update_of_the_whole_batch(wrap, process_group):
    ids = torch.randint(5, 100, (6, 12), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    for row, length in enumerate([12, 3, 2, 9, 4, 12]):
        labels[row, length:] = -100
    parts = [slice(0, 3), slice(3, 4), slice(4, 6)]
    ends = []
    for at_once in (True, False):
        torch.manual_seed(0)
        model = wrap(models.build("gpt2", **GPT2).double())
        parameters = [p for p in model.parameters() if p.requires_grad]
        start = nn.utils.parameters_to_vector(parameters).detach().clone()
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        if at_once:
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
        else:
            training.accumulated_step(model, optimizer, [{"input_ids": ids[p], "labels": labels[p]} for p in parts])
        ends.append(nn.utils.parameters_to_vector(parameters).detach())
    expected, accumulated = ends
    assert (accumulated - expected).norm() < 3e-7 * (expected - start).norm()  # the loss itself is made in float32


def test_a_vision_language_model_predicts_the_next_token_too():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision, text = transformers.CLIPVisionConfig(**sizes), transformers.LlamaConfig(**sizes, vocab_size=100)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    ids = torch.randint(5, 90, (3, 9))
    assert_terms(model, {"input_ids": ids, "labels": torch.where(torch.rand(3, 9) < 0.4, -100, ids)}, shifts=True)


def encoder_decoder():
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


def test_an_encoder_and_decoder_is_told_every_label():
    assert training.num_loss_tokens(Wrapper(encoder_decoder()), {"labels": torch.arange(6).view(2, 3)}) == 6


def test_a_model_of_which_it_is_not_known_whether_labels_shift_is_refused():
    own_loss = transformers.BartForCausalLM(
        transformers.BartConfig(vocab_size=50, d_model=16, decoder_layers=1, decoder_attention_heads=2)
    )
    with_a_head = nn.ModuleDict({"language": models.build("gpt2"), "head": nn.Linear(4, 2)})
    for model in (own_loss, with_a_head):
        with pytest.raises(CourseError, match="may or may not count the first label"):
            training.num_loss_tokens(model, {"labels": torch.arange(6).view(2, 3)})
