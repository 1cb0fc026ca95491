"""Communication between the processes of `torchrun`, and the error if another process has ended."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor


class PeerLostError(RuntimeError):
    """Another process of the training has ended."""


def init_process_group(device: torch.device) -> None:
    """Connect to the other processes, once for all trainings of this one."""
    if dist.is_initialized():
        return
    has_own_gpu = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()  # NCCL needs one for each
    with peer_errors():
        dist.init_process_group("nccl" if device.type == "cuda" and has_own_gpu else "gloo")
    atexit.register(dist.destroy_process_group)


def all_reduce(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the sum over all processes, or those of a group, the same bits on each."""
    with peer_errors():
        if dist.get_backend() == "nccl":
            dist.all_reduce(tensor, group=group)
            return tensor
        host = tensor.cpu()
        dist.all_reduce(host, group=group)
        return host.to(tensor.device)


def shutdown(code: int) -> None:
    """End this process at once if it is one of several: an interpreter that exits under PyTorch's threads may abort."""
    if not dist.is_initialized():
        return
    if code == 0:
        with suppress(RuntimeError):
            dist.barrier()  # no process disconnects while another still receives
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def peer_errors() -> Iterator[None]:
    """Raise PeerLostError for the errors that the network raises when a process has ended."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it now; first the run is saved
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PeerLostError(f"another process of this training has ended ({line})") from error
