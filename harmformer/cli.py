"""The commands: they read their arguments, call the library, and turn its errors into sentences."""

# pyright: reportInvalidTypeForm=false
__all__ = ['harmformer_train', 'harmformer_eval', 'harmformer_report', 'harmformer_predict', 'harmformer_segment', 'harmformer_export', 'sentences', 'argument']

import ast, io, os, re, sys
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
import fastcore.script
from fastcore.script import call_parse
from harmformer.core import count_params, load_model
from harmformer.data import benchmark_dls
from harmformer.files import DataError, picture_files
from harmformer.evaluate import final_scores, judged_photos
from harmformer.export import OnnxModel, compare, export_onnx, export_program, load_program
from harmformer.predict import classify_batches, said_conversions
from harmformer.report import MEANS, append_row, eval_row, run_report
from harmformer.runs import Stopped, run_config, train_run
from harmformer.masks import is_mask_folder
from harmformer.mask_runs import eval_masks, is_mask_run, mask_config, mask_report, train_masks
from harmformer.segment import save_maps
from harmformer.system import WriteError, check_room, reuse_memory

COMPILE:dict = dict(auto='auto', yes=True, no=False)
# what the library says about its input, and the machine about itself
EXPECTED = DataError, ValueError, FloatingPointError, OSError, MemoryError, ImportError


def argument(help, type=str, **kwargs):
    "The annotation of an argument, with `kwargs` of argparse: fastcore 1 has a class for it, fastcore 2 takes what Python has"
    return fastcore.script.Param(help, type, **kwargs) if hasattr(fastcore.script, 'Param') else Annotated[type, help, kwargs]


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


@call_parse
def harmformer_train(
    benchmark:argument('digits, mnist-rot-test, rotated-mnist, cifar-rot-test, pcam, drive, or a folder with a subfolder of pictures '
                       'for each class', opt=False, nargs='?')='digits',
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
    pixels:int=None,        # side to which pictures of a folder are scaled, by default 32; with masks, of the patches, by default 64
    classes:str='',         # of masks with several: their names, or how many, the background first
    set:str='',             # arguments of the model, such as mixing=all,depth=2
    out:str='runs',         # folder of all runs
    name:str=None,          # folder of this run below it, by default from benchmark, model and seed
    compile:str='auto',     # training steps by torch.compile: yes, no, or auto, which is where it pays; the same with --resume
    rival:str=None,         # trained along, by default a plain CNN of 31,000 parameters (drive: a U-Net of 41,000); 'none' for none
):
    "Train a model on a benchmark and write runs/NAME/report.html"
    with sentences():
        _at_least(epochs=(epochs, 1), bs=(bs, 2), small=(small, 0), size=(size, 1), valid=(valid, 1), pixels=(pixels, 4), seed=(seed, 0))
        if lr is not None and not 0 < lr < float('inf'): raise ValueError(f'--lr is more than 0, not {lr}.')
        if compile not in COMPILE: raise ValueError(f'--compile is auto, yes or no, not {compile}.')
        if is_mask_folder(benchmark):
            settings = mask_config(benchmark, classes, seed, size, valid, pixels, rival, arguments=_arguments(set),
                                   model=model, epochs=epochs, bs=bs, lr=lr)
            return train_masks(settings, out, name, resume)
        if classes: raise ValueError('--classes is for masks: leave it out, or give a folder with images and masks.')
        config = run_config(benchmark, budget, seed, size, valid, pixels or 32, rival,
                            model=model, epochs=epochs, bs=bs, lr=lr, small=small, **_arguments(set))
        train_run(config, out, name, resume, COMPILE[compile])


@call_parse
def harmformer_eval(
    weights:str,        # a file, the folder of a run, or the name of weights that come with the package
    benchmark:str=None, # by default the one that the weights were trained on
    bs:int=100,         # images in a batch
    n:int=10_000,       # use at most so many images at 0° and at 45°
    csv:str=None,       # add a row to this file
):
    "Score trained weights on a benchmark's test set: each image by its own angle, upright, and turned by 45°"
    with sentences():
        _at_least(bs=(bs, 1), n=(n, 1))
        _folder_of(csv)
        model = load_model(weights)
        benchmark = benchmark or model.provenance.get('benchmark')
        if not benchmark: raise ValueError(f'{weights} does not say what it was trained on: give --benchmark.')
        if is_mask_folder(benchmark): return eval_masks(model, benchmark, csv)
        dls = benchmark_dls(benchmark, val_bs=bs, img_size=_side(model))
        _check_fit(weights, model, dls)
        model = model.to(dls.device)
        if dls.device.type == 'cpu': reuse_memory()
        tested = len(judged_photos(dls) or dls.test.dataset)
        print(f"{model.config['name']} ({count_params(model):,} parameters) on {dls.title}, {tested:,} test images:", flush=True)
        found = final_scores(model, dls, n=n)
        for k, v in found.items(): print(f'  {MEANS[k]}: {v:.4f}' if dls.images else f'  {MEANS[k]}: {1 - v:.4%} error')
        if csv: append_row(csv, eval_row(model, dls, found, n))


