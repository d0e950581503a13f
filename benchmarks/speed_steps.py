"""Steps of a model in one form, measured on request by speed.py. It imports little, for it also runs with the package of an older commit.

    python benchmarks/speed_steps.py FORM THREADS    FORM is eager, compiled or direct; reads lines such as ["harmformer_digits", "train", 16, 5]
"""
import json, os, sys, time
from itertools import accumulate
import torch
import torch.nn.functional as F
from harmformer.core import create_model
try: from harmformer.system import reuse_memory
except ImportError: from harmformer.train import reuse_memory  # 0.1.0

SMALL = dict(upscale=1, kernel_size=9)
CASES = {  # (model, mode, batch): arguments
    ('harmformer_digits', 'train', 16): {}, ('harmformer_cifar', 'train', 16): SMALL, ('harmformer_mnist', 'train', 32): {},
    ('harmformer_mnist', 'eval', 100): {}, ('harmformer_digits', 'eval', 32): {}}


def model_step(name='harmformer_mnist', mode='train', batch=32, form='eager', **kw):
    "One forward and backward pass of a model, or one evaluation; `form` is eager, compiled or direct."
    torch.manual_seed(0)
    model, train = create_model(name, **CASES.get((name, mode, batch), {}), **kw, **(dict(engine='direct') if form == 'direct' else {})), mode == 'train'
    x, y = torch.rand(batch, model.config['in_channels'], 32, 32), torch.arange(batch) % 10
    run = torch.compile(model.train(train), fullgraph=True, dynamic=False) if form == 'compiled' else model.train(train)

    def step():
        with torch.set_grad_enabled(train):
            loss = F.cross_entropy(run(x), y)
            if train: loss.backward()
    return step


def clock_of(threads):
    "One thread is timed by what it computes, so that it does not matter who else uses the machine"
    return time.process_time if threads == 1 else time.perf_counter


def _spent(): return sum(os.times()[:4])  # CPU seconds, with those of compilers that have ended


def peak_memory(step):
    "MB of tensors that a step adds at its peak"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as p: step()
    events = sorted((e.start_ns(), e.nbytes()) for e in p.profiler.kineto_results.events() if e.name() == '[memory]')
    return max(accumulate(n for _, n in events))/2**20


def serve(form, threads):
    "Answer lines [model, mode, batch, steps] on stdin by milliseconds, the smallest of so many steps; 0 steps: MB at the peak of one."
    torch.set_num_threads(threads)
    reuse_memory()
    steps = {}
    for line in sys.stdin:
        *case, n = json.loads(line)
        if (case := tuple(case)) not in steps:
            began, steps[case] = _spent(), model_step(*case, form)
            steps[case](); steps[case]()
            answer, n = _spent() - began, None
        if n == 0:
            answer = peak_memory(steps[case])
        elif n:
            times, clock = [], clock_of(threads)
            for _ in range(n): t = clock(); steps[case](); times.append(clock() - t)
            answer = 1000*min(times)
        print('=', answer, flush=True)


if __name__ == '__main__': serve(sys.argv[1], int(sys.argv[2]))
