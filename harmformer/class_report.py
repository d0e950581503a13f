"""What the report of a classifier shows: errors with intervals, by class and by angle, calibration, confusions and mistakes."""

__all__ = ['figure', 'as_html', 'called', 'error_table', 'polar', 'class_parts']

import base64, html, io
from itertools import cycle
from typing import Any
import matplotlib.pyplot as plt
import pandas as pd
import torch
from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix
from harmformer.calibrate import (calibration_error, class_errors, confused_pairs, logits_on, reliability, surest_mistakes,
                                  validated_temperature)
from harmformer.evaluate import COLOURS, nice, plot_polar, wilson

PALETTE = *COLOURS, 'C4', 'C5', 'C6', 'C8'                  # ours is green, a plain network orange
MANY = 25                                                   # classes that a table or a matrix still shows


def called(name:str)->str:
    "'plain CNN with rotations, as long' for 'cnn+rot, as long'"
    base, turned, longer = name.removesuffix(', as long').removesuffix('+rot'), '+rot' in name, name.endswith(', as long')
    return nice(base) + ' with rotations'*turned + ', as long'*longer


def figure(rows=1, cols=1, size=(6, 3), **kw)->Any: return plt.subplots(rows, cols, figsize=size, dpi=90, layout='constrained', **kw)


def as_html(fig, alt:str)->str:
    "A figure as an image inside the page, described by `alt`"
    buf = io.BytesIO()
    fig.savefig(buf, format='png'); plt.close(fig)
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(buf.getvalue()).decode()}">'


def _errors(accuracy, n): return [100*(1 - accuracy), *[100*(1 - o) for o in reversed(wilson(accuracy, n))]]
def _percent(accuracy, n): return '{:.1f} % ({:.1f}–{:.1f})'.format(*_errors(accuracy, n))


def error_table(rows, n:int)->str: # HTML
    "Parameters, cost and errors on `n` test images of every model"
    def one(r):
        images = f"{r['images_seen']:,}" if 'images_seen' in r else ''
        return {'model': called(r['model']), 'parameters': f"{r['params']:,}", 'images seen': images,
                'seconds': f"{r['seconds']:,.0f}", 'error, upright': _percent(r['at_0'], n), 'rotated': _percent(r['turned'], n),
                'at 45°': f"{100*(1 - r['at_45']):.1f} %"}
    notes = 'In brackets: the 95 % interval (Wilson). Rotated: each image by its own angle.'
    if any(r['model'].endswith(', as long') for r in rows):
        notes += ' As long: trained once more, for as many epochs as fit into the seconds of the first model.'
    return pd.DataFrame(map(one, rows)).to_html(index=False, border=0) + f'<p>{notes}</p>'


def error_bars(rows, n:int):
    "Errors upright and rotated, with intervals"
    fig, ax = figure(size=(7.5, .7 + .5*len(rows)))
    for i, (r, c) in enumerate(zip(rows, cycle(PALETTE))):
        for k, (key, shade) in enumerate((('at_0', .45), ('turned', 1.))):
            e, low, high = _errors(r[key], n)
            ax.barh(i + .36*k, e, .34, color=c, alpha=shade, xerr=[[max(0, e - low)], [max(0, high - e)]], error_kw=dict(lw=1, capsize=2))
    ax.set(yticks=[i + .18 for i in range(len(rows))], yticklabels=[called(r['model']) for r in rows],
           xlabel='test error in % (pale: upright, full: rotated; 95 % intervals)', xlim=(0, None))
    ax.invert_yaxis(); ax.spines[['top', 'right']].set_visible(False)
    return fig


def polar(by_angle):
    "Accuracy against angle, with the names of the models beside it"
    fig = plot_polar({called(k): v for k, v in by_angle.items()})
    for line, c in zip(fig.axes[0].lines, cycle(PALETTE)): line.set_color(c)        # as in the other figures
    if old := fig.axes[0].get_legend(): old.remove()
    fig.set_size_inches(8, 4.2)
    fig.legend(loc='outside right center', fontsize=8)
    return fig


def by_class(judged, vocab)->str: # HTML
    "The error of every class on rotated test images, the hardest for the first model first"
    found = {name: class_errors(z, y, len(vocab)) for name, (z, y) in judged.items()}
    first = next(iter(found.values()))
    order = sorted(range(len(vocab)), key=lambda c: -first[c][0]/max(1, first[c][1]))
    def share(o): return f'{100*o[0]/o[1]:.1f} %' if o[1] else ''
    rows = [{'class': vocab[c], 'images': first[c][1], **{called(n): share(f[c]) for n, f in found.items()}} for c in order[:MANY]]
    return pd.DataFrame(rows).to_html(index=False, border=0)


