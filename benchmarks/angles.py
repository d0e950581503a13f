"""Accuracy of trained weights against the angle of the test images, and how many answers survive every rotation.
Writes nbs/results/angles.csv and consistency.csv, which the evidence notebooks show, and the front page's picture.

    python benchmarks/angles.py mnist-rot-test mnist-rot-test-vit    names of weights that come with the package, or files
"""
import time
from pathlib import Path
import pandas as pd
from fastcore.script import call_parse
from fastprogress.fastprogress import progress_bar
from harmformer.core import load_model
from harmformer.data import benchmark_dls
from harmformer.evaluate import angle_plot, right_by_angle, rotation_consistency
from harmformer.cli import argument
from harmformer.system import reuse_memory

NBS = Path(__file__).resolve().parent.parent/'nbs'


def replace(name, rows):
    "Put `rows`, all of one model on one benchmark, in the place of those that a file in nbs/results has of it."
    file, new = NBS/'results'/f'{name}.csv', pd.DataFrame(rows).assign(date=time.strftime('%Y-%m-%d'))
    old = pd.read_csv(file, dtype=str) if file.exists() else new[:0]             # as text: old rows stay as they are
    pd.concat([old[(old.title != new.title[0]) | (old.model != new.model[0])], new]).to_csv(file, index=False)


@call_parse
def main(
    weights:argument('names of weights that come with the package, or files', nargs='+', opt=False),
    samples:int=500,         # test images, evenly spread
    step:int=15,             # degrees
    draw:str='mnist-rot-test', # benchmark of the front page's picture
):
    "Measure accuracy against angle"
    reuse_memory()
    for w in weights:
        model = load_model(w)
        dls = benchmark_dls(model.provenance['benchmark'], img_size=model.config['img_size'])
        right = {}
        for a in progress_bar(range(0, 360, step)): right |= right_by_angle(model, (dls.upright or dls.test).dataset, [a], n=samples)
        facts = dict(title=dls.title, model=model.config['name'], seed=model.provenance['seed'], samples=len(right[0]))
        accuracy = [dict(**facts, angle=a, accuracy=r.double().mean().item()) for a, r in right.items()]
        replace('angles', accuracy)
        replace('consistency', [dict(**facts, angles=len(right), upright=accuracy[0]['accuracy'], worst=min(o['accuracy'] for o in accuracy),
                                     consistency=rotation_consistency(right), commit=model.provenance['commit'])])
    angle_plot(draw, NBS/'results').savefig(NBS/'images'/'angles.png', dpi=100)
