"""Nuclei of microscope pictures: the Harmformer U-Net and a plain one, with and without rotations, at equal budgets.

    nice -n 15 python benchmarks/nuclei.py --seeds 0 1 2

Writes a row per network and seed to nbs/results/nuclei.csv and leaves out what is there already, so it may be stopped and started again.
It needs the pictures of the Data Science Bowl 2018 (CC0) below HARMFORMER_DATA, in real/nuclei/images and real/nuclei/instances.
Everything is decided beforehand: no epoch is chosen, and the test pictures are looked at once per row."""
import argparse, os, tempfile, time
from pathlib import Path
import pandas as pd
import torch
from harmformer.core import count_params, create_model
from harmformer.files import data_path
from harmformer.mask_runs import mask_dls, mask_learner
from harmformer.mask_scores import dice_interval, tallies, total
from harmformer.masks import look_at_masks
from harmformer.report import append_row
from harmformer.system import commit, reuse_memory
from harmformer.train import fit

# name: network, its arguments, whether patches are rotated, and how many times the patches of the first row it sees
NETWORKS = {
    'Harmformer U-Net': ('harmformer_unet', {}, False, 1),
    'plain U-Net': ('unet', {}, False, 1),
    'plain U-Net, rotations': ('unet', {}, True, 1),
    'Harmformer U-Net, reflections': ('harmformer_unet', dict(reflections=True), False, 1),
    'Harmformer U-Net, reflections, wider': ('harmformer_unet', dict(reflections=True, channels=(10, 20), head_dim=10), False, 1),
    'Harmformer U-Net, orders 0, 1, 2': ('harmformer_unet', dict(orders=(0, 1, 2), constant=True, parts=True), False, 1),
    'plain U-Net, rotations, equal time': ('unet', {}, True, None),
}
ANGLES = 0, 45, 90


def nuclei():
    "The folder as `look_at_masks` wants it: the numbered nuclei are the masks"
    source = data_path()/'real'/'nuclei'
    with tempfile.TemporaryDirectory() as folder:
        for name, part in dict(images='images', masks='instances').items(): os.symlink(source/part, Path(folder)/name)
        return look_at_masks(folder, progress=False)


def run(name, seen, patches, seed, lr, epochs=4, bs=16):
    "Train one network and score it: a row of the table"
    network, arguments, turn, _ = NETWORKS[name]
    torch.manual_seed(seed)
    dls = mask_dls(seen, patches//epochs, bs, seed=seed, turn=turn)
    model = create_model(network, in_channels=seen.channels, out_channels=seen.out, img_size=64, **arguments)
    learn = mask_learner(dls, model, lr)
    learn.metrics = []
    began = time.process_time()
    with learn.no_bar(), learn.no_logging(): fit(learn, epochs, lr, 'onecycle')
    spent, scores = time.process_time() - began, {}
    for a in ANGLES:
        found = tallies(model, seen.parts['test'], a)
        end = f'_{a}' if a else ''
        scores.update({k + end: v for k, v in total(found).items() if k != 'true' or not a})
        scores.update({f'{k}{end}': v for k, v in zip(('dice_low', 'dice_high'), dice_interval(found))})
    return dict(name=name, model=network, params=count_params(model), seed=seed, commit=commit(), lr=lr, pictures=len(seen.parts['train']),
                patches=patches, cpu_seconds=round(spent), **scores, tested=len(seen.parts['test']), date=time.strftime('%Y-%m-%d'))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--seeds', type=int, nargs='+', default=[0])
    p.add_argument('--only', nargs='+', default=list(NETWORKS), help='names of networks')
    p.add_argument('--patches', type=int, default=4000, help='patches that a network sees')
    p.add_argument('--lr', type=float, default=.01)
    p.add_argument('--csv', default=str(Path(__file__).parent.parent/'nbs'/'results'/'nuclei.csv'))
    a = p.parse_args()
    torch.set_num_threads(1)
    reuse_memory()
    seen = nuclei()
    for seed in a.seeds:
        for name in a.only:
            rows = pd.read_csv(a.csv) if Path(a.csv).exists() else pd.DataFrame(columns=['name', 'seed', 'patches', 'cpu_seconds'])
            if len(rows[(rows.name == name) & (rows.seed == seed)]): continue
            patches = a.patches
            if NETWORKS[name][-1] is None:              # as many as fit into the time that ours takes
                ours, theirs = [rows[rows.name == n].cpu_seconds.mean() for n in ('Harmformer U-Net', 'plain U-Net, rotations')]
                patches = int(a.patches*ours/theirs)//64*64
            row = run(name, seen, patches, seed, a.lr)
            append_row(a.csv, row)
            print({k: row[k] for k in ('name', 'seed', 'patches', 'cpu_seconds', 'dice', 'dice_45', 'f1', 'f1_45')}, flush=True)


if __name__ == '__main__': main()
