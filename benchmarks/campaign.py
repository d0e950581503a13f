"""A queue of training runs, one after the other, each resumed from its checkpoint; a run that ends writes its row.

    python benchmarks/campaign.py status            # done, running, left, expected hours: benchmarks/campaign/status.txt is the last one
    python benchmarks/campaign.py work              # go on, the most urgent run first; Ctrl-C or SIGTERM saves and stops
    python benchmarks/campaign.py work --hours 2    # the same, but stop and save after so many hours
    OMP_NUM_THREADS=1 ... work &                    # one for each core: they share the queue, no run is trained twice

The queue is benchmarks/campaign/queue.json, a list of runs. One run:

    name       its folder in benchmarks/campaign: checkpoint and best weights. Committed, any machine can go on with it
    benchmark  and seed, as for harmformer_train
    recipe     what differs from the benchmark's recipe for a CPU; also `optimizer` ([name, arguments]), `average` (decay) and
               `augment` (of ['rot', 'flip', 'colour']: what changes training images at random)
    priority   the lowest number goes first
    stop       ends a stage early: `hours` at most, or `stall`: so many epochs without a better validation score
    judge      'test': harmformer_eval writes the row, the weights stay; 'valid': validation errors, nothing else stays
    rows       the CSV file that the row goes to
    epochs     another CSV file, for the errors of every epoch of the last stage on the validation and on the test set:
               with it each can choose what is tested on the other (23_pcam)
    tested     of slow networks: only so many test images, evenly spread; otherwise all
    about      more columns of that row, such as question and variant
"""
import fcntl, io, json, shutil, signal, subprocess, sys, time
from contextlib import contextmanager
from pathlib import Path
import pandas as pd
import torch
from harmformer.core import adopt_weights, count_params, load_model
from harmformer.data import benchmark_dls, fixed_angles
from harmformer.evaluate import final_scores
from harmformer.report import append_row, eval_row
from harmformer.system import commit, write_whole
from harmformer.train import SMALL, accuracy_on, fit, harmformer_learner, recipe
from fastai.callback.core import Callback, CancelFitException
from fastcore.script import call_parse
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

ROOT = Path(__file__).resolve().parent.parent
IMAGES = {'digits': 3500, 'mnist-rot-test': 50_000, 'rotated-mnist': 10_000, 'cifar-rot-test': 42_000, 'pcam': 3000, 'drive': 4000}


def read(file, other=None): return json.loads(Path(file).read_text()) if Path(file).exists() else other


def write(file, what): write_whole(file, json.dumps(what, indent=1) + '\n')


def stages(run):
    "The settings of each stage of a run by its folder: the small form, if the recipe has one, then the model as it is."
    s = {**recipe(run['benchmark'], True, **run['recipe']), **{k: v for k, v in run['recipe'].items() if v is None}}  # rpe=None
    small = s.pop('small', 0)
    first = {'small': {**s, **SMALL, 'epochs': small}} if small else {}
    return {**first, '.': {**s, 'lr': s['lr']/2 if small else s['lr']}}


def form(s):
    "What the speed of a stage depends on most."
    return s['model'], s.get('upscale'), s.get('kernel_size')


def planned(run):
    "Form and images of each stage."
    images = IMAGES.get(run['benchmark'], float('nan'))
    return [(form(s), s['epochs']*(s.get('size') or images)) for s in stages(run).values()]


