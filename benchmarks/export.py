"""The weights of the package as ONNX: parity on 64 images, size of the file, milliseconds of both programs → nbs/results/export.csv

Run on a quiet machine: python benchmarks/export.py [--threads 2]
The table is from one run: with the names of some weights their rows are only printed."""
import tempfile, time, timeit
from pathlib import Path

import pandas as pd, torch
from fastcore.script import call_parse
from harmformer.cli import argument
from harmformer.core import load_model, weight_names
from harmformer.export import OnnxModel, export_onnx

OUT = Path(__file__).parent.parent/'nbs/results/export.csv'


def milliseconds(programs, x, times):
    "The least time of each program, called in turns, so that a busy moment does not hit one of them alone"
    rounds = [[1e3*timeit.timeit(lambda: f(x), number=1) for f in programs] for _ in range(times + 2)][2:]  # two to warm up
    return [min(o) for o in zip(*rounds)]


@torch.no_grad()
def measure(name, folder, threads):
    model = load_model(name)
    x = torch.rand(64, *model.default_cfg['input_size'], generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    file = export_onnx(model, folder/f'{name}.onnx')
    seconds, start = time.perf_counter() - start, time.perf_counter()
    graph = OnnxModel(file, threads)
    load = time.perf_counter() - start
    want, got = [torch.cat([f(o) for o in x.split(8)]) for f in (model, graph)]
    same = (want.argmax(1) == got.argmax(1)) if want.ndim == 2 else (want > 0) == (got > 0)
    row = dict(weights=name, kind='classifier' if want.ndim == 2 else 'segmenter', mb=round(file.stat().st_size/1e6, 2),
               difference=float(f'{float((want-got).norm()/want.norm()):.2g}'),
               argmax_equal=bool(same.all() if want.ndim == 2 else same.float().mean() > .9999),
               seconds_to_export=round(seconds, 1), seconds_to_load=round(load, 2))
    for n, times in ((1, 21), (32, 5)):
        row |= {f'{who}_{n}': round(ms, 1) for who, ms in zip(('file', 'model'), milliseconds((graph, model), x[:n], times))}
    return row


@call_parse
def main(
    weights:argument('names of weights that come with the package, by default all', nargs='*', opt=False),
    threads:int=2,
):
    "Compare the weights of the package with their ONNX files"
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for name in weights or weight_names():
            rows.append(measure(name, Path(folder), threads))
            print(rows[-1], flush=True)
    if not weights: pd.DataFrame(rows).to_csv(OUT, index=False, lineterminator='\n')
