"""What 29_rivals shows beside the errors of the campaign's runs: accuracy against angle, wrappers around plain networks, speed and memory.

    python benchmarks/rivals.py angles      # of every finished run on mnist-rot-test whose weights are there: rivals_angles.csv
    python benchmarks/rivals.py wrappers    # RotationAveraged, FrameAveraged and Upright, with the plain CNN and ViT: rivals_wrapped.csv
    python benchmarks/rivals.py cost        # training images/s with two threads, and memory: rivals_cost.csv; wants a quiet machine

`angles` and `wrappers` need the weights that `campaign.py work` leaves in its folder; those of the ResNets are too large to be committed.
What is there is not measured again, but for `cost`, whose rows are only comparable within one run.
"""
import time
from pathlib import Path
import pandas as pd
import torch
import torch.nn.functional as F
from fastcore.script import call_parse
from fastprogress.fastprogress import progress_bar
from harmformer.averaging import FrameAveraged, RotationAveraged
from harmformer.core import count_params, create_model, load_model, rotate_image
from harmformer.data import benchmark_dls
from harmformer.evaluate import right_by_angle, rotation_consistency
from harmformer.report import append_row
from harmformer.system import commit, evaluating, reuse_memory
from harmformer.train import accuracy_on, fit, harmformer_learner
from harmformer.upright import OrientationNet, Upright, upright_loss
from campaign import read
from speed_steps import peak_memory

ROOT = Path(__file__).resolve().parent.parent
RESULTS, CAMPAIGN = ROOT/'nbs'/'results', ROOT/'benchmarks'/'campaign'
MODELS = {'Harmformer': 'harmformer_digits', 'Harmformer, full size': 'harmformer_mnist', 'H-NeXt': 'hnext_mnist',
          'H-Nets': 'hnet_mnist', 'G-CNN, p4': 'gcnn_p4_mnist', 'G-CNN, p8': 'gcnn_p8_mnist', 'GSA-Nets, p4': 'gsa_p4_mnist',
          'GE-ViT, p4': 'gevit_p4_mnist', 'ResNet-50': 'resnet50', 'ResNet-18': 'resnet18', 'plain ViT': 'vit', 'plain CNN': 'cnn'}
BATCH = dict(gsa_p4_mnist=8, gevit_p4_mnist=8)                                  # others: 16
SLOW = {'H-NeXt': 200, 'GSA-Nets, p4': 100, 'GE-ViT, p4': 100, 'ResNet-50': 100} # so many images at each angle; others: 1,000
BUDGETS = '100,000 images', '7 minutes'                                         # of networks that are trained for both, the latter


def finished(budgets=BUDGETS, benchmark='mnist-rot-test'):
    "{name: weights} of the campaign's finished runs"
    runs = [o for o in read(CAMPAIGN/'queue.json') if 'done' in o and o['benchmark'] == benchmark]
    files = {o['about']['name']: CAMPAIGN/o['name']/'best.safetensors' for b in budgets for o in runs if o.get('about', {}).get('budget') == b}
    return {k: f for k, f in files.items() if f.exists()}


def there(file, *columns):
    "What a file has rows of"
    return set(zip(*[pd.read_csv(file)[c] for c in columns])) if file.exists() else set()


def angles(samples=1000, step=15):
    "Accuracy on upright test digits that are rotated by every angle, and the share of those right at 0° that stay right at all of them"
    file, data = RESULTS/'rivals_angles.csv', benchmark_dls('mnist-rot-test', device='cpu').upright.dataset
    for name, weights in finished().items():
        if (weights.parent.name,) in there(file, 'run'): continue
        n = SLOW.get(name, samples)
        right = right_by_angle(load_model(weights), data, range(0, 360, step), n=n, bs=20)
        share = {a: o.double().mean().item() for a, o in right.items()}
        append_row(file, pd.DataFrame(dict(name=name, run=weights.parent.name, samples=n, angle=share.keys(), accuracy=share.values(),
                                           consistency=round(rotation_consistency(right), 4), commit=commit())))
        print(name, {a: round(share[a], 3) for a in (0, 45, 90)}, flush=True)


