"""The commands: they read their arguments, call the library, and turn its errors into sentences. Each imports what it needs when it runs:
with an `.onnx` file, harmformer_predict and harmformer_segment need no code that makes or trains models."""

# pyright: reportInvalidTypeForm=false
__all__ = ['harmformer_train', 'harmformer_eval', 'harmformer_report', 'harmformer_predict', 'harmformer_segment', 'harmformer_export',
           'sentences', 'argument']

import ast, io, os, re, sys
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Annotated
import fastcore.script
from fastcore.script import anno_parser, call_parse
from harmformer.files import DataError, picture_files
from harmformer.onnx_file import OnnxModel
from harmformer.system import Stopped, WriteError, reuse_memory

COMPILE:dict = dict(auto='auto', yes=True, no=False)
# what the library says about its input, and the machine about itself
EXPECTED = DataError, ValueError, FloatingPointError, OSError, MemoryError, ImportError


def argument(help, type=str, **kwargs):
    "The annotation of an argument, with `kwargs` of argparse: fastcore 1 has a class for it, fastcore 2 takes what Python has"
    return fastcore.script.Param(help, type, **kwargs) if hasattr(fastcore.script, 'Param') else Annotated[type, help, kwargs]


def command(f):
    "`f` as a command. fastcore takes a call without arguments in `python -c` for one from Python: there, too, --help shows the help"
    @wraps(f)
    def called(*args, **kwargs):
        if not (args or kwargs) and {'-h', '--help'} & {*sys.argv[1:]}: return anno_parser(f, f.__name__).print_help()
        return f(*args, **kwargs)
    return call_parse(called)


def _sentence(e):
    if isinstance(e, MemoryError): return 'The memory is not enough: take smaller batches or pictures.'
    if isinstance(e, OSError) and e.strerror:
        return f'{e.filename or "A file"} cannot be used: {e.strerror}. Correct the name or the permissions.'
    return re.sub(r'^Exception occured in .*:\n\t', '', str(e))  # fastai says which callback it was


@contextmanager
def sentences():
    "Errors that the library expects end a command with one sentence. Others keep their traceback: they are ours"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper): stream.reconfigure(errors='backslashreplace')  # signs that the terminal cannot show
    try: yield
    except BrokenPipeError: os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # as in `harmformer_predict ... | head`
    except Stopped as e: raise SystemExit(str(e) or 1)
    except EXPECTED as e: raise SystemExit(_sentence(e)) from e
    except KeyboardInterrupt: raise SystemExit('Interrupted.')


def _at_least(**limits):
    "End the command if one of `limits`, {argument: (value, least)}, is too small; None is not given."
    for k, (v, least) in limits.items():
        if v is not None and not v >= least: raise ValueError(f'--{k} is at least {least}, not {v}.')


def _arguments(text):
    "{'mixing': 'all', 'depth': 2} from 'mixing=all,depth=2'."
    def value(v):
        try: return ast.literal_eval(v)
        except (ValueError, SyntaxError, MemoryError, RecursionError): return v
    pairs = [o.partition('=') for o in re.split(r',(?=\w+=)', text) if o]
    if bad := [k for k, eq, _ in pairs if not eq]:
        raise ValueError(f'--set takes name=value pairs with commas between them, not {bad[0]!r}')
    return {k: value(v) for k, _, v in pairs}


