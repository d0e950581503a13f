"""What each of the paper's choices is worth on a CPU's budget, and each of ours. Writes nbs/results/ablations.csv, which 25_ablations.ipynb draws.

    python benchmarks/ablations.py              all variants, two seeds, about an hour on one core
    python benchmarks/ablations.py --only rpe   one of them

Every variant sees the same upright digits in the same order, in the small form of the model, and is judged on the same turned validation
digits. Rows that are in the file already are not computed again: an interrupted run goes on where it stopped.
"""
import time
from pathlib import Path
import pandas as pd, torch
from fastcore.script import call_parse
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from harmformer.core import count_params
from harmformer.data import benchmark_dls
from harmformer.report import append_row
from harmformer.system import commit
from harmformer.train import SMALL, accuracy_on, fit, harmformer_learner
from fastai.callback.core import Callback

FILE = Path(__file__).resolve().parent.parent/'nbs'/'results'/'ablations.csv'
USUAL = dict(model='harmformer_mnist', bs=16, lr=.004, schedule='onecycle', dropout=0., **SMALL)
VARIANTS = {  # question, variant: what differs from USUAL
    ('all', 'Harmformer'): {},
    # what the paper compares
    ('norm', 'of H-Nets'): dict(norm='hnet'), ('norm', 'layer norm'): dict(norm='layer'),
    ('mixing', 'all orders'): dict(mixing='all'), ('mixing', 'cross values'): dict(mixing='cross_values'),
    ('rpe', 'none'): dict(rpe=None), ('stem', 'shallow'): dict(model='harmformer_shallow'),
    ('ancestor', 'H-NeXt'): dict(model='hnext_mnist'), ('ancestor', 'H-Nets'): dict(model='hnet_mnist'),
    # what it leaves open
    ('phase', 'kept'): dict(keep_phase=True),
    ('layer norm', 'over the map'): dict(layer_norm='map'), ('layer norm', 'ε = 1e-5'): dict(norm_eps=1e-5),
    ('statistics', 'shared by orders'): dict(stats='shared'), ('mask', 'none'): dict(mask=None), ('mask', 'circle'): dict(mask='circle'),
    ('dropout', '0.1'): dict(dropout=.1), ('label smoothing', 'none'): dict(label_smoothing=0.),
    ('rate', '0.002'): dict(lr=.002), ('rate', '0.008'): dict(lr=.008), ('schedule', 'cosine'): dict(schedule='cosine'),
    ('batch', '32'): dict(bs=32), ('optimizer', 'SGD, rate 0.1'): dict(optimizer='SGD', lr=.1),
    ('mixing', 'cross keys'): dict(mixing='cross_keys'), ('mixing', 'cross queries'): dict(mixing='cross_queries'),
    ('averaging', 'weights and statistics'): dict(average=.99), ('averaging', 'statistics computed anew'): dict(average=.99, anew=True),
    ('initial weights', 'doubled'): dict(initial=2.), ('initial weights', 'halved'): dict(initial=.5),
}


class Average(Callback):
    "An exponential average of weights and statistics, which takes the place of the model at the end; `anew`: with statistics of its own."
    def __init__(self, decay, anew): self.decay, self.anew = decay, anew
    def before_fit(self): self.mean = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(self.decay), use_buffers=True)
    def after_batch(self):
        if self.training: self.mean.update_parameters(self.model)
    def after_fit(self):
        self.model.load_state_dict(self.mean.module.state_dict())
        if self.anew:
            self.model.train()
            with torch.no_grad(): [self.model(x) for x, _ in self.dls.train]


def train(changes, seed, size, valid):
    "Train one variant; its row."
    s = {**USUAL, **changes}
    bs, lr, schedule, average, anew, optimizer, initial = [s.pop(k, None) for k in ('bs', 'lr', 'schedule', 'average', 'anew', 'optimizer', 'initial')]
    dls = benchmark_dls('mnist-rot-test', bs=bs, seed=seed, size=size, valid=valid, device='cpu')
    torch.manual_seed(seed)
    learn = harmformer_learner(dls, lr=lr, metrics=[], cbs=[Average(average, anew)] if average else [], **s)
    if optimizer: learn.opt_func.keywords['opt'] = lambda params, **kw: getattr(torch.optim, optimizer)(params, momentum=.9, **kw)
    if initial:
        with torch.no_grad(): [p.mul_(initial) for n, p in learn.model.stem.named_parameters() if n.endswith('weight')]
    start = time.time()
    with learn.no_bar(), learn.no_logging(): fit(learn, 1, lr, schedule)
    seconds = time.time() - start
    return dict(title=dls.title, model=s['model'], params=count_params(learn.model), seed=seed, epochs=1, images_seen=len(dls.train)*bs, seconds=round(seconds),
                samples=len(dls.turned.dataset), valid_error=round(1 - accuracy_on(learn.model, dls.valid), 6),
                valid_turned_error=round(1 - accuracy_on(learn.model, dls.turned), 6))


@call_parse
def main(
    only:str=None,  # one question: all, norm, mixing, rpe, stem, ancestor, phase, rate, …
    seeds:int=2,
    size:int=6400,  # training images
    valid:int=1000, # validation images
):
    "Train every variant on the same budget"
    done = {(r.question, str(r.variant), r.seed) for r in pd.read_csv(FILE).itertuples()} if FILE.exists() else set()
    todo = [(k, v, s) for k, v in VARIANTS.items() for s in range(seeds) if only in (None, k[0]) and (*k, s) not in done]
    for i, ((question, variant), changes, seed) in enumerate(todo, 1):
        row = dict(question=question, variant=variant, **train(changes, seed, size, valid), commit=commit(), date=time.strftime('%Y-%m-%d'))
        append_row(FILE, row)
        print(f"{i}/{len(todo)} {question}: {variant}, seed {seed}: {row['valid_turned_error']:.2%} error turned, {row['seconds']} s", flush=True)