class Watch(Callback):
    "Write how far a stage is, end it by its stop rule, and ask for a stop when the time is over."
    order = 110                                                                 # after Checkpoint
    def __init__(self, file, stop, until):
        self.file, self.stop, self.until, self.was = file, stop, until, read(file, dict(images=0, seconds=0., cpu=0.))
    def before_fit(self): self.began, self.cpu_began, self.saved, self.images = time.time(), time.process_time(), 0., 0
    def now(self, **more):
        spent = dict(images=self.images, seconds=time.time() - self.began, cpu=time.process_time() - self.cpu_began)
        return {**self.was, **{k: round(self.was[k] + v) for k, v in spent.items()}, **more}
    def after_batch(self):
        if not self.training: return
        self.images += len(self.x)
        if time.time() - self.saved > 30: self.saved = time.time(); write(self.file, self.now())
        if time.time() > self.until: self.until = float('inf'); signal.raise_signal(signal.SIGINT)  # as Ctrl-C: Checkpoint saves
    def after_epoch(self):
        write(self.file, self.now())
        scores = [o[-1] for o in self.recorder.values]                          # `turned`, or the last of those that there are
        stalled = len(scores) - 1 - scores.index(max(scores)) >= self.stop.get('stall', float('inf'))
        if stalled or self.now()['seconds'] >= 3600*self.stop.get('hours', float('inf')): raise CancelFitException


class BothSides(Callback):
    "After every epoch write errors on validation and test set, upright and rotated, to a file"
    order = 95                                                                  # before Checkpoint: a resumed run misses no epoch
    def __init__(self, file): self.file = file
    def after_epoch(self):
        dls, test = self.dls, self.dls.test
        turned = test.new(test.dataset.turned(fixed_angles(len(test.dataset), dls.benchmark, 'test')))
        sides = dict(valid=dls.valid, valid_turned=dls.turned, test=test, test_turned=turned)
        errors = {k: round(1 - accuracy_on(self.model, dl), 6) for k, dl in sides.items()}
        append_row(self.file, dict(epoch=self.epoch, **errors, samples=len(dls.valid.dataset), test_samples=len(test.dataset)))


class Average(Callback):
    "Before the last validation put an exponential average of the weights, with statistics computed anew, in the model's place."
    def __init__(self, decay): self.decay = decay
    def before_fit(self): self.mean = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(self.decay))
    def after_batch(self):
        if self.training: self.mean.update_parameters(self.model)
    def after_train(self):
        if self.epoch < self.n_epoch - 1: return
        mean, own = dict(self.mean.module.named_parameters()), dict(self.model.named_parameters())
        self.model.train()
        with torch.no_grad():
            for k, p in own.items(): p.copy_(mean[k])
            for i, (x, _) in zip(range(200), self.dls.train): self.model(x)


def optimizer(learn, name, arguments):
    "Let `learn` use an optimizer of torch or pytorch_optimizer."
    base = getattr(torch.optim if hasattr(torch.optim, name) else __import__('pytorch_optimizer'), name)
    class Packed(base):
        "Its state, whatever it holds, is one tensor of bytes: a checkpoint holds tensors only."
        def state_dict(self):
            s, file = super().state_dict(), io.BytesIO()
            torch.save(s['state'], file)
            return {**s, 'state': {0: dict(packed=torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8))}}
        def load_state_dict(self, s):
            packed = io.BytesIO(s['state'][0]['packed'].numpy().tobytes())
            super().load_state_dict({**s, 'state': torch.load(packed, weights_only=True)})
    learn.opt_func.keywords['opt'] = lambda params, **kw: Packed(params, **kw, **arguments)


