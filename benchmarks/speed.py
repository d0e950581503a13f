"""How fast are the engines of HConv2d, and the model with them? Writes nbs/results/speed_*.csv, which 26_speed.ipynb draws.

    python benchmarks/speed.py            all of it, about 10 minutes on two cores
    python benchmarks/speed.py --quick    the ratios and the memory only; writes nothing

Engines take turns within one run, and a time is the smallest of several: read ratios, not seconds.
"""
import csv, gc, multiprocessing, platform, subprocess, time
from pathlib import Path
import torch
import torch.nn.functional as F
from fastcore.script import call_parse
from fastprogress import progress_bar
from harmformer.conv import HConv2d, ring_basis
from harmformer.core import create_model
from harmformer.data import benchmark_dls
from harmformer.train import fit, harmformer_learner, reuse_memory
from fastai.callback.core import Callback

OUT = Path(__file__).resolve().parent.parent/'nbs'/'results'
RINGS = {3: 1, 5: 1, 7: 2}


def conv_step(engine, channels, size, kernel, batch):
    "A function that runs one forward and backward pass of a hidden harmonic convolution."
    torch.manual_seed(0)
    layer = HConv2d(channels, channels, kernel, RINGS.get(kernel, 3), engine='direct' if engine == 'torch' else engine)
    x = torch.randn(batch, 3, channels, size, size, dtype=torch.complex64, requires_grad=True)
    g = torch.randn_like(x)

    def complex_conv2d():
        B = ring_basis(kernel, layer.rings, layer.orders).to(torch.complex64).flip(-1, -2)
        W = torch.einsum('kio,khw->oihw', torch.complex(*layer.coefficients()), B)
        return F.conv2d(x.flatten(1, 2), W, padding='same').view_as(x)
    forward = complex_conv2d if engine == 'torch' else lambda: layer(x)
    return lambda: torch.autograd.grad(forward(), (x, *layer.parameters()), g)


def model_step(engine, batch=32, train=True):
    "One forward and backward pass of harmformer_mnist, or one evaluation."
    torch.manual_seed(0)
    model, x, y = create_model('harmformer_mnist', engine=engine).train(train), torch.rand(batch, 1, 32, 32), torch.arange(batch) % 10

    def step():
        with torch.set_grad_enabled(train):
            loss = F.cross_entropy(model(x), y)
            if train: loss.backward()
    return step


def profile_step(engine):
    "Share of each kind of operation in training steps, largest first."
    step = model_step(engine)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        for _ in range(1 if engine == 'direct' else 5): step()
    rows = [(e.key, e.self_cpu_time_total) for e in p.key_averages()]
    return [(engine, k.removeprefix('aten::'), round(t/sum(t for _, t in rows), 4)) for k, t in sorted(rows, key=lambda r: -r[1])[:15]]


def race(steps, seconds=4., least=2, turn=1.):
    "Milliseconds of each step, the smallest of at least `least` rounds in which each has its turn, of a second or one step."
    best = dict.fromkeys(steps, float('inf'))
    for s in steps.values(): s()  # plans, caches
    start, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - start < seconds:
        for name, step in steps.items():
            began = time.perf_counter()
            while time.perf_counter() - began < turn:
                t = time.perf_counter(); step()
                best[name] = min(best[name], 1000*(time.perf_counter() - t))
        rounds += 1
    return best


def _status(key): return next(int(l.split()[1])/1024 for l in open('/proc/self/status') if l.startswith(key))


def _peak(make, args, queue):
    step = make(*args)
    gc.collect()
    before = _status('VmRSS')
    step()
    queue.put(_status('VmHWM') - before)


def peak_memory(make, *args):
    "MB that one step adds at its peak, in a process of its own (Linux)."
    if platform.system() != 'Linux': return float('nan')
    ctx = multiprocessing.get_context('spawn')
    queue = ctx.SimpleQueue()
    p = ctx.Process(target=_peak, args=(make, args, queue)); p.start(); p.join()
    return queue.get()


