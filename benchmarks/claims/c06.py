"""Chapter 06: the two runs of *Does it matter?* with a seed of their own, at the scale that the chapter is stored at."""

import torch

from benchmarks.claims import claim
from course_utils import data, models
from course_utils.lessons.c06_gradient_accumulation import train_on_texts
from course_utils.settings import SCALES

SCALE = SCALES["laptop"]


@claim("06-report")
def the_mean_over_texts_is_lower_and_held_out_tokens_are_predicted_alike(seed):
    """The seed decides the weights and the order of the texts."""
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)
    order = torch.randperm(60 * 32, generator=torch.Generator().manual_seed(seed))
    names = ("input_ids", "attention_mask")
    texts, held_out = (
        [torch.tensor(rows[split][:count][n]) for n in names] for split, count in (("train", 1920), ("validation", 200))
    )
    texts = [tensor[order] for tensor in texts]
    runs = [
        train_on_texts(models.build("llama", scale=SCALE, seed=seed), *texts, held_out, by_text)
        for by_text in (False, True)
    ]
    lower = (
        all(run["by text"][-1] < run["by token"][-1] for run in runs)
        and runs[1]["reported"][-1] < runs[0]["reported"][-1]
    )
    return lower and abs(runs[0]["by token"][-1] - runs[1]["by token"][-1]) < 0.1
