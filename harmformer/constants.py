"""Constants that layers derive from their sizes (bases, spectra, masks, tables of distances): computed once, and never spoilt by
the caller's modes: tracing, fake tensors, `inference_mode`, a default device, `torch.func`."""

__all__ = ['alone', 'derived']

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, wraps
from typing import Callable
import torch


def alone(f):
    "Compute `f` once for each set of arguments, in a thread of its own: modes belong to a thread, so none of the caller's is on there."
    @lru_cache(maxsize=256)
    def once(*args):
        with ThreadPoolExecutor(1) as pool: return pool.submit(f, *args).result()
    return wraps(f)(once)


def derived(f)->Callable:
    """`f` derives a tensor in double precision on the CPU, `alone`. Called with `like=x`, the result comes in the precision (integers stay
    integers) and on the device of the tensor `x`."""
    once, kept = alone(f), {}
    array = alone(lambda *args: once(*args).numpy())

    @torch.compiler.assume_constant_result
    def handed(args, dtype, device):
        plain = type(torch.empty(0)) is torch.Tensor and not torch.is_inference_mode_enabled()  # no fake or inference tensor is kept
        if plain and (args, dtype, device) in kept: return kept[args, dtype, device]
        t = array(*args)
        t = torch.tensor(t, device=device) if t.dtype.kind in 'iub' else torch.tensor(t, dtype=dtype, device=device)
        if plain: kept[args, dtype, device] = t
        return t

    @wraps(f)
    def constant(*args, like=None): return once(*args) if like is None else handed(args, like.dtype, like.device)
    return constant
