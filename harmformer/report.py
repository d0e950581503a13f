"""The report of a training run, one HTML file with its pictures inside, and the commands that make it."""

__all__ = ['run_report', 'read_rows', 'classify_pictures', 'harmformer_train', 'harmformer_eval', 'harmformer_report', 'harmformer_predict']

import ast, base64, html, io, json, platform, re, time
from itertools import count
from pathlib import Path
import matplotlib.pyplot as plt
import pandas as pd
import torch
from fastcore.script import call_parse
from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix
from harmformer.core import adopt_weights, count_params, create_model, load_model, model_names
from harmformer.data import benchmark_dls, benchmark_names
from harmformer.files import DataError, picture_files, read_pictures
from harmformer.segmentation import argument, map_scores_at, show_maps, show_turning_maps
from harmformer.stability import COLOURS, plot_polar
from harmformer.train import (SMALL, _commit, accuracy_by_angle, accuracy_on, check_room, first_before_others, fit, from_first, harmformer_learner, human_time,
                              recipe, reuse_memory, seconds_per_step, start_processes, write_whole)
from fastai.distributed import teardown_distrib
from fastai.torch_core import rank_distrib

ANGLES = tuple(range(0, 360, 15))
TRAINING = ('model', 'epochs', 'small', 'bs', 'lr', 'schedule', 'wd', 'label_smoothing')  # what a recipe holds beside the model's arguments
NICE = dict(cnn='plain CNN', vit='plain ViT', unet='plain U-Net')
MEANS = dict(turned='each by its own angle', at_0='0°', at_45='45°', auc='area under the ROC curve', dice='Dice', accuracy='accuracy', auc_45='area, turned by 45°', auc_90='area, turned by 90°')
TITLES = dict(auc='dashed: Dice, solid: area under the ROC curve', turned='accuracy (dashed: upright, solid: turned)')


def nice(name): return NICE.get(name, name)


def _figure(rows=1, cols=1, size=(6, 3), **kw): return plt.subplots(rows, cols, figsize=size, dpi=90, layout='constrained', **kw)


def loss_curves(logs):
    "Loss and accuracy by epoch, of every model."
    fig, (a, b) = _figure(1, 2, (8, 3))
    for (name, log), c in zip(logs.items(), COLOURS):
        a.plot(log.epoch + 1, log.train_loss, f'{c}.--'); a.plot(log.epoch + 1, log.valid_loss, f'{c}.-', label=nice(name))
        dashed, solid = ('dice', 'auc') if 'auc' in log else ('accuracy', 'turned')
        b.plot(log.epoch + 1, log[dashed], f'{c}.--'); b.plot(log.epoch + 1, log[solid], f'{c}.-', label=nice(name))
    a.set(xlabel='epoch', title='loss (dashed: training)'); b.set(xlabel='epoch', title=TITLES[solid], ylim=(None, 1))
    a.legend()
    return fig


def polar(by_angle):
    "Accuracy against the angle of the image."
    return plot_polar({nice(name): acc for name, acc in by_angle.items()})


@torch.no_grad()
def turning(models, dataset, angles=(0, 30, 60, 90, 135, 180, 225, 270, 315), rows=3):
    "A few images turning, and what each model says."
    fig, axs = _figure(rows, len(angles), (1.05*len(angles), 1.55*rows))
    for r, i in enumerate(torch.linspace(0, len(dataset) - 1, rows).long().tolist()):
        for ax, a in zip(axs[r], angles):
            x, y = dataset.subset([i]).turned([a]).batch([0])
            dataset.show(ax, x[0], y[0])
            said = [m(x).argmax(1).item() for m in models.values()]
            ax.set_title(f'{a}°' if r == 0 else '', fontsize=8)
            for k, p in enumerate(said):
                ax.text(.5, -.12 - .22*k, dataset.vocab[p], transform=ax.transAxes, ha='center', va='center', fontsize=9, color='g' if p == y.item() else 'r')
            ax.axis('off')
    fig.suptitle('below each picture: ' + ', then '.join(map(nice, models)) + ' (red: wrong)', fontsize=9)
    return fig


@torch.no_grad()
def confusion(model, dl):
    "What is taken for what on the turned test images."
    preds, ys = zip(*[(model(x).argmax(1), y) for x, y in dl])
    fig, ax = _figure(size=(5, 4.6))
    ConfusionMatrixDisplay(confusion_matrix(torch.cat(ys).cpu(), torch.cat(preds).cpu()), display_labels=dl.dataset.vocab).plot(ax=ax, cmap='Blues', colorbar=False)
    ax.set_title('turned test images')
    return fig


