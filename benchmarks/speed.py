"""How fast are a training step and an evaluation, against the code before the planes (OLD), against the direct engine, and against the bound
of their matrix products? Writes nbs/results/speed_*.csv, which 26_speed.ipynb draws.

    python benchmarks/speed.py                 all of it, about 20 minutes on two quiet cores
    python benchmarks/speed.py --only steps    old, eager and compiled steps alone
    python benchmarks/speed.py --only amd      what tools/amd.py is worth on an AMD processor
    python benchmarks/speed.py --check         steps again: exits with 1 if a stored ratio has fallen by more than a tenth; writes nothing

What is compared takes turns within one run, and a time is the smallest of several: read ratios, not seconds.
"""
import csv, gc, io, json, multiprocessing, os, platform, subprocess, sys, tarfile, tempfile, time
from pathlib import Path
import torch
import torch.nn.functional as F
from fastcore.script import call_parse
from fastprogress import progress_bar
from harmformer.attention import HAttention
from harmformer.conv import HConv2d, fft_size, real_rings, ring_basis
from harmformer.core import create_model
from harmformer.data import benchmark_dls
from harmformer.system import reuse_memory
from harmformer.stem import HSkip
from harmformer.tokens import HLinear
from harmformer.train import fit, harmformer_learner
from fastai.callback.core import Callback
from speed_steps import CASES, clock_of, model_step

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/'tools'))
from amd import environment
OUT = ROOT/'nbs'/'results'
RINGS = {3: 1, 5: 1, 7: 2}
OLD = '0ced5c3'  # complex numbers inside, gradients by hand


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


def profile_step(engine):
    "Share of each kind of operation in training steps, largest first."
    step = model_step(form='direct' if engine == 'direct' else 'eager')
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


# --- old, eager, compiled and direct: each in a process of its own, for there is one package called harmformer in each ---

class Server:
    "A process that measures one form."
    def __init__(self, root, form, threads, **variables):
        call = [sys.executable, '-W', 'ignore', ROOT/'benchmarks'/'speed_steps.py', form, str(threads)]
        env = {**os.environ, 'PYTHONPATH': str(root), 'TORCHINDUCTOR_FORCE_DISABLE_CACHES': '1', **variables}  # `first_s` is of a first time
        self.p = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, cwd=tempfile.gettempdir())

    def ask(self, case, n):
        print(json.dumps([*case, n]), file=self.p.stdin, flush=True)
        for line in self.p.stdout:
            if line.startswith('='): return float(line[1:])
        raise RuntimeError(f'a process that measured {case} has ended: run speed_steps.py alone')


def old_package(folder):
    "The package at the commit OLD, unpacked into `folder`."
    tar = subprocess.run(['git', 'archive', OLD, 'harmformer'], cwd=ROOT, capture_output=True)
    if tar.returncode: raise SystemExit(f'The commit {OLD} is not in this clone: fetch its whole history.')
    tarfile.open(fileobj=io.BytesIO(tar.stdout)).extractall(folder, filter='data')
    return folder


def sgemm_rate(threads, n=2048):
    "GFLOP/s of one large product of real matrices: what a step could reach at best."
    x, times, clock = torch.randn(n, n), [], clock_of(threads)
    for _ in range(10): t = clock(); x @ x; times.append(clock() - t)
    return 2*n**3/1e9/min(times)


def product_flops(name, mode, batch):
    "Operations of the matrix products in a step: per frequency, of linear layers, skips and attention. A gradient costs twice its product."
    total, hooks = [0], []
    model = create_model(name, **CASES[name, mode, batch]).eval()

    def count(m, args, out):
        x, grads = args[0], 2
        if isinstance(m, HConv2d):
            n = 8*batch*len(m.in_orders)*m.in_channels*len(m.out_orders)*m.out_channels
            for side in x.shape[-2:]: n *= fft_size(side, m.kernel_size)
            if len(x) == 1:                         # images have no gradient; a matrix at each pixel
                grads, n = 1, 4*batch*len(m.out_orders)*m.out_channels*m.in_channels*x[0, 0, 0, 0].numel()*len(real_rings(m.kernel_size, m.rings, m.orders))
        elif isinstance(m, HLinear): n = 8*x[0].numel()*m.out_features
        elif isinstance(m, HSkip): n = 8*x[0].numel()*m.out_channels*(m.weight is not None)
        else: n = 2*3*batch*x.shape[3]**2*2*len(m.orders)*m.dim   # re and im of the scores, and the values
        total[0] += n*(1 + grads*(mode == 'train'))
    for m in model.modules():
        if isinstance(m, (HConv2d, HLinear, HSkip, HAttention)): hooks.append(m.register_forward_hook(count))
    with torch.no_grad(): model(torch.rand(batch, model.config['in_channels'], 32, 32))
    return total[0]


