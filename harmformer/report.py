"""The report of a training run, one HTML file with its pictures inside; and the rows of tables."""

__all__ = ['run_report', 'read_run', 'write_page', 'read_json', 'append_row', 'eval_row', 'in_words']

import html, json, time
from itertools import cycle
from pathlib import Path
import pandas as pd
from harmformer.class_report import PALETTE, as_html, called, class_parts, error_table, figure
from harmformer.core import count_params, load_model
from harmformer.data import benchmark_dls
from harmformer.evaluate import judged_photos, nice
from harmformer.segment import show_maps, show_turning_maps
from harmformer.system import write_whole

ANGLES = tuple(range(0, 360, 15))
MEANS = dict(turned='each by its own angle', at_0='0°', at_45='45°', auc='area under the ROC curve', dice='Dice', accuracy='accuracy',
             auc_45='area, rotated by 45°', auc_90='area, rotated by 90°')
TITLES = dict(auc='dashed: Dice, solid: area under the ROC curve', turned='validation accuracy (dashed: upright, solid: rotated)')


def loss_curves(logs):
    "Loss and accuracy by epoch, of every model."
    fig, (a, b) = figure(1, 2, (8, 3))
    for (name, log), c in zip(logs.items(), cycle(PALETTE)):
        a.plot(log.epoch + 1, log.train_loss, f'{c}.--'); a.plot(log.epoch + 1, log.valid_loss, f'{c}.-', label=called(name))
        dashed, solid = ('dice', 'auc') if 'auc' in log else ('accuracy', 'turned')
        b.plot(log.epoch + 1, log[dashed], f'{c}.--'); b.plot(log.epoch + 1, log[solid], f'{c}.-', label=called(name))
    a.set(xlabel='epoch'); b.set(xlabel='epoch', ylim=(None, 1))
    a.set_title('loss (dashed: training)', fontsize=9); b.set_title(TITLES[solid], fontsize=9)
    if len({len(log) for log in logs.values()}) > 1: a.set_xscale('log'); b.set_xscale('log')    # one was trained for many more epochs
    a.legend(fontsize=8)
    return fig


STYLE = 'body{font:16px/1.5 system-ui;max-width:920px;margin:2em auto;padding:0 1em}'
STYLE += 'table{border-collapse:collapse;display:block;overflow-x:auto;font-size:14px}'
STYLE += 'td,th{padding:.2em .5em;text-align:right;border:0;border-bottom:1px solid #ddd}td{white-space:nowrap}img{max-width:100%}'


def read_json(file)->dict:
    "A dictionary from a JSON file of a run"
    try: found = json.loads(Path(file).read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as e:
        raise ValueError(f'{file} is damaged ({e}): put a good copy in its place, or train again') from e
    if isinstance(found, dict): return found
    raise ValueError(f'{file} is damaged (no dictionary): put a good copy in its place, or train again')


def read_run(path)->tuple: # settings, results, {model: its folder}, {model: its log}
    "What a finished run left in its folder, or an error that says what is missing or damaged"
    path = Path(path)
    if not path.is_dir(): raise ValueError(f'there is no folder {path}.')
    if need := [f for f in ('config.json', 'results.json') if not (path/f).exists()]:
        raise ValueError(f'{path} is not a finished run: {", ".join(need)} is missing. Finish it with harmformer_train --resume.')
    config, results = [read_json(path/f) for f in ('config.json', 'results.json')]
    try:
        folders = {str(r['model']): path/r['folder'] for r in results['rows']}
        for k, kind in dict(benchmark=str, title=str, seed=int).items():
            if not isinstance(config[k], kind): raise TypeError(f'{k} of config.json')
        if not isinstance(results['says'], str): raise TypeError('says of results.json')
        logs = {n: pd.read_csv(p/'log.csv') for n, p in folders.items()}
        angles = {} if config.get('kind') == 'masks' else results['by_angle']
        by_angle = {n: {float(a): float(v) for a, v in r.items()} for n, r in angles.items()}
        for log in logs.values(): log[['epoch', 'train_loss', 'valid_loss']].astype(float)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise ValueError(f'{path} holds a damaged run ({type(e).__name__}: {e}): put a good copy in its place, or train again') from e
    return config, {**results, 'by_angle': by_angle}, folders, logs


def run_report(path, dls=None)->Path:
    "Write report.html into the folder of a finished run; `dls` are its data, if they are there already."
    config, results, folders, logs = read_run(path)
    dls = dls or benchmark_dls(config['benchmark'], seed=config['seed'], img_size=config.get('img_size', 32))
    models = {n: load_model(p/'best.safetensors').to(dls.device) for n, p in folders.items()}
    notes = [results['says'], *results.get('seen', '').splitlines(), *results.get('advice', [])]
    return write_page(path, config, notes, _body(models, dls, results), logs)


def write_page(path, config, notes, body, logs)->Path: # of the file
    "Write report.html into the folder of a run: sentences, the body in HTML, the curves of its logs, and its settings"
    parts = [f'<h1>{html.escape(config["title"])}</h1>', *[f'<p>{html.escape(o)}</p>' for o in notes if o], *body,
             '<h2>Training</h2>', as_html(loss_curves(logs), 'loss and scores by epoch'),
             '<h2>Settings</h2><pre>' + html.escape(json.dumps(config, indent=1)) + '</pre>']
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(config["title"])}</title><style>{STYLE}</style>'
    write_whole(Path(path)/'report.html', head + '\n'.join(parts))
    return Path(path)/'report.html'