def _image(fig, alt):
    buf = io.BytesIO()
    fig.savefig(buf, format='png'); plt.close(fig)
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(buf.getvalue()).decode()}">'


STYLE = 'body{font:16px/1.5 system-ui;max-width:860px;margin:2em auto;padding:0 1em}table{border-collapse:collapse}td,th{padding:.2em 1em;text-align:right;border-bottom:1px solid #ddd}img{max-width:100%}'


def _class_pictures(models, dls, results):
    "What a classifier's report shows."
    by_angle = {n: {float(a): v for a, v in r.items()} for n, r in results['by_angle'].items()}
    return ['<h2>Accuracy against angle</h2>', _image(polar(by_angle), 'accuracy against the angle of the test images'),
            '<h2>Turning</h2>', _image(turning(models, (dls.upright or dls.test).dataset), 'predictions while an image turns'),
            '<h2>Confusion</h2>', _image(confusion(next(iter(models.values())), dls.test), 'confusion matrix on turned test images')]


def _map_pictures(models, dls):
    "What a segmentation's report shows."
    models = {nice(n): m for n, m in models.items()}
    return ['<h2>Maps</h2>', _image(show_maps(models, dls.images), 'held-out images, truth, maps and errors'),
            '<h2>Turning</h2>', _image(show_turning_maps(models, dls.images[0]), 'maps while an image turns')]


def judged_photos(dls):
    "The images that a segmentation is judged on: the test set where its masks are there, otherwise the held-out ones; None for classifiers."
    known = dls.test_images and all(o['mask'] is not None for o in dls.test_images)
    return dls.test_images if known else dls.images


def final_scores(model, dls, angles=(0, 45), n=10_000):
    "On the test set, each image by its own angle, and on at most `n` of its images at fixed angles; of a segmentation, on whole images."
    if dls.images: return map_scores_at(model, judged_photos(dls))
    fixed = accuracy_by_angle(model, (dls.upright or dls.test).dataset, angles, n=n)
    return {'turned': accuracy_on(model, dls.test), **{f'at_{a}': v for a, v in fixed.items()}}


def _open_benchmark(*args, **kwargs):
    "`benchmark_dls`, whose errors end a command with a sentence."
    try: return benchmark_dls(*args, **kwargs)
    except (DataError, ValueError) as e: raise SystemExit(str(e))


def run_report(path):
    "Write report.html into the folder of a finished run."
    path = Path(path)
    need = [f for f in ('config.json', 'results.json') if not (path/f).exists()]
    if not path.is_dir(): raise SystemExit(f'there is no folder {path}.')
    if need: raise SystemExit(f'{path} is not a finished run: {", ".join(need)} is missing. Finish it with harmformer_train --resume.')
    config, results = [json.loads((path/f).read_text()) for f in ('config.json', 'results.json')]
    dls = _open_benchmark(config['benchmark'], seed=config['seed'], img_size=config.get('img_size', 32))
    names = {r['model']: path/r['folder'] for r in results['rows']}
    models = {n: load_model(p/'best.safetensors').to(dls.device) for n, p in names.items()}
    logs = {n: pd.read_csv(p/'log.csv') for n, p in names.items()}
    rows = pd.DataFrame(results['rows']).drop(columns='folder')
    table = rows.assign(model=rows.model.map(nice)).rename(columns=MEANS).to_html(index=False, float_format=lambda v: f'{v:.4f}')
    parts = [f'<h1>{html.escape(config["title"])}</h1><p>{html.escape(results["says"])}</p>', table,
             *(_map_pictures(models, dls) if dls.images else _class_pictures(models, dls, results)),
             '<h2>Training</h2>', _image(loss_curves(logs), 'loss and scores by epoch'),
             '<h2>Settings</h2><pre>' + html.escape(json.dumps(config, indent=1)) + '</pre>']
    page = f'<!doctype html><meta charset="utf-8"><title>{html.escape(config["title"])}</title><style>{STYLE}</style>' + '\n'.join(parts)
    write_whole(path/'report.html', lambda p: p.write_text(page, encoding='utf-8'))
    return path/'report.html'