def step_rows(threads, seconds=20., only=('old', 'eager', 'compiled', 'direct')):
    "Every case in every form, which take turns."
    rows, rate = [], sgemm_rate(threads)
    with tempfile.TemporaryDirectory() as folder:
        servers = {f: Server(old_package(folder) if f == 'old' else ROOT, 'eager' if f == 'old' else f, threads) for f in only}
        for case in progress_bar(CASES):
            forms = [f for f in servers if f != 'direct' or case == ('harmformer_mnist', 'train', 32)]
            first, best, start = {f: servers[f].ask(case, 1) for f in forms}, dict.fromkeys(forms, float('inf')), time.perf_counter()
            while time.perf_counter() - start < seconds:
                for f in forms: best[f] = min(best[f], servers[f].ask(case, 1 if f == 'direct' else max(1, 2000//round(min(best[f], 2000)))))
            peak = {f: servers[f].ask(case, 0) for f in forms}
            flops = product_flops(*case)
            rows += [dict(zip(('model', 'mode', 'batch'), case), form=f, ms=round(best[f], 1), ratio=round(best['old']/best[f], 3), peak_mb=round(peak[f], 1),
                          first_s=round(first[f], 1), gflop=round(flops/1e9, 2), bound_ms=round(flops/1e6/rate, 1)) for f in forms]
        for s in servers.values(): s.p.stdin.close()
    return rows


def amd_rows(threads, seconds=8.):
    "Steps of ours and of rivals with the code that MKL takes on an AMD processor, and with that of tools/amd.py, which take turns."
    if not (fast := environment()): print('amd: this is no AMD processor, or there is no C compiler'); return []
    rows, cases = [], [*CASES, *((m, 'train', 16) for m in ('vit', 'cnn', 'gcnn_p4_mnist', 'resnet18'))]
    servers = [Server(ROOT, 'eager', threads, **env) for env in ({}, fast)]
    for case in progress_bar(cases):
        best, start = [s.ask(case, 1) and float('inf') for s in servers], time.perf_counter()
        while time.perf_counter() - start < seconds: best = [min(b, s.ask(case, 3)) for b, s in zip(best, servers)]
        rows.append(dict(zip(('model', 'mode', 'batch'), case), usual=round(best[0], 2), fast=round(best[1], 2), ratio=round(best[0]/best[1], 3)))
    return rows


def compare(threads, tolerance=.1):
    "Measure again, and say which stored ratios of old to new have fallen"
    key, fallen = ('model', 'mode', 'batch', 'form'), []
    rows = list(csv.DictReader((OUT/'speed_steps.csv').open()))
    if (n := rows[0]['threads']) != str(threads): raise SystemExit(f'The stored ratios are those of {n} threads: give --threads {n}.')
    stored = {tuple(r[k] for k in key): float(r['ratio']) for r in rows}
    for r in step_rows(threads, only=('old', 'eager', 'compiled')):
        was = stored[k := tuple(str(r[o]) for o in key)]
        low = r['ratio'] < was*(1 - tolerance)
        print(*k, f"old/new {r['ratio']:.2f}, stored {was:.2f}", 'FALLEN' if low else '', flush=True)
        if low: fallen.append(k)
    return fallen


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
    quick:bool=False, # convolutions: only the ratios and the memory; writes nothing
    only:str=None,    # one of steps, conv, profile, pipeline, amd
    check:bool=False, # compare steps with the stored ratios
    threads:int=2,    # CPU threads
):
    "Time steps of models and the engines of HConv2d against each other"
    torch.set_num_threads(threads)
    reuse_memory()  # as in training
    if check: raise SystemExit(1 if compare(threads) else 0)
    git = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=OUT.parent, capture_output=True, text=True).stdout.strip()
    meta = dict(threads=threads, torch=torch.__version__, machine=platform.machine(), commit=git, date=time.strftime('%Y-%m-%d'))
    profile = lambda: [dict(zip(('engine', 'operation', 'share'), r)) for e in ('direct', 'fft') for r in profile_step(e)]
    for name, rows in dict(steps=lambda: step_rows(threads), conv=lambda: conv_rows(quick), profile=profile, pipeline=pipeline_rows,
                           amd=lambda: amd_rows(threads)).items():
        if only not in (None, name): continue
        rows = rows()
        for r in rows: print(*(f'{k}={v}' for k, v in r.items()), flush=True)
        if rows and not quick: write(f'speed_{name}.csv', rows, **meta)