@command
def harmformer_train(
    benchmark:argument('digits, mnist-rot-test, rotated-mnist, cifar-rot-test, pcam, drive; or your own pictures: a folder with a '
                       'subfolder for each class, or a CSV with path,label[,group]', opt=False, nargs='?')='digits',
    model:str=None,         # another model than the recipe's, or than the one that fits your pictures
    epochs:int=None,        # instead of the recipe's
    bs:int=None,            # images in a batch, instead of the recipe's
    lr:float=None,          # learning rate, instead of the recipe's
    budget:bool=False,      # the recipe's form for a CPU
    resume:bool=False,      # continue where an interrupted run stopped
    seed:int=0,             # of weights, order of images and dropout
    small:int=None,         # epochs in small form before the others, instead of the recipe's
    size:int=None,          # use only this many training images
    valid:int=None,         # use only this many validation images
    pixels:int=None,        # side to which your pictures are scaled, by default what fits them; with masks, of the patches, by default 64
    minutes:float=None,     # your pictures: choose epochs and size so that all of it takes about so long
    cache:bool=False,       # your pictures, if they do not fit into memory: read them once, into a temporary file
    patience:int=None,      # stop when the validation loss has not fallen for this many epochs
    classes:str='',         # of masks with several: their names, or how many, the background first
    set:str='',             # arguments of the model, such as mixing=all,depth=2
    out:str='runs',         # folder of all runs
    name:str=None,          # folder of this run below it, by default from benchmark, model and seed
    compile:str='auto',     # training steps by torch.compile: yes, no, or auto, which is where it pays; the same with --resume
    rival:str=None,         # trained along: some of cnn, cnn+rot, resnet18+rot, vit+rot; 'none'; by default cnn, for your pictures cnn+rot
):
    "Train a model on a benchmark and write runs/NAME/report.html"
    from harmformer.masks import is_mask_folder
    from harmformer.mask_runs import mask_config, train_masks
    from harmformer.runs import look, run_config, train_run
    with sentences():
        _at_least(epochs=(epochs, 1), bs=(bs, 2), small=(small, 0), size=(size, 1), valid=(valid, 1), pixels=(pixels, 4), seed=(seed, 0),
                  patience=(patience, 1))
        if minutes is not None and not 0 < minutes < float('inf'): raise ValueError(f'--minutes is more than 0, not {minutes}.')
        if lr is not None and not 0 < lr < float('inf'): raise ValueError(f'--lr is more than 0, not {lr}.')
        if compile not in COMPILE: raise ValueError(f'--compile is auto, yes or no, not {compile}.')
        if is_mask_folder(benchmark):
            if patience: raise ValueError('--patience is for classes: leave it out.')
            settings = mask_config(benchmark, classes, seed, size, valid, pixels, rival, minutes, arguments=_arguments(set),
                                   model=model, epochs=epochs, bs=bs, lr=lr)
            return train_masks(settings, out, name, resume)
        if classes: raise ValueError('--classes is for masks: leave it out, or give a folder with images and masks.')
        seen = look(benchmark, pixels, model)
        config = run_config(benchmark, budget, seed, size, valid, pixels, rival, minutes, patience, seen,
                            model=model, epochs=epochs, bs=bs, lr=lr, small=small, **_arguments(set))
        train_run(config, out, name, resume, seen, cache, COMPILE[compile])


@command
def harmformer_eval(
    weights:str,        # a file, the folder of a run, or the name of weights that come with the package
    benchmark:str=None, # by default the one that the weights were trained on
    bs:int=100,         # images in a batch
    n:int=10_000,       # use at most this many images at 0° and at 45°
    csv:str=None,       # add a row to this file
):
    "Score trained weights on a benchmark's test set: each image by its own angle, upright, and rotated by 45°"
    from harmformer.core import count_params, load_model
    from harmformer.data import benchmark_dls
    from harmformer.evaluate import final_scores, judged_photos
    from harmformer.masks import is_mask_folder
    from harmformer.mask_runs import eval_masks
    from harmformer.predict import side_of
    from harmformer.report import MEANS, append_row, eval_row
    with sentences():
        _at_least(bs=(bs, 1), n=(n, 1))
        _folder_of(csv)
        model = load_model(weights)
        benchmark = benchmark or model.provenance.get('benchmark')
        if not benchmark: raise ValueError(f'{weights} does not say what it was trained on: give --benchmark.')
        if is_mask_folder(benchmark): return eval_masks(model, benchmark, csv)
        dls = benchmark_dls(benchmark, val_bs=bs, img_size=side_of(model, 32), as_stored=bool(model.provenance.get('as_stored')))
        _check_fit(weights, model, dls)
        model = model.to(dls.device)
        if dls.device.type == 'cpu': reuse_memory()
        tested = len(judged_photos(dls) or dls.test.dataset)
        print(f"{model.config['name']} ({count_params(model):,} parameters) on {dls.title}, {tested:,} test images:", flush=True)
        found = final_scores(model, dls, n=n)
        for k, v in found.items(): print(f'  {MEANS[k]}: {v:.4f}' if dls.images else f'  {MEANS[k]}: {1 - v:.4%} error')
        if csv: append_row(csv, eval_row(model, dls, found, n))


def _check_fit(weights, model, dls):
    "Say so if the weights are not for the classes and colours of the data."
    has = model.config.get('num_classes', 'a map of'), model.config['in_channels']
    wants = 'a map of' if dls.images else dls.c, dls.n_in
    if has != wants:
        raise ValueError('{} was made for {} classes and {} colours; {} has {} and {}.'.format(weights, *has, dls.title, *wants))


def _folder_of(csv, option='--csv'):
    "Say before any work is done that a file cannot be written."
    if not csv: return
    if Path(csv).is_dir(): raise WriteError(f'{csv} is a folder: give {option} the name of a file.')
    if not Path(csv).absolute().parent.is_dir():
        raise WriteError(f'there is no folder {Path(csv).parent}: make it, or choose another {option}.')


