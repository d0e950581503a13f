"""A training run from its settings to its report: one folder with the model, its rivals and what they are worth."""

__all__ = ['look', 'run_config', 'train_run', 'free_name', 'run_folder', 'write_config', 'share_of', 'announce', 'best_of']

import json, platform, re
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
import torch
from fastai.callback.core import Callback, CancelFitException # pyright: ignore
from fastai.distributed import teardown_distrib
from fastai.losses import CrossEntropyLossFlat
from fastai.torch_core import rank_distrib
from fastprogress import progress_bar
from harmformer.calibrate import validated_temperature
from harmformer.checkpoint import read_state
from harmformer.core import adopt_weights, count_params, create_model, load_model, model_names
from harmformer.data import benchmark_dls, benchmark_names
from harmformer import report
from harmformer.evaluate import accuracy_by_angle, final_scores
from harmformer.orientation import handedness_matters
from harmformer.plans import TRAINING, class_weights, fit_to_time, own_model, rival_names, rival_settings, total_seconds
from harmformer.report import in_words, read_json, run_report
from harmformer.survey import is_table, look_at_pictures
from harmformer.system import (Stopped, check_room, commit, first_before_others, from_first, read_tensors, start_processes, write_tensors,
                               write_whole)
from harmformer.train import SMALL, fit, harmformer_learner, human_time, recipe, seconds_per_step

CHOSEN = 'recipe', 'img_size', 'size'       # what --minutes chooses: a run that goes on keeps it


# --- what a run is going to do ---

def look(benchmark:str, pixels:int=None, model:str=None):
    "What is in one's own folder or table of pictures, None for a benchmark; it is printed when the pixels are read"
    if benchmark in benchmark_names() or not (Path(benchmark).is_dir() or is_table(benchmark)): return None
    own_model(None, model, pixels)          # a size that no model takes is reported first
    return look_at_pictures(benchmark, progress=not rank_distrib())


def run_config(
    benchmark:str='digits', budget:bool=False, seed:int=0, size:int=None, valid:int=None, img_size:int=None, rival:str=None,
    minutes:float=None,  # of one's own pictures: how long all of it may take
    patience:int=None,   # stop if the validation loss has not fallen for this many epochs
    seen=None,           # of `look`, for one's own pictures
    **changes,           # of the recipe
)->dict:                 # what config.json holds, all of it checked
    "What a run is going to do; errors in it are reported before any long computation"
    seen = look(benchmark, img_size, changes.get('model')) if seen is None else seen
    if minutes is not None and seen is None: raise ValueError('--minutes is for your own pictures: choose --epochs and --size instead.')
    rivals = rival_names(rival, benchmark, seen is not None)
    fixed = [k for k, v in dict(pixels=img_size, **changes).items() if v is not None]
    if seen is not None: changes['model'], img_size = own_model(seen, changes.get('model'), img_size)
    settings = recipe(benchmark if seen is None else 'digits', budget, **changes)
    if settings['model'] not in model_names():
        raise ValueError(f"no model is called {settings['model']!r}; there are {', '.join(model_names())}")
    usual, extra = {k: settings.pop(k, None) for k in ('size', 'valid')}, {}
    _try_model(settings, img_size if seen is not None else None)
    if seen is not None:
        if minutes: settings, img_size, size = fit_to_time(seen, settings, minutes, img_size or 32, rivals, fixed, size)
        extra = dict(minutes=minutes, class_weights=class_weights(seen), same_seconds=bool(rivals))
        benchmark = str(Path(benchmark).resolve())              # a run has to find its pictures from anywhere
    return dict(benchmark=benchmark, seed=seed, size=size or usual['size'], valid=valid or usual['valid'], img_size=img_size or 32,
                recipe=settings, rival=','.join(rivals) or 'none', **({'patience': patience} if patience else {}), **extra)


def _try_model(settings, img_size=None):
    "Make the model once and, given the side of the pictures, use it: arguments and sizes that do not fit are reported"
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


def _as_before(config, out):
    "The settings with what --minutes chose when the run was started, which is the last of its kind in `out`"
    same = ('benchmark', 'seed', 'rival', 'minutes')
    files = sorted(Path(out).glob('*/config.json'), key=lambda f: f.stat().st_mtime, reverse=True)
    old = next((o for o in map(read_json, files) if all(o.get(k) == config[k] for k in same)), None)
    return {**config, **{k: old[k] for k in CHOSEN}} if old else config


def run_folder(config, out, name, resume)->Path:
    "The folder of a run, by default below `out` by benchmark, model and seed; with room to write"
    place = Path(config['benchmark'])
    title = place.stem if is_table(place) else place.name
    return check_room(free_name(out, name or f"{title}-{config['recipe']['model']}-seed{config['seed']}", resume))


