"""A training run from its settings to its report: one folder with the model, its rival and what they are worth."""

__all__ = ['Stopped', 'run_config', 'train_run', 'free_name']

import json, platform, re
from itertools import count
from pathlib import Path
import torch
from fastai.distributed import teardown_distrib
from fastai.torch_core import rank_distrib
from harmformer.core import adopt_weights, count_params, create_model, load_model, model_names
from harmformer.data import benchmark_dls, benchmark_names
from harmformer import report
from harmformer.evaluate import accuracy_by_angle, final_scores
from harmformer.report import in_words, read_json, run_report
from harmformer.system import check_room, commit, first_before_others, from_first, start_processes, write_whole
from harmformer.train import SMALL, fit, harmformer_learner, human_time, recipe, seconds_per_step

TRAINING = 'model', 'epochs', 'small', 'bs', 'lr', 'schedule', 'wd', 'label_smoothing'  # what a recipe holds beside the model's arguments


class Stopped(Exception):
    "Ctrl-C ended a run early; its state is saved, and the message says how to go on"


def run_config(
    benchmark:str='digits', budget:bool=False, seed:int=0, size:int=None, valid:int=None, img_size:int=32, rival:str=None,
    **changes, # of the recipe
)->dict:       # what config.json holds, all of it checked
    "What a run is going to do; errors in it are told before anything takes time"
    settings = recipe(benchmark, budget, **changes)
    own = benchmark not in benchmark_names()
    if own: benchmark = str(Path(benchmark).resolve())      # a run has to find its pictures from anywhere
    rival = rival or ('unet' if benchmark == 'drive' else 'cnn')
    for m in (settings['model'], rival):
        if m not in (*model_names(), 'none'): raise ValueError(f'no model is called {m!r}; there are {", ".join(model_names())}')
    usual = {k: settings.pop(k, None) for k in ('size', 'valid')}
    _try_model(settings, img_size if own else None)
    return dict(benchmark=benchmark, seed=seed, size=size or usual['size'], valid=valid or usual['valid'], img_size=img_size,
                recipe=settings, rival=rival)


def _try_model(settings, img_size=None):
    "Make the model once and, given the side of the pictures, use it: arguments and sizes that do not fit are told"
    arguments = {k: v for k, v in settings.items() if k not in TRAINING}
    try: model = create_model(settings['model'], **arguments, **({'img_size': img_size} if img_size else {})).eval()
    except (TypeError, ValueError) as e: raise ValueError(f'--set: {e}') from e
    if img_size is None: return
    try: model(torch.zeros(1, model.config['in_channels'], img_size, img_size))
    except (RuntimeError, ValueError) as e: raise ValueError(f'--pixels: {e}') from e


def free_name(out, name:str, resume:bool)->Path:
    "`name`, or the first of name-2, name-3… that does not exist; with `resume` the last of them that does"
    here = [p.name for p in Path(out).iterdir()] if Path(out).is_dir() else []
    taken = sorted(int(m[1] or 1) for o in here if (m := re.fullmatch(re.escape(name) + r'(?:-(\d+))?', o)))
    if resume and not taken: raise ValueError(f'There is no run {name} in {out} to resume. Leave out --resume to start it.')
    i = taken[-1] if resume else next(i for i in count(1) if i not in taken)
    return Path(out)/(f'{name}-{i}' if i > 1 else name)


def _open_folder(config, out, name, resume):
    "The folder of the run, with its config.json; a resumed run must have the same settings"
    path = check_room(free_name(out, name or f"{Path(config['benchmark']).name}-{config['recipe']['model']}-seed{config['seed']}", resume))
    file = path/'config.json'
    if resume and file.exists() and {k: v for k, v in read_json(file).items() if k in config} != json.loads(json.dumps(config)):
        raise ValueError(f'{path} was started with other settings: give the same ones, or start a new run without --resume.')
    about = dict(**config, commit=commit(), torch=torch.__version__, machine=platform.machine())
    write_whole(file, json.dumps(about, indent=1))
    return path


