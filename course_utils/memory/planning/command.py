"""A recipe as the command `course train`, and as the file by which Slurm starts it on several nodes."""

import shlex
from pathlib import Path

from course_utils.errors import CourseError, require_count
from course_utils.memory.step.recipe import Recipe, flag_of, plain_recipe
from course_utils.models import PUBLIC, canonical_name, tokenizer_beside

PORT = 29400
"""The store's port, which is also torchrun's default."""
RESTARTS = 100
FRESH_ADDRESSES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Environment variables for torchrun, which would else keep one store for its workers through all restarts. A restarted worker
may read an old address there, and a node that replaces a lost one waits for an address that is not written again (PyTorch's issue
135712)."""
ADDRESS_VARIABLE = "=".join(*FRESH_ADDRESSES.items())
DATA, OUT = "text.txt", "runs"
_STEPS = 1000
_MODULE = ["-m", "--", "course_utils.cli", "train"]

OWN_LOOP_CALLS = {
    "attention": "attn_implementation of Transformers' from_config",
    "zero_grad": "optimizer.zero_grad between forward and backward, or with set_to_none=False",
    "label_smoothing": "torch.nn.functional.cross_entropy(…, label_smoothing=…)",
    "trl_loss": "trl.SFTTrainer",
    "eval_batch": "torch.no_grad",
    "eval_logits": "torch.cat of the logits",
    "in_backward": "training.UpdateInBackward",
    "segments": "techniques.checkpoint_blocks",
    "offload_activations": "torch.autograd.graph.save_on_cpu",
    "saved_on_disk": "techniques.SavedOnDisk",
    "lora_targets": "peft.LoraConfig(target_modules=…)",
    "modules_to_save": "peft.LoraConfig(modules_to_save=…)",
    "lora_dropout": "peft.LoraConfig(lora_dropout=…)",
    "frozen": "requires_grad_(False)",
    "quantized": "bitsandbytes.nn.Linear4bit",
    "galore": "optim.GaLore",
    "teacher": "techniques.distillation_loss",
    "context_parallel": "distributed.ring_attention.RingAttention",
    "offload": "torch.distributed.fsdp.CPUOffloadPolicy",
}
"""Fields for which `course train` has no flag, each with what a loop of one's own would call."""
# ZeRO stages that an optimizer refuses. Adafactor needs whole tensors; `ZeroRedundancyOptimizer` wraps only torch's optimizers.
_REFUSED_STAGES = {"adafactor": (3,), "adafactor-transformers": (1, 3)}
_STRATEGIES = {0: "ddp", 1: "zero1", 3: "fsdp2"}
_SWITCHES = ("clipping", "checkpointing", "packed", "compiled")
_NUMBERS = ("chunked_loss", "lora")


def train_command(model: str, recipe: Recipe) -> str:
    """The command for one machine. Raises `CourseError` for a field for which `course train` has no flag."""
    ranks = ["--ranks", str(recipe.ranks)] if recipe.ranks > 1 else []
    argv = ["course", "train", *ranks, *_model_flags(model), *_recipe_flags(recipe)]
    return "\n".join([*remarks(model, recipe), shlex.join(argv)])


def torchrun_command(model: str, recipe: Recipe, nodes: int = 1) -> str:
    """The command that runs on each of `nodes` nodes; for several, a remark above it has the command of their store."""
    train = shlex.join([*_MODULE, *_model_flags(model), *_recipe_flags(recipe)])
    if nodes == 1:
        return "\n".join([*remarks(model, recipe), f"torchrun --standalone --nproc-per-node {recipe.ranks} {train}"])
    lines = [
        f"# First, on a node that all others reach: python -m course_utils.script.store --host 0.0.0.0 --port {PORT}",
        "# Then this on each node, with the first node's name for HOST and a new word for each run as ID:",
        f"{ADDRESS_VARIABLE} {_torchrun_call(recipe, nodes, str(nodes), 'HOST', 'ID')} {train}",
    ]
    return "\n".join([*remarks(model, recipe), *lines])


def slurm_file(model: str, recipe: Recipe, nodes: int = 1) -> str:
    """The file for `sbatch` that starts the store once and torchrun on each node."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    notes = remarks(model, recipe)
    tokenizer_folder = tokenizer_beside(model)
    if tokenizer_folder and tokenizer_folder.name:  # so that the job finds the tokenizer too
        model = str(tokenizer_folder)
    files = DATA
    if Path(model).exists():
        tokenizer = " with its tokenizer" if tokenizer_folder and Path(model).is_file() else ""
        copy = ""
        if Path(model).is_absolute():  # the path need not exist where the job runs
            copy = f" (a copy of {model})"
            model = Path(model).name
        files = f"{DATA} and {model}{tokenizer}{copy}"
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return templates.get_template("slurm.sh.j2").render(
        nodes=nodes,
        ranks_per_node=_ranks_per_node(recipe, nodes),
        gpus=recipe.device == "cuda",
        train=[shlex.join([*_MODULE, *_model_flags(model)]), shlex.join(_recipe_flags(recipe))],
        torchrun=_torchrun_call(recipe, nodes, '"$SLURM_JOB_NUM_NODES"', '"$first"', '"$SLURM_JOB_ID"'),
        files=files,
        remarks="\n".join(notes),
        address_variable=ADDRESS_VARIABLE,
        port=PORT,
    )


def weights_of(model: str) -> str:
    """The name on the Hub of a named model's trained weights; empty if it is not known."""
    return PUBLIC[name].hub if (name := canonical_name(model)) in PUBLIC else ""