def _train_one(dls, path, settings, seed, resume, provenance):
    "Train one model into the folder `path`, or finish it, if so in two stages; its best weights by validation, in the first process."
    first = rank_distrib() == 0
    if first: check_room(path)
    s, source = dict(settings), None
    if small := s.pop('small', 0):
        source, _ = _train_one(dls, path/'small', {**s, **SMALL, 'epochs': small}, seed, resume, provenance)
        source, s['lr'] = from_first(lambda: source.cpu()), s['lr']/2
        provenance = {**provenance, **{k: source.provenance[k] for k in ('images_seen', 'seconds')}}
    torch.manual_seed(seed)
    train = {k: s.pop(k) for k in ('epochs', 'lr', 'schedule')}
    s.pop('bs')
    learn = harmformer_learner(dls, lr=train['lr'], **s)
    if source: adopt_weights(learn.model, source)
    steps = len(dls.train.shard())
    needs = human_time(1.15*seconds_per_step(learn)*steps*train['epochs'])
    form = ' in small form' if SMALL.items() <= s.items() else ''
    if first: print(f"Training {s['model']}{form} ({count_params(learn.model):,} parameters) on {dls.about}. {train['epochs']} epochs of {steps} steps: "
                    f"about {needs} here.", flush=True)
    fit(learn, **train, path=path, seed=seed, resume=resume, provenance=provenance)
    if learn.stopped: raise SystemExit(f'Stopped and saved in {path}. To go on: the same command with --resume.' if first else 1)
    if not first: return None, 0
    model = load_model(path/'best.safetensors').to(dls.device)
    return model, model.provenance['seconds']


def _free_name(out, name, resume):
    "`name`, or the first of name-2, name-3… that does not exist; with `resume` the last of them that does."
    here = [p.name for p in Path(out).iterdir()] if Path(out).is_dir() else []
    taken = sorted(int(m[1] or 1) for o in here if (m := re.fullmatch(re.escape(name) + r'(?:-(\d+))?', o)))
    if resume and not taken: raise SystemExit(f'There is no run {name} in {out} to resume. Leave out --resume to start it.')
    i = taken[-1] if resume else next(i for i in count(1) if i not in taken)
    return Path(out)/(f'{name}-{i}' if i > 1 else name)


def _at_least(**limits):
    "End the command if one of `limits`, {argument: (value, least)}, is too small; None is not given."
    for k, (v, least) in limits.items():
        if v is not None and not v >= least: raise SystemExit(f'--{k} is at least {least}, not {v}.')


def _check_size(settings, img_size):
    "End the command if the model does not take pictures of this size."
    model = create_model(settings['model'], **{k: v for k, v in settings.items() if k not in TRAINING}, img_size=img_size).eval()
    try: model(torch.zeros(1, model.config['in_channels'], img_size, img_size))
    except (RuntimeError, ValueError) as e: raise SystemExit(f'--pixels: {e}')


def _arguments(text):
    "{'mixing': 'all', 'depth': 2} from 'mixing=all,depth=2'."
    def value(v):
        try: return ast.literal_eval(v)
        except (ValueError, SyntaxError): return v
    pairs = [o.partition('=') for o in re.split(r',(?=\w+=)', text) if o]
    if bad := [k for k, eq, _ in pairs if not eq]: raise ValueError(f'--set takes name=value pairs with commas between them, not {bad[0]!r}')
    return {k: value(v) for k, _, v in pairs}


