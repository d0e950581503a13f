"""Accuracy of trained weights against the angle of the test images. Writes nbs/results/angles.csv, which the evidence notebooks draw, and the front page's picture.

    python benchmarks/angles.py mnist-rot-test mnist-rot-test-vit    names of weights that come with the package, or files
"""
import time
from pathlib import Path
import pandas as pd
from fastcore.script import call_parse
from fastprogress.fastprogress import progress_bar
from harmformer.core import load_model
from harmformer.data import benchmark_dls
from harmformer.evidence import angle_plot
from harmformer.segmentation import argument
from harmformer.train import accuracy_by_angle, reuse_memory

NBS = Path(__file__).resolve().parent.parent/'nbs'


@call_parse
def main(
    weights:argument('names of weights that come with the package, or files', nargs='+', opt=False),
    samples:int=500,         # test images, the first ones
    step:int=15,             # degrees
    draw:str='mnist-rot-test', # benchmark of the front page's picture
):
    "Measure accuracy against angle"
    reuse_memory()
    file = NBS/'results'/'angles.csv'
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=['title', 'model'])
    for w in weights:
        model = load_model(w)
        dls = benchmark_dls(model.provenance['benchmark'], img_size=model.config['img_size'])
        angles = range(0, 360, step)
        found = {a: accuracy_by_angle(model, (dls.upright or dls.test).dataset, [a], n=samples)[a] for a in progress_bar(angles)}
        new = pd.DataFrame(dict(title=dls.title, model=model.config['name'], seed=model.provenance['seed'], samples=samples, angle=list(found), accuracy=list(found.values()), date=time.strftime('%Y-%m-%d')))
        rows = pd.concat([rows[(rows.title != dls.title) | (rows.model != model.config['name'])], new])
        rows.to_csv(file, index=False)
    angle_plot(draw, file.parent).savefig(NBS/'images'/'angles.png', dpi=100)
