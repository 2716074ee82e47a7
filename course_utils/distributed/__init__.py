"""Several processes on one machine, as ranks of one `torch.distributed` group: started, watched and ended."""

from course_utils.distributed.launch import SECONDS, RankError, launch

__all__ = ["SECONDS", "RankError", "launch"]