@command
def harmformer_report(path:str): # folder of a finished run
    "Write the report of a run again"
    from harmformer.mask_runs import is_mask_run, mask_report
    from harmformer.report import run_report
    with sentences(): print(f'Report: {mask_report(path) if is_mask_run(path) else run_report(path)}')


def _trained(weights):
    "The model of a file of weights, or of an .onnx file."
    if Path(weights).suffix == '.onnx': return OnnxModel(weights)
    from harmformer.core import load_model
    return load_model(weights)


@command
def harmformer_predict(
    weights:str,  # a file, the folder of a run, or the name of weights that come with the package; or an .onnx file
    pictures:argument('pictures, or folders of them', nargs='+', opt=False),
    csv:str=None, # write a table there, too
):
    "Say what is on each picture, whichever way up it is"
    from harmformer.predict import classify_batches, said_conversions, save_table
    with sentences():
        _folder_of(csv)
        model = _trained(weights)
        places = list(map(Path, [pictures] if isinstance(pictures, (str, Path)) else pictures))
        arrays = bool(getattr(model, 'provenance', {}).get('as_stored'))
        found = [f for p in places for f in (picture_files(p, arrays) if p.is_dir() else [p])]
        if not found: raise DataError('there are no pictures in ' + ', '.join(map(str, places)) + '.')
        if isinstance(model, OnnxModel): said_conversions(found, model.img_size[0])
        rows = []
        for table in classify_batches(model, found):
            for o in table.itertuples(index=False): print(f'{o[0]}: {o[1]} ({o[2]:.0%})', flush=True)
            rows.append(table)
        if csv: save_table(csv, rows)


@command
def harmformer_segment(
    images:argument('pictures to segment', nargs='+', opt=False),
    out:str='segmented',     # folder for the results
    weights:str='drive',     # a file, or the name of weights that come with the package; or an .onnx file
    threshold:float=.5,      # a pixel is vessel above this probability
    overlap:float=.5,        # share of a tile that its neighbour sees too
):
    "Write NAME_prob.png, NAME_mask.png and NAME_overlay.png for every picture"
    from harmformer.predict import said_conversions
    from harmformer.segment import save_maps
    with sentences():
        if not 0 < threshold < 1: raise ValueError(f'--threshold is a probability between 0 and 1, not {threshold}.')
        if not 0 <= overlap <= .95: raise ValueError(f'--overlap is a share of a tile, from 0 to 0.95, not {overlap}.')
        model = _trained(weights)
        if not hasattr(model, 'multiple'):
            raise ValueError(f"{weights} holds a {model.config['name']}, which does not segment: give weights of harmformer_unet.")
        images = [images] if isinstance(images, (str, Path)) else images
        if isinstance(model, OnnxModel): said_conversions(images)
        save_maps(model, images, out, threshold, overlap)


@command
def harmformer_export(
    weights:str,        # a file, the folder of a run, or the name of weights that come with the package
    to:str='onnx',      # onnx, or pt2 for torch.export
    pixels:str=None,    # side of the images, by default as trained; any: one file for all sizes
    out:str=None,       # the file, by default NAME.onnx or NAME.pt2 here
    check:bool=False,   # compare both programs on test images
):
    "Write trained weights as a program that runs without this library"
    from harmformer.core import load_model
    from harmformer.data import benchmark_dls
    from harmformer.export import compare, export_onnx, export_program, load_program
    from harmformer.predict import side_of
    with sentences():
        if to not in ('onnx', 'pt2'): raise ValueError(f'--to is onnx or pt2, not {to}.')
        if pixels not in (None, 'any') and not str(pixels).isdecimal():
            raise ValueError(f'--pixels is a number of pixels, or any, not {pixels}.')
        size = pixels if pixels in (None, 'any') else int(pixels)
        model, file = load_model(weights), Path(out or f'{Path(weights).stem}.{to}')
        _folder_of(file, '--out')
        (export_onnx if to == 'onnx' else export_program)(model, file, size)
        print(f'{file}: {file.stat().st_size/1e6:.1f} MB', flush=True)
        if not check: return
        benchmark = model.provenance.get('benchmark')
        if not benchmark: raise ValueError(f'{weights} does not say what it was trained on, so there are no images for --check.')
        dls = benchmark_dls(benchmark, val_bs=32, img_size=size if isinstance(size, int) else side_of(model, 32))
        batches = islice(dls.valid, 8) if dls.images else dls.test  # of patches there are tens of thousands
        found = compare(model, OnnxModel(file) if to == 'onnx' else load_program(file), batches)
        for k, v in found.items(): print(f'  {k}: {v:.4g}')
