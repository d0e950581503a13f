"""What each of the paper's choices is worth on a CPU's budget. Writes nbs/results/ablations.csv, which 25_ablations.ipynb draws.

    python benchmarks/ablations.py              all variants, two seeds, about an hour on one core
    python benchmarks/ablations.py --only rpe   one of them

Every variant sees the same upright digits in the same order, in the small form of the model, and is judged on the same turned validation
digits. Rows that are in the file already are not computed again: an interrupted run goes on where it stopped.
"""
import csv, subprocess, time
from pathlib import Path
import torch
from fastcore.script import call_parse
from harmformer.core import count_params
from harmformer.data import benchmark_dls
from harmformer.train import SMALL, accuracy_on, fit, harmformer_learner

FILE = Path(__file__).resolve().parent.parent/'nbs'/'results'/'ablations.csv'
SHALLOW = dict(channels=(8, 16), convs=(1, 2), pools=(True, False), depth=5)
VARIANTS = {  # question, variant: model, arguments
    ('all', 'Harmformer'): ('harmformer_mnist', SMALL),
    ('norm', 'of H-Nets'): ('harmformer_mnist', dict(SMALL, norm='hnet')),
    ('norm', 'layer norm'): ('harmformer_mnist', dict(SMALL, norm='layer')),
    ('mixing', 'all orders'): ('harmformer_mnist', dict(SMALL, mixing='all')),
    ('mixing', 'cross values'): ('harmformer_mnist', dict(SMALL, mixing='cross_values')),
    ('mixing', 'cross keys'): ('harmformer_mnist', dict(SMALL, mixing='cross_keys')),
    ('mixing', 'cross queries'): ('harmformer_mnist', dict(SMALL, mixing='cross_queries')),
    ('rpe', 'none'): ('harmformer_mnist', dict(SMALL, rpe=None)),
    ('phase', 'kept'): ('harmformer_mnist', dict(SMALL, keep_phase=True)),
    ('stem', 'shallow'): ('harmformer_shallow', SMALL),
    ('ancestor', 'H-NeXt'): ('hnext_mnist', SMALL),
    ('ancestor', 'H-Nets'): ('hnet_mnist', {}),
}


def train(model, args, seed, size, valid):
    "Train one variant; its row."
    dls = benchmark_dls('mnist-rot-test', bs=16, seed=seed, size=size, valid=valid, device='cpu')
    torch.manual_seed(seed)
    learn = harmformer_learner(dls, model, lr=.004, metrics=[], **{'dropout': 0., **args})
    start = time.time()
    with learn.no_bar(), learn.no_logging(): fit(learn, 1, .004, 'onecycle')
    seconds = time.time() - start
    return dict(title=dls.title, model=model, params=count_params(learn.model), seed=seed, epochs=1, images_seen=len(dls.train)*16, seconds=round(seconds),
                samples=len(dls.turned.dataset), valid_error=round(1 - accuracy_on(learn.model, dls.valid), 6),
                valid_turned_error=round(1 - accuracy_on(learn.model, dls.turned), 6))


@call_parse
def main(
    only:str=None,   # one question: all, norm, mixing, rpe, phase, stem or ancestor
    seeds:int=2,
    size:int=12_800, # training images
    valid:int=2000,  # validation images
):
    "Train every variant on the same budget"
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=FILE.parent, capture_output=True, text=True).stdout.strip()
    rows = list(csv.DictReader(FILE.open())) if FILE.exists() else []
    done = {(r['question'], r['variant'], int(r['seed'])) for r in rows}
    todo = [(*k, *v, s) for s in range(seeds) for k, v in VARIANTS.items() if only in (None, k[0]) and (*k, s) not in done]
    for i, (question, variant, model, args, seed) in enumerate(todo, 1):
        rows.append(dict(question=question, variant=variant, **train(model, args, seed, size, valid), commit=commit, date=time.strftime('%Y-%m-%d')))
        with FILE.open('w', newline='') as f:
            w = csv.DictWriter(f, rows[0], lineterminator='\n'); w.writeheader(); w.writerows(rows)
        print(f"{i}/{len(todo)} {question}: {variant}, seed {seed}: {float(rows[-1]['valid_turned_error']):.2%} error turned, {rows[-1]['seconds']} s", flush=True)