def _body(models, dls, results):
    "The table and the pictures"
    if not dls.images: return [error_table(results['rows'], len(dls.test.dataset)), *class_parts(models, dls, results)]
    rows, models = pd.DataFrame(results['rows']), {nice(n): m for n, m in models.items()}
    table = rows.drop(columns=['folder', 'images_seen'], errors='ignore').assign(model=rows.model.map(nice)).rename(columns=MEANS)
    return [table.to_html(index=False, float_format=lambda v: f'{v:.4f}'),
            '<h2>Maps</h2>', as_html(show_maps(models, dls.images), 'held-out images, truth, maps and errors'),
            '<h2>Rotating</h2>', as_html(show_turning_maps(models, dls.images[0]), 'maps while an image rotates')]


def in_words(rows, dls)->str:
    "The result in a sentence."
    def one(r):
        if dls.images: return f"AUC {r['auc']:.4f}, rotated by 45° {r['auc_45']:.4f}"
        return f"error {1 - r['at_0']:.1%} upright, {1 - r['turned']:.1%} rotated"
    on = f'{len(judged_photos(dls) or dls.test.dataset):,} test images.'
    return '. '.join(f"{called(r['model'])}: {one(r)}" for r in rows) + f', on {on}'


def append_row(file, *rows):
    "Add rows, or tables, to a CSV file, which it starts if need be."
    old = _old_rows(file) if Path(file).exists() else pd.DataFrame()
    new = [o if isinstance(o, pd.DataFrame) else pd.DataFrame([o]) for o in rows]
    write_whole(file, pd.concat([old, *new]).to_csv(index=False, lineterminator='\n'))


def _old_rows(file):
    try: return pd.read_csv(file, dtype=str)  # as text: old rows stay as they are
    except pd.errors.EmptyDataError: return pd.DataFrame()
    except ValueError as e: raise ValueError(f'{file} is no table ({e}): choose another file') from e


def eval_row(model, dls, scores, n)->dict:
    "What `harmformer_eval --csv` writes: the data, the model, what its weights say about themselves, its scores on the test set."
    tested = len(judged_photos(dls) or dls.test.dataset)
    known = {k: v for k, v in model.provenance.items() if not isinstance(v, (dict, list)) and k not in ('sha256', 'title', 'benchmark')}
    return dict(title=dls.title, model=model.config['name'], params=count_params(model), **known, samples=tested, samples_at=min(n, tested),
                **{f'test_{k}': v for k, v in scores.items()}, date=time.strftime('%Y-%m-%d'))
