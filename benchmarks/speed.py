"""How fast are the engines of HConv2d? Writes nbs/results/speed_conv.csv, which 26_speed.ipynb draws.

    python benchmarks/speed.py            all of it, about 10 minutes on two cores
    python benchmarks/speed.py --quick    the two ratios and the memory only

Engines take turns within one run, and a time is the smallest of several: read ratios, not seconds.
"""
import csv, gc, multiprocessing, platform, subprocess, time
from pathlib import Path
import torch
import torch.nn.functional as F
from fastcore.script import call_parse
from fastprogress import progress_bar
from harmformer.conv import HConv2d, ring_basis

OUT = Path(__file__).resolve().parent.parent/'nbs'/'results'/'speed_conv.csv'
RINGS = {3: 1, 5: 1, 7: 2}


def conv_step(engine, channels, size, kernel, batch):
    "A function that runs one forward and backward pass of a hidden harmonic convolution."
    torch.manual_seed(0)
    layer = HConv2d(channels, channels, kernel, RINGS.get(kernel, 3), engine='direct' if engine == 'torch' else engine)
    x = torch.randn(batch, 3, channels, size, size, dtype=torch.complex64, requires_grad=True)
    g = torch.randn_like(x)

    def complex_conv2d():
        B = ring_basis(kernel, layer.rings, layer.orders).to(torch.complex64).flip(-1, -2)
        W = torch.einsum('kio,khw->oihw', layer.coefficients(), B)
        return F.conv2d(x.flatten(1, 2), W, padding='same').view_as(x)
    forward = complex_conv2d if engine == 'torch' else lambda: layer(x)
    return lambda: torch.autograd.grad(forward(), (x, *layer.parameters()), g)


def race(steps, seconds=4., least=2):
    "Milliseconds of each step, the smallest of at least `least` rounds in which all take their turn."
    best = dict.fromkeys(steps, float('inf'))
    for s in steps.values(): s()  # plans, caches
    start, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - start < seconds:
        for name, step in steps.items():
            t = time.perf_counter(); step()
            best[name] = min(best[name], 1000*(time.perf_counter() - t))
        rounds += 1
    return best


def _status(key): return next(int(l.split()[1])/1024 for l in open('/proc/self/status') if l.startswith(key))


def _peak(args, queue):
    step = conv_step(*args)
    gc.collect()
    before = _status('VmRSS')
    step()
    queue.put(_status('VmHWM') - before)


def peak_memory(*args):
    "MB that one step adds at its peak, in a process of its own (Linux)."
    ctx = multiprocessing.get_context('spawn')
    queue = ctx.SimpleQueue()
    p = ctx.Process(target=_peak, args=(args, queue)); p.start(); p.join()
    return queue.get()


def cases(quick):
    "(what, channels, size, kernel, batch, engines)"
    res = [('ratio', c, s, 15, 32, ('fft', 'direct', 'torch')) for c, s in ((8, 64), (16, 32))]
    if quick: return res
    res += [('kernel', 8, 64, k, 8, ('fft', 'direct')) for k in (3, 5, 7, 9, 11, 15, 21, 25, 31)]
    return res + [('map', 8, s, 15, 4, ('fft', 'direct')) for s in (16, 24, 32, 48, 64, 96, 128, 192, 256)]


@call_parse
def main(
    quick:bool=False, # only the two ratios and the memory
    threads:int=2,    # CPU threads
):
    "Time the engines of HConv2d against each other"
    torch.set_num_threads(threads)
    git = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=OUT.parent, capture_output=True, text=True).stdout.strip()
    meta = dict(threads=threads, torch=torch.__version__, machine=platform.machine(), commit=git, date=time.strftime('%Y-%m-%d'))
    rows = []
    for what, channels, size, kernel, batch, engines in progress_bar(cases(quick)):
        args = (channels, size, kernel, batch)
        for engine, ms in race({e: conv_step(e, *args) for e in engines}).items():
            mb = peak_memory(engine, *args) if what == 'ratio' and platform.system() == 'Linux' else float('nan')
            rows.append(dict(what=what, engine=engine, channels=channels, size=size, kernel=kernel, batch=batch,
                             ms=round(ms, 2), peak_mb=round(mb, 1), **meta))
    for r in rows: print(*(f'{r[k]:>8}' for k in ('what', 'engine', 'channels', 'size', 'kernel', 'batch', 'ms', 'peak_mb')))
    if quick: return
    OUT.parent.mkdir(exist_ok=True)
    with OUT.open('w', newline='') as f:
        w = csv.DictWriter(f, rows[0]); w.writeheader(); w.writerows(rows)
    print(f'{len(rows)} rows written to {OUT.name}')
