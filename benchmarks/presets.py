"""What a training step of the presets for your own pictures costs. Writes nbs/results/presets.csv, which 11_core reads.

    python benchmarks/presets.py      about 3 minutes; processor time in one thread, so other programs hardly matter

The presets take turns, and a time is the smallest of several: read ratios, not seconds.
"""
import time, timeit
from pathlib import Path
import pandas as pd, torch
import torch.nn.functional as F
from fastcore.script import call_parse
from fastprogress.fastprogress import progress_bar
from harmformer.core import PRESETS, count_params, create_model
from harmformer.system import commit, reuse_memory

OUT = Path(__file__).resolve().parent.parent/'nbs'/'results'/'presets.csv'


@call_parse
def main(
    batch:int=8,   # pictures in a step
    rounds:int=3,  # steps of each preset
):
    "Time every preset of the form harmformer_WIDTH_PIXELS"
    torch.set_num_threads(1)
    reuse_memory()
    names = [n for n in PRESETS if n.rpartition('_')[2].isdigit()]
    models = {n: create_model(n) for n in names}
    data = {n: (torch.randn(batch, 3, m.config['img_size'], m.config['img_size']), torch.arange(batch) % 10) for n, m in models.items()}
    times = {n: [] for n in names}
    for _ in progress_bar(range(rounds)):
        for n, (x, y) in data.items():
            times[n].append(timeit.timeit(lambda: F.cross_entropy(models[n](x), y).backward(), timer=time.process_time, number=1))
    rows = [dict(model=n, width=n.split('_')[1], pixels=m.config['img_size'], params=count_params(m), ms_per_image=round(1e3*min(times[n])/batch, 2))
            for n, m in models.items()]
    table = pd.DataFrame(rows)
    at_32 = table[table.pixels == 32].set_index('width').ms_per_image
    table['times_32'] = (table.ms_per_image/table.width.map(at_32)).round(2)
    table.assign(batch=batch, commit=commit(), date=time.strftime('%Y-%m-%d')).to_csv(OUT, index=False)
    print(table.to_string(index=False))
