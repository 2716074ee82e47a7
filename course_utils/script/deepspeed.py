"""ZeRO as DeepSpeed has it (Rajbhandari et al. 2020), behind the interface of the other engines."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from course_utils.distributed.torchrun import announce
from course_utils.script.engines import CLIP_TO, Engine, OptimizerOf
from course_utils.script.job import BatchSplit
from course_utils.settings import set_variable, settings, variables

_STATE_FOLDER = "deepspeed"  # the folder of DeepSpeed's files in a checkpoint


class DeepSpeed(Engine):
    """Stage 1, 2 or 3 of ZeRO in `fp32`, `bf16` or `autocast`.

    Needs a process group that stands. In `bf16` DeepSpeed updates float32 copies of the weights.
    """

    averages = is_opaque = casts_itself = True

    def __init__(self, plain: nn.Module, optimizer_of: OptimizerOf, split: BatchSplit):
        library = _import_deepspeed()
        job = split.job
        config = {
            "train_micro_batch_size_per_gpu": split.micro_batch,
            "gradient_accumulation_steps": split.accumulation,
            "gradient_clipping": CLIP_TO if job.clipping else 0.0,
            "zero_allow_untested_optimizer": True,
            # Parameters below the threshold stay whole on every rank: 100,000 elements, if nobody says otherwise.
            "zero_optimization": {"stage": int(job.strategy[-1]), "stage3_param_persistence_threshold": 0},
            "bf16": {"enabled": job.precision == "bf16"},
            # Not `torch.autocast` around the call: DeepSpeed ends that on a GPU, where its own is not asked for.
            "torch_autocast": {"enabled": job.precision == "autocast", "dtype": "bfloat16"},
            "steps_per_print": 10**9,
        }
        self.plain = plain
        self.clips = job.clipping
        self.model, self.optimizer, *_ = library.initialize(model=plain, optimizer=optimizer_of(plain), config=config)

    @contextmanager
    def micro_batch_context(self, is_last: bool) -> Iterator[None]:
        yield
        if not is_last:
            self.model.step()  # It only counts, until the micro-batches of an update are complete.

    def backward(self, loss: Tensor) -> None:
        self.model.backward(loss, scale_wrt_gas=False)  # else it divides by the number of micro-batches

    def clip(self, max_norm: float) -> None:
        """Nothing: DeepSpeed clips in its own step."""

    def update(self, step: Callable[[], object]) -> None:
        self.model.step()
        if self.clips:
            self.norm = self.model.get_global_grad_norm()

    def write(self, folder: Path) -> None:
        """Write the files of every rank into `folder`."""
        self.model.save_checkpoint(str(folder), tag=_STATE_FOLDER, save_latest=False)

    def read(self, folder: Path) -> None:
        """Load what as many ranks wrote into `folder`."""
        self.model.load_checkpoint(str(folder), tag=_STATE_FOLDER)


def _import_deepspeed():
    """DeepSpeed, which has been told the device, and to log errors alone."""
    set_variable("DS_ACCELERATOR", settings().device.type)  # else it looks for other devices, at length
    if not variables("LOCAL_RANK"):
        announce()
    import deepspeed

    # Else it compiles this operator of inference when ranks first talk to each other: a minute, with ninja and a C++ compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"deepspeed|torch\.distributed")
    return deepspeed