def _share(config, world):
    "The data of a run, with this process's share of each batch"
    bs = config['recipe']['bs']
    if bs % world: raise ValueError(f'a batch of {bs} cannot be shared by {world} processes: choose another --bs.')
    chosen = {k: config[k] for k in ('seed', 'size', 'valid', 'img_size')}
    return first_before_others(lambda: benchmark_dls(config['benchmark'], bs=bs//world, **chosen))


def train_run(config:dict, out='runs', name:str=None, resume:bool=False, compile='auto'):
    "Train the model of `config` and its rival in a folder below `out`, score both on the test set, write the report"
    dls = _share(config, start_processes())
    config = {**config, 'title': dls.title}
    path = from_first(lambda: _open_folder(config, out, name, resume))
    provenance = {k: config[k] for k in ('benchmark', 'title', 'seed')}
    provenance.update(commit=commit(), images=len(dls.train.dataset), **dls.reading)
    trained = {n: _train_one(dls, folder, settings, config['seed'], resume, provenance, compile)
               for n, (folder, settings) in _todo(path, config).items()}
    teardown_distrib()
    if rank_distrib(): return
    results = _judge(trained, dls, path, config)
    print('\n' + results['says'], flush=True)
    write_whole(path/'results.json', json.dumps(results, indent=1))
    print(f'Report: {run_report(path)}')


def _todo(path, config):
    "{name: (folder, settings)} of the model and its rival, which is trained in the same way"
    settings, rival = config['recipe'], config['rival']
    todo = {settings['model']: (path, settings)}
    if rival in ('none', settings['model']): return todo
    return {**todo, rival: (path/rival, {**{k: v for k, v in settings.items() if k in TRAINING and k != 'small'}, 'model': rival})}


def _train_one(dls, path, settings, seed, resume, provenance, compile='auto'):
    "Train one model into the folder `path`, or finish it, if so in two stages; with its best weights by validation"
    if rank_distrib() == 0: check_room(path)
    s, source = dict(settings), None
    if small := s.pop('small', 0):
        source, s['lr'] = _train_one(dls, path/'small', {**s, **SMALL, 'epochs': small}, seed, resume, provenance, compile), s['lr']/2
        provenance = {**provenance, **{k: source.provenance[k] for k in ('images_seen', 'seconds', 'stages')}}
    torch.manual_seed(seed)
    train = {k: s.pop(k) for k in ('epochs', 'lr', 'schedule')}
    learn = harmformer_learner(dls, lr=train['lr'], compile=compile, **{k: v for k, v in s.items() if k != 'bs'})
    if source: adopt_weights(learn.model, source.cpu())
    _announce(learn, s, train['epochs'])
    fit(learn, **train, path=path, seed=seed, resume=resume, provenance=provenance)
    if learn.stopped: raise Stopped('' if rank_distrib() else f'Stopped and saved in {path}. To go on: the same command with --resume.')
    return from_first(lambda: load_model(path/'best.safetensors')).to(dls.device)


def _announce(learn, settings, epochs):
    "Say what is trained, and how long it takes here"
    steps, form = len(learn.dls.train.shard()), ' in small form' if SMALL.items() <= settings.items() else ''
    needs = human_time(1.15*seconds_per_step(learn)*steps*epochs)
    if rank_distrib(): return
    print(f"Training {settings['model']}{form} ({count_params(learn.model):,} parameters) on {learn.dls.about}. "
          f"{epochs} epochs of {steps} steps: about {needs} here.", flush=True)


def _judge(models, dls, path, config)->dict:
    "What results.json holds: scores of all models on the test set, accuracy by angle, and the result in a sentence"
    rows = [dict(model=n, params=count_params(m), **final_scores(m, dls), seconds=round(m.provenance['seconds']),
                 folder=str(_todo(path, config)[n][0].relative_to(path))) for n, m in models.items()]
    flat = (dls.upright or dls.test).dataset
    by_angle = {} if dls.images else {n: accuracy_by_angle(m, flat, report.ANGLES, n=300) for n, m in models.items()}
    return dict(rows=rows, by_angle=by_angle, says=in_words(rows, dls))