def _side(model):
    size = model.config.get('img_size', 32)
    return size if isinstance(size, int) else size[0]


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


@call_parse
def harmformer_report(path:str): # folder of a finished run
    "Write the report of a run once more"
    with sentences(): print(f'Report: {mask_report(path) if is_mask_run(path) else run_report(path)}')


def _trained(weights):
    "The model of a file of weights, or of an .onnx file."
    return OnnxModel(weights) if Path(weights).suffix == '.onnx' else load_model(weights)


@call_parse
def harmformer_predict(
    weights:str,  # a file, the folder of a run, or the name of weights that come with the package
    pictures:argument('pictures, or folders of them', nargs='+', opt=False),
    csv:str=None, # write a table there, too
):
    "Say what is on each picture, whichever way up it is"
    with sentences():
        _folder_of(csv)
        model = _trained(weights)
        places = list(map(Path, [pictures] if isinstance(pictures, (str, Path)) else pictures))
        found = [f for p in places for f in (picture_files(p) if p.is_dir() else [p])]
        if not found: raise DataError('there are no pictures in ' + ', '.join(map(str, places)) + '.')
        if isinstance(model, OnnxModel): said_conversions(found, model.img_size[0])
        rows = []
        for table in classify_batches(model, found):
            for o in table.itertuples(index=False): print(f'{o[0]}: {o[1]} ({o[2]:.0%})', flush=True)
            rows.append(table)
        if csv: append_row(csv, *rows, anew=True)


@call_parse
def harmformer_segment(
    images:argument('pictures to segment', nargs='+', opt=False),
    out:str='segmented',     # folder for the results
    weights:str='drive',     # a file, or the name of weights that come with the package
    threshold:float=.5,      # a pixel is vessel above this probability
    overlap:float=.5,        # share of a tile that its neighbour sees too
):
    "Write NAME_prob.png, NAME_mask.png and NAME_overlay.png for every picture"
    with sentences():
        if not 0 < threshold < 1: raise ValueError(f'--threshold is a probability between 0 and 1, not {threshold}.')
        if not 0 <= overlap <= .95: raise ValueError(f'--overlap is a share of a tile, from 0 to 0.95, not {overlap}.')
        model = _trained(weights)
        if not hasattr(model, 'multiple'):
            raise ValueError(f"{weights} holds a {model.config['name']}, which does not segment: give weights of harmformer_unet.")
        save_maps(model, [images] if isinstance(images, (str, Path)) else images, out, threshold, overlap)


@call_parse
def harmformer_export(
    weights:str,        # a file, the folder of a run, or the name of weights that come with the package
    to:str='onnx',      # onnx, or pt2 for torch.export
    pixels:int=None,    # side of the images, by default as trained
    out:str=None,       # the file, by default NAME.onnx or NAME.pt2 here
    check:bool=False,   # compare both programs on test images
):
    "Write trained weights as a program that runs without this library"
    with sentences():
        if to not in ('onnx', 'pt2'): raise ValueError(f'--to is onnx or pt2, not {to}.')
        _at_least(pixels=(pixels, 1))
        model, file = load_model(weights), Path(out or f'{Path(weights).stem}.{to}')
        _folder_of(file, '--out')
        (export_onnx if to == 'onnx' else export_program)(model, file, pixels)
        print(f'{file}: {file.stat().st_size/1e6:.1f} MB', flush=True)
        if not check: return
        benchmark = model.provenance.get('benchmark')
        if not benchmark: raise ValueError(f'{weights} does not say what it was trained on, so there are no images for --check.')
        dls = benchmark_dls(benchmark, val_bs=32, img_size=pixels or _side(model))
        found = compare(model, OnnxModel(file) if to == 'onnx' else load_program(file), dls.valid if dls.images else dls.test)
        for k, v in found.items(): print(f'  {k}: {v:.4g}')