@call_parse
def harmformer_train(
    benchmark:argument('digits, mnist-rot-test, rotated-mnist, cifar-rot-test, pcam, drive, or a folder with a subfolder of pictures for each class', opt=False, nargs='?')='digits',
    model:str=None,         # another model than the recipe's
    epochs:int=None,        # instead of the recipe's
    bs:int=None,            # images in a batch, instead of the recipe's
    lr:float=None,          # learning rate, instead of the recipe's
    budget:bool=False,      # the recipe's form for a CPU
    resume:bool=False,      # go on where an interrupted run stopped
    seed:int=0,             # of weights, order of images and dropout
    small:int=None,         # epochs in small form before the others, instead of the recipe's
    size:int=None,          # use only so many training images
    valid:int=None,         # use only so many validation images
    pixels:int=32,          # side to which pictures of a folder are scaled
    set:str='',             # arguments of the model, such as mixing=all,depth=2
    out:str='runs',         # folder of all runs
    name:str=None,          # folder of this run below it, by default from benchmark, model and seed
    rival:str=None,         # trained along for comparison, by default a plain CNN of 31,000 parameters (drive: a U-Net of 41,000); 'none' for none
):
    "Train a model on a benchmark and write runs/NAME/report.html"
    _at_least(epochs=(epochs, 1), bs=(bs, 2), small=(small, 0), size=(size, 1), valid=(valid, 1), pixels=(pixels, 4))
    if lr is not None and not lr > 0: raise SystemExit(f'--lr is more than 0, not {lr}.')
    try: settings = recipe(benchmark, budget, model=model, epochs=epochs, bs=bs, lr=lr, small=small, **_arguments(set))
    except ValueError as e: raise SystemExit(str(e))
    own = benchmark not in benchmark_names()
    if own: benchmark = str(Path(benchmark).resolve())     # a run has to find its pictures from anywhere
    rival = rival or ('unet' if benchmark == 'drive' else 'cnn')
    for m in (settings['model'], rival):
        if m not in (*model_names(), 'none'): raise SystemExit(f'no model is called {m!r}; there are {", ".join(model_names())}')
    usual = {k: settings.pop(k, None) for k in ('size', 'valid')}
    size, valid = size or usual['size'], valid or usual['valid']
    try: create_model(settings['model'], **{k: v for k, v in settings.items() if k not in TRAINING})
    except (TypeError, ValueError) as e: raise SystemExit(f'--set: {e}')
    if own: _check_size(settings, pixels)
    world = start_processes()
    if settings['bs'] % world: raise SystemExit(f"a batch of {settings['bs']} cannot be shared by {world} processes: choose another --bs.")
    dls = first_before_others(lambda: _open_benchmark(benchmark, bs=settings['bs']//world, seed=seed, size=size, valid=valid, img_size=pixels))
    path = from_first(lambda: check_room(_free_name(out, name or f"{Path(benchmark).name}-{settings['model']}-seed{seed}", resume)))
    config, file = dict(benchmark=benchmark, title=dls.title, seed=seed, size=size, valid=valid, img_size=pixels, recipe=settings, rival=rival), path/'config.json'
    if rank_distrib() == 0 and resume and file.exists() and {k: v for k, v in json.loads(file.read_text()).items() if k in config} != json.loads(json.dumps(config)):
        raise SystemExit(f'{path} was started with other settings: give the same ones, or start a new run without --resume.')
    provenance = dict(benchmark=benchmark, title=dls.title, seed=seed, commit=_commit(), images=len(dls.train.dataset), **dls.reading)
    if rank_distrib() == 0: write_whole(file, lambda p: p.write_text(json.dumps(dict(**config, commit=_commit(), torch=torch.__version__, machine=platform.machine()), indent=1)))

    todo = {settings['model']: (path, settings)}
    if rival not in ('none', settings['model']):
        todo[rival] = (path/rival, {**{k: v for k, v in settings.items() if k in TRAINING and k != 'small'}, 'model': rival})
    models, seconds = {}, {}
    for n, (p, s) in todo.items():
        models[n], seconds[n] = _train_one(dls, p, s, seed, resume, provenance)
    teardown_distrib()
    if rank_distrib(): return
    rows = [dict(model=n, params=count_params(m), **final_scores(m, dls), seconds=round(seconds[n]), folder=str(todo[n][0].relative_to(path))) for n, m in models.items()]
    says = _says(rows, dls)
    print('\n' + says, flush=True)
    flat = (dls.upright or dls.test).dataset
    by_angle = {} if dls.images else {n: accuracy_by_angle(m, flat, ANGLES, n=300) for n, m in models.items()}
    results = dict(rows=rows, by_angle=by_angle, says=says)
    write_whole(path/'results.json', lambda p: p.write_text(json.dumps(results, indent=1)))
    print(f'Report: {run_report(path)}')


def _says(rows, dls):
    "The result in a sentence."
    def one(r): return f"AUC {r['auc']:.4f}, turned by 45° {r['auc_45']:.4f}" if dls.images else f"{r['at_0']:.1%} upright, {r['turned']:.1%} turned"
    on = f'{len(judged_photos(dls) or dls.test.dataset):,} test images.'
    return '. '.join(f"{nice(r['model'])}: {one(r)}" for r in rows) + f', on {on}'


def read_rows(file):
    "The rows that `harmformer_eval --csv` wrote. A commit is a name, also where it looks like a number (1061e09)."
    return pd.read_csv(file, dtype=dict(commit=str))


def _append(file, row):
    "Add a row to a CSV file, which it starts if need be."
    old = pd.read_csv(file, dtype=str) if Path(file).exists() else pd.DataFrame()  # as text: old rows stay as they are
    write_whole(file, lambda p: pd.concat([old, pd.DataFrame([row])]).to_csv(p, index=False))


def _open_weights(weights):
    "`load_model`, whose errors end a command with a sentence."
    try: return load_model(weights)
    except (ValueError, OSError) as e: raise SystemExit(str(e))


@call_parse
def harmformer_eval(
    weights:str,        # a file, the folder of a run, or the name of weights that come with the package
    benchmark:str=None, # by default the one that the weights were trained on
    bs:int=100,         # images in a batch
    n:int=10_000,       # use at most so many images at 0° and at 45°
    csv:str=None,       # add a row to this file
):
    "Score trained weights on a benchmark's test set: each image by its own angle, upright, and turned by 45°"
    _at_least(bs=(bs, 1), n=(n, 1))
    model = _open_weights(weights)
    benchmark = benchmark or model.provenance.get('benchmark')
    if not benchmark: raise SystemExit(f'{weights} does not say what it was trained on: give --benchmark.')
    dls = _open_benchmark(benchmark, val_bs=bs, img_size=model.config['img_size'])
    has, wants = [(c.get('num_classes', 'a map of'), c['in_channels']) for c in (model.config, dict(in_channels=dls.n_in, **({} if dls.images else dict(num_classes=dls.c))))]
    if has != wants: raise SystemExit('{} was made for {} classes and {} colours; {} has {} and {}.'.format(weights, *has, dls.title, *wants))
    model = model.to(dls.device)
    if dls.device.type == 'cpu': reuse_memory()
    print(f"{model.config['name']} ({count_params(model):,} parameters) on {dls.title}, {len(judged_photos(dls) or dls.test.dataset):,} test images:", flush=True)
    found = final_scores(model, dls, n=n)
    for k, v in found.items(): print(f'  {MEANS[k]}: {v:.4f}' if dls.images else f'  {MEANS[k]}: {1 - v:.4%} error')
    if csv: _append(csv, dict(title=dls.title, model=model.config['name'], params=count_params(model),
                              **{k: v for k, v in model.provenance.items() if not isinstance(v, (dict, list)) and k not in ('sha256', 'title', 'benchmark')},
                              samples=len(judged_photos(dls) or dls.test.dataset), samples_at=min(n, len(judged_photos(dls) or dls.test.dataset)), **{f'test_{k}': v for k, v in found.items()}, date=time.strftime('%Y-%m-%d')))


@call_parse
def harmformer_report(path:str): # folder of a finished run
    "Write the report of a run once more"
    print(f'Report: {run_report(path)}')


@torch.no_grad()
def classify_pictures(
    model,                           # a classifier of create_model or load_model; evaluated in eval mode
    pictures,                        # files
    vocab=None, mean=None, std=None, # what the model has to know about pictures; None: what its weights say; of DataLoaders: `dls.reading`
    bs:int=64,                       # pictures at a time
)->pd.DataFrame:                     # a row for each picture: class, and its probability
    "What is on each picture, whichever way up it is"
    said = {**getattr(model, 'provenance', {}), **{k: v for k, v in dict(vocab=vocab, mean=mean, std=std).items() if v is not None}}
    if missing := [k for k in ('vocab', 'mean', 'std') if k not in said]: raise ValueError(f'the weights do not say {" and ".join(missing)}: only classifiers that harmformer_train made do')
    device, config, training = next(model.parameters()).device, model.config, model.training
    def probs(some):
        x = read_pictures(some, config['img_size']).float()
        if config['in_channels'] == 1: x = x.mean(1, keepdim=True)
        mean, std = [torch.tensor(said[k]).view(-1, 1, 1) for k in ('mean', 'std')]
        return model(((x - mean)/std).to(device)).softmax(1).cpu()
    model.eval()
    p = torch.cat([probs(pictures[i:i+bs]) for i in range(0, len(pictures), bs)])
    model.train(training)
    return pd.DataFrame(dict(picture=list(map(str, pictures)), **{'class': [said['vocab'][i] for i in p.argmax(1)], 'probability': p.amax(1).numpy()}))


@call_parse
def harmformer_predict(
    weights:str,  # a file, the folder of a run, or the name of weights that come with the package
    pictures:argument('pictures, or folders of them', nargs='+', opt=False),
    csv:str=None, # write a table there, too
):
    "Say what is on each picture, whichever way up it is"
    model = _open_weights(weights)
    found = [f for p in map(Path, [pictures] if isinstance(pictures, str) else pictures) for f in (picture_files(p) if p.is_dir() else [p])]
    if not found: raise SystemExit('there are no pictures in ' + ', '.join(pictures) + '.')
    try: table = classify_pictures(model, found)
    except (DataError, ValueError) as e: raise SystemExit(str(e))
    for o in table.itertuples(index=False): print(f'{o[0]}: {o[1]} ({o[2]:.0%})')
    if csv: write_whole(csv, lambda p: table.to_csv(p, index=False))
