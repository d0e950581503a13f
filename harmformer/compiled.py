"""Training steps that torch compiles: when that pays, how it is tried, and what happens where it does not work."""

__all__ = ['EARNED_BACK', 'pays', 'check_compile', 'compiled_step', 'stepping']

from contextlib import contextmanager
from typing import Any
import torch
from fastai.torch_core import num_distrib, rank_distrib
from harmformer.system import in_a_line

# (channels, convs, depth, upscale) of a model for 32 pixels: so many training images on a CPU earn the compilation back (26_speed).
# The number of images decides, not a clock: a run and its repetition must not differ in how they compute.
EARNED_BACK:dict[Any, int] = {
    ((8, 16), 2, 3, 1): 37_000,    # harmformer_digits, and harmformer_mnist in small form
    ((8, 16), 3, 4, 1): 17_000,    # harmformer_cifar in small form
    ((8, 16), 2, 3, 2): 11_000,    # harmformer_mnist
}


def pays(
    config:dict, # of a model
    images:int,  # that a run trains on, over all epochs
)->bool:
    "Does compiling earn its time back twice? Forms that nobody measured are not compiled"
    form = tuple(config.get(k) for k in ('channels', 'convs', 'depth', 'upscale'))
    if config.get('img_size') not in (32, (32, 32)) or not all(isinstance(o, (int, tuple)) for o in form): return False
    return images >= 2*EARNED_BACK.get(form, float('inf'))


def check_compile(compile):
    "`compile` itself, or an error that says what it may be"
    if compile in ('auto', True, False): return compile
    raise ValueError(f"compile is 'auto', True or False, not {compile!r}")


def _say(line):
    if not rank_distrib(): print(line, flush=True)


def _no_compiler():
    "Why there is no C++ compiler for torch, or None"
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler
        get_cpp_compiler()
    except Exception as e: return f'no C++ compiler was found ({in_a_line(e, 80)})'


def _try_step(learn, step, x, y):
    "One training step that leaves no trace: statistics, gradients and random numbers are as before"
    model, devices = learn.model, [x.device] if x.device.type == 'cuda' else []
    kept, grads, training = {k: v.clone() for k, v in model.named_buffers()}, [p.grad for p in model.parameters()], model.training
    try:
        with torch.random.fork_rng(devices), stepping(model.train(), step): learn.loss_func(model(x), *y).backward()
    finally:
        with torch.no_grad():
            for k, v in model.named_buffers(): v.copy_(kept[k])
        for p, g in zip(model.parameters(), grads): p.grad = g
        model.train(training)


def compiled_step(learn, epochs:int):
    "A compiled `forward` for the training steps of `learn`, tried once; None where it would not pay or does not work"
    model, steps = learn.model, len(learn.dls.train)*epochs
    on_cpu = str(learn.dls.device).startswith('cpu')
    if learn.compile == 'auto' and not (on_cpu and pays(getattr(model, 'config', {}), steps*(learn.dls.train.bs or 1))): return None
    if learn.compile is False: return None
    if num_distrib() > 1: why = 'several processes share the batches'
    else: why = _no_compiler() if on_cpu else None
    if why is None:
        _say(f'Compiling the training step, which takes about a minute; {steps:,} steps will use it.')
        try:
            x, *y = learn.dls.train.one_batch()
            plain, whole = model.to(x.device).forward, torch.compile(model.forward, fullgraph=True, dynamic=False)
            def step(images): return (whole if images.shape == x.shape else plain)(images)  # a shape of its own would be compiled anew
            _try_step(learn, step, x, y)
            return step
        except Exception as e: why = in_a_line(e)   # a compiler can fail in any way
    _say(f'Training steps are not compiled: {why}.')


@contextmanager
def stepping(model, step):
    "Within: `model` computes with `step` instead of its own `forward`"
    if step is None: yield; return
    model.forward = step                             # hooks, which check images and answers, stay
    try: yield
    finally: del model.forward