def write_config(path, config, resume, kept=())->dict: # the settings, with those in `kept` as they were
    "Write config.json into the folder of a run; one that is resumed must have the same settings"
    file = path/'config.json'
    if resume and file.exists():
        old = read_json(file)
        config = {**config, **{k: old.get(k) for k in kept}}
        if {k: old.get(k) for k in config} != json.loads(json.dumps(config)):
            raise ValueError(f'{path} was started with other settings: give the same ones, or start a new run without --resume.')
    write_whole(file, json.dumps(dict(**config, commit=commit(), torch=torch.__version__, machine=platform.machine()), indent=1))
    return config


# --- the run ---

def share_of(bs:int, world:int)->int:
    "How many images of a batch each of `world` processes takes"
    if bs % world: raise ValueError(f'a batch of {bs} cannot be shared by {world} processes: choose another --bs.')
    return bs//world


def _data(config, bs, seen, cache):
    "The data of a run, with `bs` images of each batch"
    chosen = {k: config[k] for k in ('seed', 'size', 'valid', 'img_size')}
    if seen is not None: seen.read(config['img_size'], cache, progress=not rank_distrib())
    return first_before_others(lambda: benchmark_dls(config['benchmark'] if seen is None else seen, bs=bs, **chosen))


def train_run(
    config:dict,       # of run_config
    out='runs', name:str=None, resume:bool=False,
    seen=None,         # of `look`, for one's own pictures
    cache:bool=False,  # keep their pixels in a temporary file if they do not fit into memory
    compile='auto',    # training steps: see harmformer_learner
):
    "Train the model of `config` and its rivals in a folder below `out`, score all on the test set, write the report"
    if resume and config.get('minutes'): config = _as_before(config, out)
    dls = _data(config, share_of(config['recipe']['bs'], start_processes()), seen, cache)
    config = {**config, 'title': dls.title}
    if seen is not None and not rank_distrib(): _say_what_was_seen(seen, config)
    path = from_first(lambda: run_folder(config, out, name, resume))
    from_first(lambda: write_config(path, config, resume))
    provenance = {k: config[k] for k in ('benchmark', 'title', 'seed')}
    provenance.update(commit=commit(), images=len(dls.train.dataset), **dls.reading)
    train, trained = partial(_train_one, dls, config=config, resume=resume, provenance=provenance, compile=compile), {}
    for n, (folder, settings) in _todo(path, config).items():
        trained[n] = folder, train(folder, settings, turn=n.endswith('+rot'))
        longer = _as_long(path, folder, settings) if config.get('same_seconds') and folder != path else settings
        if longer != settings:
            folder = path/f'{n}-as-long'
            trained[f'{n}, as long'] = folder, train(folder, longer, turn=n.endswith('+rot'))
    teardown_distrib()
    if rank_distrib(): return
    results = {**_judge(trained, dls, path, config), **({} if seen is None else {'seen': str(seen)})}
    print('\n' + results['says'], *results.get('advice', []), sep='\n', flush=True)
    write_whole(path/'results.json', json.dumps(results, indent=1))
    print(f'Report: {run_report(path, dls)}')


def _say_what_was_seen(seen, config):
    "What is in the folder, what was chosen for it, and how long it will take"
    rivals = [r for r in config['rival'].split(',') if r != 'none']
    each, rest = total_seconds(seen, config['recipe'], config['img_size'], rivals, config['size'])
    epochs = config['recipe']['epochs']
    print(f"{config['title']}: {seen}\nChosen: {config['recipe']['model']}, {config['img_size']} pixels, {epochs} epochs"
          + (f"; beside it {', '.join(rivals)}, for as many images and for as many seconds" if rivals else '')
          + f'. In all about {human_time(epochs*each + rest)} here.', flush=True)


def _todo(path, config):
    "{name: (folder, settings)} of the model and its rivals, which are trained in the same way"
    settings, side = config['recipe'], config['img_size'] if 'same_seconds' in config else None
    rivals = [r for r in config['rival'].split(',') if r not in ('none', settings['model'])]
    return {settings['model']: (path, settings), **{r: (path/r, rival_settings(r, settings, side)) for r in rivals}}


def _seconds(folder): return (read_state(folder) or ({'seconds': 0.},))[0]['seconds']


def _as_long(path, folder, settings):
    "The settings of the rival in `folder` with as many epochs as fit into the seconds of the model"
    epochs = from_first(lambda: round(settings['epochs']*_seconds(path)/max(.1, _seconds(folder))))
    return {**settings, 'epochs': min(500, max(1, epochs))}


class _Patience(Callback):
    "End the training if the validation loss has not fallen for this many epochs"
    order = 101                             # after the state is restored
    learn:object
    def __init__(self, epochs): self.epochs = epochs
    def before_epoch(self):
        values, names = self.recorder.values, list(self.recorder.metric_names[1:])
        losses = [float(v[names.index('valid_loss')]) for v in values]
        if len(losses) - 1 - min(range(len(losses)), key=losses.__getitem__, default=-1) >= self.epochs: raise CancelFitException