def remarks(model: str, recipe: Recipe) -> list[str]:
    """Lines of comment on what `course train` does and the plan leaves open: its initial weights, its tokens, what it keeps."""
    weights = weights_of(model) or "a name on the Hub"
    but = ", which adapters leave as they are" if recipe.lora else ""
    lines = [f"# From random weights{but}. To fine-tune, add --weights and {weights}, or a folder."]
    tokens = "bytes, unless --tokenizer or --weights is given"
    if tokenizer_folder := tokenizer_beside(model):
        tokens = f"those of the tokenizer in {tokenizer_folder.resolve().name}"
    lines.append(f"# Tokens are {tokens}.")
    lines.append(
        "# Yours to set: --steps, --lr (default: 0.001), and --save-every, the updates that a restart may have to repeat."
    )
    names = (name for name in ("keeps_outputs", "use_cache") if getattr(recipe, name))
    if flags := [flag_of(name).replace("--", "--no-") for name in names]:
        peak = f"its peak is the one that course plan predicts with {' '.join(flags)}"
        lines.append(f"# It keeps only the loss, and no keys and values after a block, so {peak}.")
    if recipe.optimizer == "sgd":
        lines.append("# The default rate is for AdamW: choose another for SGD.")
    return lines


def _model_flags(model: str) -> list[str]:
    return ["--model", model, "--data", DATA, "--out", OUT]


def _recipe_flags(recipe: Recipe) -> list[str]:
    """The flags of a recipe, without those that spread ranks over machines. Raises `CourseError` for what has no flag."""
    _refuse_what_has_no_flag(recipe)
    update = recipe.batch * recipe.accumulation * recipe.ranks
    flags = ["--strategy", _strategy(recipe)]
    if recipe.replicas > 1:
        flags += ["--replicas", str(recipe.replicas)]
    flags += ["--optimizer", recipe.optimizer, "--precision", recipe.precision]
    flags += ["--batch", str(update), "--micro-batch", str(recipe.batch), "--sequence", str(recipe.sequence)]
    # Without checkpoints a restart would begin again.
    flags += ["--steps", str(_STEPS), "--save-every", str(_STEPS // 10)]
    for name in _NUMBERS:
        if getattr(recipe, name):
            flags += [flag_of(name), str(getattr(recipe, name))]
    return flags + ["--compile" if name == "compiled" else flag_of(name) for name in _SWITCHES if getattr(recipe, name)]


def _strategy(recipe: Recipe) -> str:
    if recipe.zero_stage == 2:
        raise CourseError(
            "course train shards with FSDP2, and then the parameters too; take zero_stage=3, zero_stage=1, or DeepSpeed's own "
            "stage 2 by --strategy deepspeed-2, whose bytes are not those of this plan."
        )
    if recipe.ranks == 1:
        return "none"
    return "hsdp" if recipe.replicas > 1 else _STRATEGIES[recipe.zero_stage]


def _refuse_what_has_no_flag(recipe: Recipe) -> None:
    if recipe.optimizer == "adamw4bit" or not isinstance(recipe.optimizer, str):
        raise CourseError(
            "course train takes an optimizer by its name, and of adamw4bit the plan has only the bytes; give another, or write a "
            "loop of your own."
        )
    if recipe.precision == "bf16-masters":
        raise CourseError(
            "course train has no flag for precision='bf16-masters'; take autocast, or write a loop of your own with "
            "precision.MasterWeights."
        )
    if recipe.zero_stage in _REFUSED_STAGES.get(recipe.optimizer, ()):
        raise CourseError(
            f"{recipe.optimizer} does not go with zero_stage={recipe.zero_stage} in course train: it looks at whole tensors, or "
            "is no optimizer of torch's, as ZeRO-1 wants; take an AdamW, or no ZeRO."
        )
    unknown = [name for name in plain_recipe(recipe) if name in OWN_LOOP_CALLS]
    if unknown:
        values = " and ".join(f"{name}={getattr(recipe, name)!r}" for name in unknown)
        parts = " and ".join(OWN_LOOP_CALLS[name] for name in unknown)
        raise CourseError(f"course train has no flag for {values}; write a loop of your own with {parts}.")


def _torchrun_call(recipe: Recipe, nodes: int, count: str, host: str, run: str) -> str:
    """The call of torchrun. The `count` of nodes, the store's `host` and the `run`'s id may be variables for a shell."""
    return (
        f"torchrun --nnodes {count} --nproc-per-node {_ranks_per_node(recipe, nodes)} --max-restarts {RESTARTS} "
        f"--rdzv-backend c10d --rdzv-endpoint {host}:{PORT} --rdzv-id {run} --rdzv-conf is_host=0"
    )


def _ranks_per_node(recipe: Recipe, nodes: int) -> int:
    require_count("nodes", nodes)
    if recipe.ranks % nodes:
        raise CourseError(f"ranks={recipe.ranks} do not divide among {nodes} nodes; give a multiple of {nodes}.")
    return recipe.ranks // nodes