def cases(quick):
    "(what, channels, size, kernel, batch, engines)"
    res = [('ratio', c, s, 15, 32, ('fft', 'direct', 'torch')) for c, s in ((8, 64), (16, 32))]
    if quick: return res
    res += [('kernel', 8, 64, k, 8, ('fft', 'direct')) for k in (3, 5, 7, 9, 11, 15, 21, 25, 31)]
    return res + [('map', 8, s, 15, 4, ('fft', 'direct')) for s in (16, 24, 32, 48, 64, 96, 128, 192, 256)]


def model_rows():
    "Training step and evaluation of the whole model."
    steps = {(e, 'train', 32): model_step(e) for e in ('fft', 'direct')} | {('fft', 'eval', 100): model_step('fft', 100, False)}
    return [dict(engine=e, mode=mode, batch=b, ms=round(ms, 1), images_per_s=round(1000*b/ms, 1), peak_mb=round(peak_memory(model_step, e, b, mode == 'train'), 1))
            for (e, mode, b), ms in race(steps, seconds=100, turn=6.).items()]


class TrainTime(Callback):
    "Seconds of the training part of the last epoch."
    def before_train(self): self.start = time.perf_counter()
    def after_train(self): self.seconds = time.perf_counter() - self.start


def pipeline_rows(batch=32, steps=20, rounds=4):
    "Training steps by `Learner.fit`, with data, schedule, log and progress bar, against the same number of bare steps on one batch."
    dls = benchmark_dls('digits', bs=batch, size=batch*steps, device='cpu')
    learn = harmformer_learner(dls, 'harmformer_digits', metrics=[], cbs=TrainTime())
    model, (x, y) = create_model('harmformer_digits').train(), dls.train.one_batch()
    opt, best = torch.optim.AdamW(model.parameters(), fused=True), dict(bare=float('inf'), pipeline=float('inf'))
    for i in range(rounds + 1):  # the first one warms up
        start = time.perf_counter()
        for _ in range(steps):
            learn.loss_func(model(x), y).backward()
            opt.step(); opt.zero_grad()
        bare = time.perf_counter() - start
        with learn.no_logging(): fit(learn, 1, 1e-3)
        if i: best = dict(bare=min(best['bare'], bare), pipeline=min(best['pipeline'], learn.train_time.seconds))
    return [dict(model='harmformer_digits', mode=k, batch=batch, ms=round(1000*s/steps, 1), images_per_s=round(batch*steps/s, 1)) for k, s in best.items()]


def conv_rows(quick):
    rows = []
    for what, channels, size, kernel, batch, engines in progress_bar(cases(quick)):
        args = (channels, size, kernel, batch)
        for engine, ms in race({e: conv_step(e, *args) for e in engines}).items():
            mb = peak_memory(conv_step, engine, *args) if what == 'ratio' else float('nan')
            rows.append(dict(what=what, engine=engine, channels=channels, size=size, kernel=kernel, batch=batch, ms=round(ms, 2), peak_mb=round(mb, 1)))
    return rows


def write(name, rows, **meta):
    OUT.mkdir(exist_ok=True)
    with (OUT/name).open('w', newline='') as f:
        w = csv.DictWriter(f, {**rows[0], **meta}, lineterminator='\n'); w.writeheader(); w.writerows({**r, **meta} for r in rows)
    print(f'{len(rows)} rows written to {name}')


@call_parse
def main(
    quick:bool=False, # only the ratios and the memory
    only:str=None,    # one of model, conv, profile, pipeline
    threads:int=2,    # CPU threads
):
    "Time the engines of HConv2d against each other"
    torch.set_num_threads(threads)
    reuse_memory()  # as in training
    git = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=OUT.parent, capture_output=True, text=True).stdout.strip()
    meta = dict(threads=threads, torch=torch.__version__, machine=platform.machine(), commit=git, date=time.strftime('%Y-%m-%d'))
    profile = lambda: [dict(zip(('engine', 'operation', 'share'), r)) for e in ('direct', 'fft') for r in profile_step(e)]
    for name, rows in dict(model=model_rows, conv=lambda: conv_rows(quick), profile=profile, pipeline=pipeline_rows).items():
        if only not in (None, name): continue
        rows = rows()
        for r in rows: print(*(f'{k}={v}' for k, v in r.items()), flush=True)
        if not quick: write(f'speed_{name}.csv', rows, **meta)