def calibration(judged, temperatures):
    "Reliability diagrams on rotated test images, before and after the temperature"
    cols = min(3, len(judged))
    fig, axs = figure(-(-len(judged)//cols), cols, (2.9*cols, 3.1*-(-len(judged)//cols)), squeeze=False)
    for ax in axs.flat[len(judged):]: ax.axis('off')
    for ax, (name, (z, y)), c in zip(axs.flat, judged.items(), cycle(PALETTE)):
        ax.plot([0, 1], [0, 1], color='.6', lw=1)
        for t, style in ((1., '.:'), (temperatures[name], 'o-')):
            p, said = (z/t).softmax(1).max(1)
            a, b, _ = zip(*reliability(p, said == y))
            ax.plot(a, b, style, color=c, ms=4)
        errors = [calibration_error(z, y, t) for t in (1., temperatures[name])]
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel='probability', ylabel='share of right answers', aspect='equal')
        ax.set_title(f'{called(name)}\nT = {temperatures[name]:.2f}: {errors[0]:.3f} → {errors[1]:.3f}', fontsize=8)
    return fig


@torch.no_grad()
def turning(models, dataset, angles=(0, 30, 60, 90, 135, 180, 225, 270, 315), rows=3):
    "A few images that rotate, and what each model says."
    fig, axs = figure(rows, len(angles), (1.05*len(angles), (1.2 + .2*len(models))*rows))
    for r, i in enumerate(torch.linspace(0, len(dataset) - 1, rows).long().tolist()):
        for ax, a in zip(axs[r], angles):
            x, y = dataset.subset([i]).turned([a]).batch([0])
            dataset.show(ax, x[0], y[0])
            ax.set_title(f'{a}°' if r == 0 else '', fontsize=8)
            for k, m in enumerate(models.values()):
                p = m(x.to(next(m.parameters()).device)).argmax(1).item()
                ax.text(.5, -.12 - .2*k, str(dataset.vocab[p])[:14], transform=ax.transAxes, ha='center', va='center', fontsize=8,
                        color='g' if p == y.item() else 'r')
            ax.axis('off')
    fig.suptitle('below each picture: ' + ', then '.join(map(called, models)) + ' (red: wrong)', fontsize=9)
    return fig


def confusion(z, y, vocab):
    "What is taken for what on the rotated test images."
    side = min(9, 2.5 + .3*len(vocab))
    fig, ax = figure(size=(side + .6, side))
    found = confusion_matrix(y, z.argmax(1), labels=range(len(vocab)))
    ConfusionMatrixDisplay(found, display_labels=vocab).plot(ax=ax, cmap='Blues', colorbar=False, include_values=len(vocab) <= 15)
    plt.setp(ax.get_xticklabels(), rotation=45, ha='right')
    return fig


def _gallery(dataset, rows, titles):
    "Pictures in rows of lists of indices, each with its title"
    wide = max(map(len, rows))
    fig, axs = figure(len(rows), wide, (max(1.35*wide, 4), 1.6*len(rows)), squeeze=False)
    for ax in axs.flat: ax.axis('off')
    for row, indices, names in zip(axs, rows, titles):
        for ax, i, name in zip(row, indices, names):
            x, y = dataset.batch([i])
            dataset.show(ax, x[0], y[0])
            ax.set_title(name, fontsize=8, color='k')
    return fig


def pairs(z, y, dataset):
    "Pictures of the pairs of classes that are confused most often"
    found = confused_pairs(z, y)
    if not found: return None
    names = [[f'{dataset.vocab[a]}\n→ {dataset.vocab[b]} ({len(i)}×)', *['']*5] for a, b, i in found]
    return _gallery(dataset, [i[:6] for *_, i in found], names)


def mistakes(z, y, dataset):
    "The pictures that the model was surest of and wrong about"
    found = surest_mistakes(z, y)
    if not found: return None
    rows = [found[i:i+6] for i in range(0, len(found), 6)]
    return _gallery(dataset, [[i for i, *_ in r] for r in rows],
                    [[f'{dataset.vocab[a]}\n→ {dataset.vocab[b]} {p:.0%}' for _, a, b, p in r] for r in rows])


def class_parts(models, dls, results)->list: # of HTML
    "All that a classifier's report shows between its first table and the training"
    rows, n, vocab = results['rows'], len(dls.test.dataset), [str(o) for o in dls.vocab]
    judged = {name: logits_on(m, dls.test) for name, m in models.items()}
    known = {r['model']: r.get('temperature') for r in rows}            # older runs have none
    temperatures = {name: known.get(name) or validated_temperature(m, dls) for name, m in models.items()}
    first, flat = next(iter(judged.values())), (dls.upright or dls.test).dataset
    cool = first[0]/next(iter(temperatures.values()))
    shown = [('Errors', error_bars(rows, n), 'test errors of all models with intervals', ''),
             ('Accuracy against angle', polar(results['by_angle']),
              'accuracy against the angle of the test images', ''),
             ('Rotating', turning(dict(list(models.items())[:3]), flat), 'predictions while an image rotates', ''),
             ('Calibration', calibration(judged, temperatures), 'reliability diagrams before and after the temperature',
              'Rotated test images. On the grey line a probability is the share of right answers. Dotted: as the network says; '
              'solid: divided by the temperature T that was fitted on the validation images. The numbers are the expected calibration '
              'error before and after.'),
             ('Most confused', pairs(cool, first[1], dls.test.dataset), 'pictures of the most confused pairs of classes',
              'True class → answer of the first model, and how often; the surest first.'),
             ('Surest mistakes', mistakes(cool, first[1], dls.test.dataset), 'the surest mistakes',
              'True class → answer of the first model, with its probability after the temperature.')]
    if len(vocab) <= MANY:
        shown.insert(4, ('Confusion', confusion(first[0], first[1], vocab), 'confusion matrix on rotated test images', 'The first model.'))
    parts = [_section(*o) for o in shown]
    table = '<h2>By class</h2><p>Error on rotated test images' + (f', the {MANY} hardest classes' if len(vocab) > MANY else '') + '.</p>'
    return [*parts[:2], table + by_class(judged, vocab), *parts[2:]]


def _section(title, fig, alt, text):
    body = as_html(fig, alt) if fig is not None else '<p>None.</p>'
    return f'<h2>{html.escape(title)}</h2>' + (f'<p>{html.escape(text)}</p>' if text else '') + body