def train(run, folder, until):
    "Train a run, or finish it: learner, or None if stopped, and images of earlier stages. All that this file knows of fit is here."
    source, rates, seen = None, [], dict(images_seen=0, seconds=0, stages=[])
    if run['recipe'].get('average'): shutil.rmtree(folder, ignore_errors=True)  # the average is in no checkpoint: begin again
    for place, s in stages(run).items():
        path = folder/place
        rates.append(f"rate {s['lr']}" if not rates else str(s['lr']))
        path.mkdir(parents=True, exist_ok=True)
        watch = Watch(path/'progress.json', run.get('stop', {}), until)
        loader = {k: s.pop(k, None) for k in ('bs', 'size', 'valid')}
        dls = benchmark_dls(run['benchmark'], seed=run['seed'], device='cpu', **loader)
        if 'augment' in s: dls.train.dataset.augment = tuple(s.pop('augment'))
        torch.manual_seed(run['seed'])
        kw, opt, decay = {k: s.pop(k) for k in ('epochs', 'lr', 'schedule')}, s.pop('optimizer', None), s.pop('average', None)
        more = ([Average(decay)] if decay else []) + ([BothSides(path/'epochs.csv')] if 'epochs' in run and place == '.' else [])
        learn = harmformer_learner(dls, lr=kw['lr'], cbs=[watch, *more], **s)
        if opt: optimizer(learn, *opt)
        if source: adopt_weights(learn.model, source)
        facts = dict(benchmark=run['benchmark'], title=dls.title, seed=run['seed'], commit=commit(), images=len(dls.train.dataset),
                     **({'optimizer': f"{opt[0]}, {', then '.join(rates)}"} if opt else {}), **dls.reading, **seen)
        if not watch.was.get('ended'):
            with learn.no_bar(), learn.no_logging(): fit(learn, **kw, path=path, seed=run['seed'], resume=True, provenance=facts)
            write(path/'progress.json', watch.now(ended=not learn.stopped))
            if learn.stopped: return None, 0
        source, before = load_model(path/'best.safetensors'), seen['images_seen']
        seen = {k: source.provenance[k] for k in seen}
    return learn, before


def tested_whole(folder):
    "The row that harmformer_eval writes, as anyone can write it again"
    row = folder/'row.csv'
    row.unlink(missing_ok=True)
    subprocess.run([Path(sys.executable).parent/'harmformer_eval', folder/'best.safetensors', '--csv', row], check=True)
    return pd.read_csv(row, dtype=str, keep_default_na=False).iloc[0]


def tested(folder, benchmark, n):
    "The same row from n test images, evenly spread"
    model, dls = load_model(folder/'best.safetensors'), benchmark_dls(benchmark, device='cpu', val_bs=20)
    some = torch.linspace(0, len(dls.test.dataset) - 1, n).long()
    dls.loaders[3:] = [dl.new(dl.dataset.subset(some)) for dl in dls.loaders[3:]]
    return eval_row(model, dls, final_scores(model, dls, n=n), n)


def judge(run, folder, learn, before, lock):
    "Write the row of a finished run, and leave only what is worth keeping of its folder."
    done = [read(folder/place/'progress.json') for place in stages(run)]
    if 'epochs' in run:
        epochs = pd.read_csv(folder/'epochs.csv').drop_duplicates('epoch', keep='last')
        epochs.insert(0, 'run', run['name'])
        with alone(lock): append_row(ROOT/run['epochs'], epochs)
    if run['judge'] == 'test':
        scores = tested(folder, run['benchmark'], run['tested']) if 'tested' in run else tested_whole(folder)
        with alone(lock): append_row(ROOT/run['rows'], {**run.get('about', {}), **scores, 'cpu_seconds': sum(o['cpu'] for o in done)})
        for f in folder.iterdir():
            if f.name not in ('best.safetensors', 'log.csv'): shutil.rmtree(f) if f.is_dir() else f.unlink()
    else:
        log, dls = pd.read_csv(folder/'log.csv'), learn.dls
        last, seconds, cpu = log.iloc[-1], *[sum(o[k] for o in done) for k in ('seconds', 'cpu')]
        row = dict(
            **run['about'], title=dls.title, model=learn.model.config['name'], params=count_params(learn.model), seed=run['seed'],
            epochs=len(log), images_seen=before + len(log)*len(dls.train)*dls.train.bs, seconds=seconds, cpu_seconds=cpu,
            samples=len(dls.turned.dataset), train_loss=round(last.train_loss, 5), valid_loss=round(last.valid_loss, 5),
            valid_error=round(1 - last.accuracy, 6), valid_turned_error=round(1 - last.turned, 6),
            commit=commit(), date=time.strftime('%Y-%m-%d'))
        with alone(lock): append_row(ROOT/run['rows'], row)
        shutil.rmtree(folder)
    return done