def _train_one(dls, path, settings, config, resume, provenance, turn=False, compile='auto'):
    "Train one model into the folder `path`, or finish it, if so in two stages; with its best weights by validation"
    if rank_distrib() == 0: check_room(path)
    s, source, seed = dict(settings), None, config['seed']
    if small := s.pop('small', 0):
        source = _train_one(dls, path/'small', {**s, **SMALL, 'epochs': small}, config, resume, provenance, compile=compile)
        s['lr'] /= 2
        provenance = {**provenance, **{k: source.provenance[k] for k in ('images_seen', 'seconds', 'stages')}}
    torch.manual_seed(seed)
    train = {k: s.pop(k) for k in ('epochs', 'lr', 'schedule')}
    patience = [_Patience(config['patience'])] if config.get('patience') else None
    learn:Any = harmformer_learner(dls, lr=train['lr'], cbs=patience, compile=compile, **{k: v for k, v in s.items() if k != 'bs'})
    if config.get('class_weights'):
        weight = torch.tensor(config['class_weights']).to(dls.device)
        learn.loss_func = CrossEntropyLossFlat(weight=weight, label_smoothing=s['label_smoothing'])
    if source: adopt_weights(learn.model, source.cpu())
    if turn: dls.train.dataset.augment = ('rot',)
    form = ' in small form' if SMALL.items() <= s.items() else ''
    announce(learn, s['model'] + form + ' with random rotations'*turn, train['epochs'])
    try: fit(learn, **train, path=path, seed=seed, resume=resume, provenance={**provenance, **({'rotations': True} if turn else {})})
    finally:
        if turn: dls.train.dataset.augment = ()
    return best_of(learn, path)


def announce(learn, name:str, epochs:int):
    "Say what is trained, and how long it takes here"
    steps = len(learn.dls.train.shard())
    needs = human_time(1.15*seconds_per_step(learn)*steps*epochs)
    if rank_distrib(): return
    print(f'Training {name} ({count_params(learn.model):,} parameters) on {learn.dls.about}. {epochs} epochs of {steps} steps: '
          f'about {needs} here.', flush=True)


def best_of(learn, path):
    "The best weights by validation of a training in the folder `path`, unless it was stopped"
    if learn.stopped: raise Stopped('' if rank_distrib() else f'Stopped and saved in {path}. To go on: the same command with --resume.')
    return from_first(lambda: load_model(path/'best.safetensors')).to(learn.dls.device)


# --- what it is worth ---

def _judge(trained, dls, path, config)->dict:
    "What results.json holds: scores of all models on the test set, accuracy by angle, and the result in a sentence"
    own, rows, by_angle = 'same_seconds' in config, [], {}
    angles, some = (report.ANGLES[::2], 100) if own else (report.ANGLES, 300)
    flat = (dls.upright or dls.test).dataset
    todo:Any = progress_bar(list(trained.items()), leave=False)
    for n, (folder, m) in todo:
        warm = {} if dls.images else {'temperature': _keep_temperature(m, folder, dls)}
        rows.append(dict(model=n, params=count_params(m), **final_scores(m, dls), **_spent(folder, m),
                         folder=str(folder.relative_to(path)), **warm))
        if not dls.images: by_angle[n] = accuracy_by_angle(m, flat, angles, n=some)
    advice = mirror_advice(next(iter(trained.values()))[1], dls) if own else ''
    return dict(rows=rows, by_angle=by_angle, says=in_words(rows, dls), **(dict(advice=[advice] if advice else []) if own else {}))


def _spent(folder, model)->dict:
    "Images seen and seconds of the whole training, also after the epoch that was the best"
    stages = [s[0] for f in (folder/'small', folder) if (s := read_state(f))]
    each = model.provenance['stages'][-1]['images_seen']/model.provenance['stages'][-1]['epochs']
    small = sum(s.get('images_seen', 0) for s in model.provenance['stages'][:-1])
    return dict(images_seen=round(small + each*stages[-1]['epoch']), seconds=round(sum(s['seconds'] for s in stages)))


def _keep_temperature(model, folder, dls)->float:
    "Fit the temperature on the validation images, upright and rotated, and write it into the file of the best weights"
    found = round(validated_temperature(model, dls), 4)
    header, tensors = read_tensors(folder/'best.safetensors')
    write_tensors(folder/'best.safetensors', tensors, {**{k: v for k, v in header.items() if k != 'sha256'}, 'temperature': found})
    model.provenance['temperature'] = found
    return found


def mirror_advice(model, dls)->str:
    """A sentence that recommends reflections, if validation pictures are recognised as well when they are mirrored. It is empty if they
    are not, and where the question is idle: few pictures, a model that has learnt little, or one without reflections to switch on."""
    orders = {*getattr(model, 'orders', ())}
    if dls.images or orders != {-m for m in orders} or model.config.get('reflections', True) or len(dls.valid.dataset) < 50: return ''
    found = handedness_matters(model, dls.valid)
    if found['matters'] or found['error'] > .75*(1 - 1/dls.c): return ''
    return (f"Mirrored validation pictures are recognised as well ({found['mirrored']:.1%} errors, {found['error']:.1%} as they are): "
            'try --set reflections=True, which needs a third fewer parameters.')
