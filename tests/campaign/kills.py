"""Kill a tiny training run at every batch and every file operation, resume it, and compare with a run that was left alone, bit by bit.

    python tests/campaign/kills.py PLAN [FIRST LAST SECONDS]     one JSON line: how many kills there were, and which ended differently

Every run is a fork of this process, which has imported everything and never trains itself. A kill is SIGKILL: no handler, no clean-up."""
import json, os, shutil, signal, sys, tempfile, time
from pathlib import Path
import torch
from fastai.callback.core import Callback
from harmformer.data import benchmark_dls
from harmformer.system import read_tensors
from harmformer.train import fit, harmformer_learner

TINY = dict(channels=(2, 2), depth=1, head_dim=4, kernel_size=5, rings=1, dropout=.1)
PLANS = {  # what is trained, and how it ends before its time
    'every batch': dict(every=0., epochs=2, schedule='onecycle'),
    'every epoch': dict(every=1e9, epochs=3, schedule='plateau'),
    'one epoch': dict(every=0., epochs=1, schedule='cosine'),
    'Ctrl-C': dict(every=1e9, epochs=3, schedule='onecycle', kill=signal.SIGINT),
    'twice': dict(every=0., epochs=2, schedule='flat', again=True),
}


class Clock:
    "Counts what can be interrupted, and sends this process a signal at the given count"
    def __init__(self, at=None, kill=signal.SIGKILL): self.n, self.at, self.kill = 0, at, kill
    def tick(self):
        if self.n == self.at: os.kill(os.getpid(), self.kill)
        self.n += 1

    def around(self, owner, name):
        "Tick before and after every call of a function"
        f = getattr(owner, name)
        def ticking(*args, **kwargs):
            self.tick()
            res = f(*args, **kwargs)
            self.tick()
            return res
        setattr(owner, name, ticking)

    def halves(self):
        "Tick also when half a file is written"
        write = Path.write_bytes
        def ticking(path, b):
            self.tick()
            write(path, b[:len(b)//2])
            self.tick()
            return write(path, b)
        Path.write_bytes = ticking


class Ticks(Callback):
    order = 200
    def __init__(self, clock): self.clock = clock
    def before_batch(self): self.clock.tick()
    def after_batch(self): self.clock.tick()
    def after_train(self): self.clock.tick()
    def after_epoch(self): self.clock.tick()


def train(dls, path, clock, resume, every, epochs, schedule, **_):
    if clock.kill == signal.SIGKILL:
        for name in ('replace', 'fsync'): clock.around(os, name)
        clock.halves()
    torch.manual_seed(0)
    learn = harmformer_learner(dls, 'harmformer_digits', cbs=[Ticks(clock)], **TINY)
    with learn.no_bar(), learn.no_logging(): fit(learn, epochs, 1e-2, schedule, path, every=every, resume=resume)


def forked(f):
    "Call `f` in a fork of this process; the signal that ended it, or 0, and what it returned"
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.write(w, json.dumps(f()).encode())
            code = 0
        finally: os._exit(code)
    os.close(w)
    with os.fdopen(r) as pipe: said = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status): raise RuntimeError('the run failed: its error stands above')
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, json.loads(said or 'null')


def run(dls, path, plan, at=None, resume=False):
    "How many ticks a run has, or the signal that ended it"
    def go():
        clock = Clock(at, plan.get('kill', signal.SIGKILL))
        train(dls, path, clock, resume, **plan)
        return clock.n
    return forked(go)


def result(path):
    "Everything that a run leaves, without the seconds it took"
    def same(header): return json.dumps({k: v for k, v in header.items() if k not in ('seconds', 'sha256', 'best')}, sort_keys=True)
    res = {'log': (path/'log.csv').read_text(), 'files': sorted(p.name for p in path.iterdir())}
    for name in ('checkpoint', 'best'):
        header, tensors = read_tensors(path/f'{name}.safetensors')
        res[name] = same(header), {k: (v.dtype, v.shape, v.numpy().tobytes()) for k, v in tensors.items()}
    return res


def campaign(name, first=0, last=10**9, seconds=10**9):
    "Kill at each count from `first` to `last`"
    plan, dls, began = PLANS[name], benchmark_dls('digits', size=12, valid=4, bs=4, device='cpu'), time.time()
    with tempfile.TemporaryDirectory() as tmp:
        tmp, kills, wrong = Path(tmp), 0, []
        (tmp/'whole').mkdir()
        _, ticks = run(dls, tmp/'whole', plan)
        want = result(tmp/'whole')
        for at in range(first, min(last, ticks)):
            if time.time() - began > seconds: break
            path = tmp/f'killed at {at}'
            path.mkdir()
            kills += bool(run(dls, path, plan, at)[0]) or plan.get('kill') == signal.SIGINT
            if plan.get('again'): kills += bool(run(dls, path, plan, (7*at) % 40, resume=True)[0])
            run(dls, path, {k: v for k, v in plan.items() if k != 'kill'}, resume=True)
            if result(path) != want: wrong.append(at)
            shutil.rmtree(path)
    return dict(plan=name, ticks=ticks, kills=kills, wrong=wrong, seconds=round(time.time() - began, 1))


if __name__ == '__main__':
    torch.set_num_threads(1)
    print(json.dumps(campaign(sys.argv[1], *map(int, sys.argv[2:]))))