def train_estimator(data, images=100_000, bs=32, lr=.01, seed=0):
    "An OrientationNet that has seen so many upright training digits, each at an angle of its own; and processor seconds"
    torch.manual_seed(seed)
    net, steps = OrientationNet().train(), images//bs
    opt = torch.optim.AdamW(net.parameters(), lr)
    rate = torch.optim.lr_scheduler.OneCycleLR(opt, lr, steps)
    began = time.process_time()
    for _ in progress_bar(range(steps)):
        x, theta = data.batch(torch.randint(len(data), (bs,)).tolist())[0], 360*torch.rand(bs)
        upright_loss(net(rotate_image(x, theta)), theta).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), .5)                    # steep where |z| is small
        opt.step(); opt.zero_grad(); rate.step()
    return net.eval(), time.process_time() - began


def train_framed(name, dls, lr=.016, epochs=2):
    "A plain network that sees training images through a frame too, otherwise trained as its rows of 100,000 images; and processor seconds"
    torch.manual_seed(0)
    learn, began = harmformer_learner(dls, FrameAveraged(create_model(name)), lr=lr), time.process_time()
    with learn.no_bar(), learn.no_logging(): fit(learn, epochs, lr, seed=0)
    return learn.model.eval(), time.process_time() - began


def wrappers(samples=2000):
    "Errors of the plain networks within every wrapper, on test digits evenly spread over all of them"
    file, dls = RESULTS/'rivals_wrapped.csv', benchmark_dls('mnist-rot-test', device='cpu', bs=16, valid=2000)
    nets = {k: load_model(f) for k, f in finished(BUDGETS[:1]).items() if k.startswith(('plain CNN', 'plain ViT'))}
    make = {'none': lambda m: (m, 0), 'average of 8 angles': lambda m: (RotationAveraged(m, 8), 0),
            'average of 32 angles': lambda m: (RotationAveraged(m, 32), 0),
            'C4 frame': lambda m: train_framed(m.config['name'], dls), 'Upright': lambda m: (Upright(m, estimator), spent)}
    todo = [(k, w) for k in nets for w in make if (k, w) not in there(file, 'name', 'wrapper')
            and not ('rotated' in k and w in ('C4 frame', 'Upright'))]              # those are for networks of upright images
    estimator, spent = train_estimator(dls.train.dataset) if any(w == 'Upright' for _, w in todo) else (None, 0)
    some = torch.linspace(0, len(dls.test.dataset) - 1, samples).long()
    test, upright = [o.dataset.subset(some) for o in (dls.test, dls.upright)]
    loaders = {k: dls.test.new(o) for k, o in dict(error=test, error_0=upright, error_45=upright.turned([45]*samples)).items()}
    for name, wrapper in todo:
        (model, trained), began = make[wrapper](nets[name]), time.process_time()
        errors = {k: round(100*(1 - accuracy_on(model, dl)), 2) for k, dl in loaders.items()}
        row = dict(name=name, wrapper=wrapper, **errors, samples=samples, ms=round((time.process_time() - began)/samples/3*1000, 3),
                   trained_seconds=round(trained), commit=commit(), date=time.strftime('%Y-%m-%d'))
        append_row(file, row)
        print(*row.values(), flush=True)


def cost(seconds=6., threads=2):
    "Training images/s, smallest time of a step, and MB of tensors that a step adds at its peak"
    torch.set_num_threads(threads)
    file, rows = RESULTS/'rivals_cost.csv', []
    for name, preset in MODELS.items():
        torch.manual_seed(0)
        model, n, times = create_model(preset).train(), BATCH.get(preset, 16), []
        x, y = torch.rand(n, 1, 32, 32), torch.arange(n) % 10
        def step(): F.cross_entropy(model(x), y).backward()
        step(); until = time.time() + seconds
        while len(times) < 3 or time.time() < until: t = time.perf_counter(); step(); times.append(time.perf_counter() - t)
        with evaluating(model), torch.no_grad():
            ends = []
            for _ in range(5): t = time.perf_counter(); model(x); ends.append(time.perf_counter() - t)
        rows.append(dict(name=name, model=preset, params=count_params(model), batch=n, images_per_second=round(n/min(times), 1),
                         tested_per_second=round(n/min(ends), 1), mb=round(peak_memory(step)), threads=threads, commit=commit(),
                         date=time.strftime('%Y-%m-%d')))
        print(*rows[-1].values(), flush=True)
    file.unlink(missing_ok=True)
    append_row(file, *rows)


@call_parse
def main(what:str): # angles, wrappers or cost
    "Measure what 29_rivals shows beside errors"
    reuse_memory()
    if what not in ('angles', 'wrappers', 'cost'): raise SystemExit(f'{what!r}: angles, wrappers or cost.')
    dict(angles=angles, wrappers=wrappers, cost=cost)[what]()