@contextmanager
def alone(file):
    "Within: no other process is here with this file; who comes second waits. The lock goes with the process, however that ends."
    with file.open('w') as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


@contextmanager
def taken(home, name):
    "Within: no other process trains this run; or None if one does."
    with (home/f'.lock-{name}').open('w') as f:
        try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError: yield None
        else: yield True


def busy(home, name):
    with taken(home, name) as free: return not free


def left(home):
    "Runs that are not done, the most urgent first"
    return sorted((o for o in read(home/'queue.json') if 'done' not in o), key=lambda o: o['priority'])


def finish(home, run, until):
    "Train and judge a run; False if it was stopped before"
    print(f"{time.strftime('%H:%M:%S')} {run['name']}", flush=True)
    learn, before = train(run, home/run['name'], until)
    if learn is None: return print('stopped and saved', flush=True)
    spent = judge(run, home/run['name'], learn, before, home/'.lock')
    with alone(home/'.lock'):
        queue = read(home/'queue.json')
        write(home/'queue.json', [{**o, 'done': spent} if o['name'] == run['name'] else o for o in queue])
    return True


def work(home, hours=float('inf')):
    "Train what is left of the queue and nobody else works on, the most urgent first; it is read anew for each run."
    until = time.time() + 3600*hours
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    passed = set()                                                              # of other processes, or finished by them
    while run := next((o for o in left(home) if o['name'] not in passed), None):
        with taken(home, run['name']) as free:
            if not free or run['name'] not in [o['name'] for o in left(home)]: passed.add(run['name']); continue
            if not finish(home, run, until): return
        if time.time() > until: return
    print('nothing is left' if not left(home) else 'what is left is being worked on by other processes', flush=True)


def status(home):
    "Every run: its state, images seen of how many, hours spent, hours to go; the time as in runs of the same form, where there are any."
    queue = read(home/'queue.json')
    known = {o['name']: o.get('done') or [read(home/o['name']/p/'progress.json') for p in stages(o)] for o in queue}
    times = [(f, p['images'], p['seconds']) for o in queue for (f, _), p in zip(planned(o), known[o['name']]) if p]
    times = pd.DataFrame(times, columns=['form', 'images', 'seconds']).groupby('form').sum()
    rate, rows = (times.seconds/times.images).to_dict(), []
    for o in sorted(queue, key=lambda o: ('done' not in o, o['priority'])):
        spent = [p or dict(images=0, seconds=0) for p in known[o['name']]]
        left = 0 if 'done' in o else sum(max(0, n - p['images'])*rate.get(f, float('nan')) for p, (f, n) in zip(spent, planned(o)))
        state = 'done' if 'done' in o else 'running' if busy(home, o['name']) else 'started' if any(known[o['name']]) else 'left'
        rows.append(dict(run=o['name'], state=state, images=sum(p['images'] for p in spent), of=sum(n for _, n in planned(o)),
                         hours=sum(p['seconds'] for p in spent)/3600, hours_left=left/3600))
    return pd.DataFrame(rows)


@call_parse
def main(
    what:str,                 # status or work
    hours:float=float('inf'), # stop and save after so many
    home:str=str(ROOT/'benchmarks'/'campaign'), # folder where the queue is
):
    "Work on the queue of training runs, or say how far it is"
    if what == 'work': return work(Path(home), hours)
    if what != 'status': raise SystemExit(f'{what!r}: status or work.')
    table = status(Path(home))
    print(table.round(2).to_string(index=False))
    spent, left = table.hours.sum(), table.hours_left.sum()
    print(f"{(table.state == 'done').sum()} of {len(table)} done, {spent:.1f} h spent, {left:.1f} h left where the speed is known")
