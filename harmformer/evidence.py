"""Our figures beside the paper's: tables and plots of the evidence notebooks and of the front page, all read from nbs/results/*.csv."""

__all__ = ['paper_figures', 'our_runs', 'beside_paper', 'error_bars', 'stability_beside_paper', 'angle_plot', 'front_table']

from pathlib import Path
import matplotlib.pyplot as plt
import pandas as pd
from harmformer.report import nice, read_rows
from harmformer.stability import plot_polar


def _name(model): return 'Harmformer' if model.startswith('harmformer') else nice(model)


def _of(rows, title): return rows[rows.title.str.startswith(title)]


def paper_figures(title, folder='results'):
    "The paper's figures on a benchmark: error of the best run, average and its spread, accuracy at 0° and 45° in per cent; area under the ROC curve."
    return _of(pd.read_csv(Path(folder)/'paper.csv', dtype=dict(params=str)), title).set_index('model', drop=False)


def our_runs(title, folder='results'):
    "Our runs on a benchmark as `harmformer_eval --csv` left them, with errors in per cent."
    rows = _of(read_rows(Path(folder)/'runs.csv'), title)
    errors = {f'error{k}': 100*(1 - rows[f'test_{v}']) for k, v in {'': 'turned', '_0': 'at_0', '_45': 'at_45'}.items()}
    whole = {k: rows[k].astype('Int64') for k in ('images_seen', 'seconds', 'epochs')}
    return rows.assign(name=rows.model.map(_name), minutes=(rows.seconds/60).round().astype('Int64'), valid_error=100*(1 - rows.turned), **errors, **whole)


def beside_paper(title, folder='results'):
    "Test errors of a benchmark in per cent, the paper's and ours, the best first."
    paper, ours = paper_figures(title, folder), our_runs(title, folder)
    cost = [f'{o.images_seen:,} images, {o.minutes} min, seed {o.seed}' for o in ours.itertuples()]
    table = pd.concat([paper.assign(where='paper, best run', cost=''), paper.dropna(subset='average').assign(where='paper, average', error=lambda o: o.average, cost=''),
                       ours.assign(model=ours.name, where='here', cost=cost, params=ours.params.map('{:,}'.format))])
    return table.sort_values('error', kind='stable')[['model', 'where', 'params', 'error', 'cost']].fillna('').set_index('model')


def error_bars(title, folder='results'):
    "The same as a picture."
    table = beside_paper(title, folder).reset_index()
    fig, ax = plt.subplots(figsize=(6.4, .6 + .26*len(table)), dpi=80, layout='constrained')
    plt.close(fig)
    colour = ['.75' if o['where'] != 'here' else 'C2' if o.model == 'Harmformer' else 'C1' for _, o in table.iterrows()]
    bars = ax.barh(table.index, table.error, color=colour)
    ax.bar_label(bars, table.error.map(' {:.2f}'.format), fontsize=8)
    names = table.model + ' (' + table['where'] + table.cost.str.extract('(.*images)', expand=False).radd(', ').fillna('') + ')'
    ax.set(yticks=table.index, yticklabels=names, xlabel='test error, %'); ax.invert_yaxis(); ax.spines[['top', 'right']].set_visible(False)
    return fig


def stability_beside_paper(title, folder='results'):
    "Accuracy in per cent upright, turned by 45°, and the difference: the paper's Table 7 and ours."
    paper, ours = paper_figures(title, folder).dropna(subset='at_0'), our_runs(title, folder)
    table = pd.concat([paper[['model', 'at_0', 'at_45']].assign(where='paper'), pd.DataFrame(dict(model=ours.name, at_0=100 - ours.error_0, at_45=100 - ours.error_45, where='here'))])
    return table.assign(Δ=table.at_0 - table.at_45).rename(columns=dict(at_0='0°', at_45='45°')).set_index(['model', 'where'])


def angle_plot(title, folder='results', only=None, **kw):
    "Accuracy against the angle of the test images, as `benchmarks/angles.py` measured it, of all models or `only` one."
    rows = _of(pd.read_csv(Path(folder)/'angles.csv'), title)
    rows = rows[rows.model == only] if only else rows
    return plot_polar({_name(n): dict(zip(o.angle, o.accuracy)) for n, o in rows.groupby('model', sort=False)}, n=rows.samples.iloc[0], **kw)


def front_table(folder='results'):
    "The front page's table, in Markdown."
    lines = ['| benchmark | Harmformer, here | in the paper | plain network, here | our training |', '|---|---|---|---|---|']
    def line(title, ours, paper, plain, o): lines.append(f'| {title} | **{ours}** | {paper} | {plain} | {int(o.images_seen):,} images, {o.seconds/60:.0f} min |')
    rows = read_rows(Path(folder)/'runs.csv')
    for title, group in rows.groupby('title', sort=False):
        runs = our_runs(title, folder).dropna(subset='seconds').sort_values('images_seen', ascending=False)  # a run's last stage
        ours, plain, paper = runs[runs.name == 'Harmformer'].iloc[0], runs[runs.name != 'Harmformer'], paper_figures(title.split(' (')[0], folder)
        paper = paper[paper.model == 'Harmformer'].average
        line(title, f'{ours.error:.2f} %', f'{paper.iloc[0]:.2f} %' if len(paper) else '', ', '.join(f'{o.error:.1f} % ({o["name"]})' for _, o in plain.iterrows()), ours)
    drive = read_rows(Path(folder)/'drive.csv').set_index('model')
    ours, plain, paper = drive.loc['harmformer_unet'], drive.loc['unet'], paper_figures('DRIVE', folder).auc.iloc[0]
    line(f'{ours.title}: area under the ROC curve', f'{ours.test_auc:.4f}', f'{paper:.4f}', f'{plain.test_auc:.4f} (plain U-Net)', ours)
    return '\n'.join(lines)
