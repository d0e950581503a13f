"""Why was the plain U-Net ahead on DRIVE? What each change to the Harmformer U-Net is worth, on training patients only.

    python benchmarks/drive.py                        # about seven minutes of one core each; a row that is there is not computed again
    python benchmarks/drive.py --only 'plain U-Net'

13 of the 17 training patients are trained on and the other 4 judge, so nothing here has seen the three patients that 24_drive reports.
Every network sees 8,000 patches in batches of 16, with the optimizer SOAP and one cycle of the learning rate. Rows: nbs/results/drive_causes.csv.
"""
import time
from pathlib import Path
import pandas as pd
import torch
import torch.nn.functional as F
from fastcore.script import call_parse
from fastprogress.fastprogress import progress_bar
from pytorch_optimizer import SOAP
from harmformer.core import count_params, create_model
from harmformer.data import TensorDL
from harmformer.files import find_file, read_drive
from harmformer.patches import PatchSet
from harmformer.report import append_row
from harmformer.segment import score_images
from harmformer.system import commit, reuse_memory

FILE = Path(__file__).resolve().parent.parent/'nbs'/'results'/'drive_causes.csv'
PATCHES, BATCH = 8000, 16
NETWORKS = {
    'as in the paper': ('harmformer_unet', {}),
    'a constant': ('harmformer_unet', dict(constant=True)),
    'orders 0, 1, 2': ('harmformer_unet', dict(orders=(0, 1, 2), constant=True)),
    'order 0 in the last layer': ('harmformer_unet', dict(orders=(0, 1, 2), constant=True, parts=True)),
    'plain U-Net': ('unet', {}),
}


def measure(name, seed, lr, items):
    "Train one network on all patients but the last four, and score it on these, upright and rotated by 45°"
    model, arguments = NETWORKS[name]
    torch.manual_seed(seed)
    net, steps = create_model(model, **arguments), PATCHES//BATCH
    patches = TensorDL(PatchSet(items[:-4], PATCHES, augment=True), bs=BATCH, shuffle=True, seed=seed, device='cpu')
    step = torch.compile(net.forward, fullgraph=True, dynamic=False) if model.startswith('harm') else net
    opt = SOAP(net.parameters(), lr, betas=(.9, .95), weight_decay=.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(opt, lr, steps, pct_start=.25, final_div_factor=1e3)
    began, losses = time.process_time(), []
    for x, y in progress_bar(patches, total=steps, leave=False):
        loss = F.binary_cross_entropy_with_logits(step(x), y)
        loss.backward(); opt.step(); rate.step(); opt.zero_grad()
        losses.append(loss.item())
    spent, scores = time.process_time() - began, {}
    for a in (0, 45):
        found = score_images(net.eval(), items[-4:], a, overlap=.25)
        scores.update({f'{k}_{a}' if a else k: round(found[k], 5) for k in ('auc', 'dice')})
    return dict(name=name, params=count_params(net), seed=seed, rate=lr, patches=PATCHES, seconds=round(spent),
                train_loss=round(sum(losses[-50:])/50, 5), **scores, patients=4, commit=commit(), date=time.strftime('%Y-%m-%d'))


@call_parse
def main(
    only:str='',     # names of networks with semicolons between them; by default all
    seeds:str='0',   # with commas between them
    lr:float=.008,   # learning rate
):
    "Measure what each change is worth"
    torch.set_num_threads(1)
    reuse_memory()
    items = read_drive(find_file('DRIVE')/'training')[:-3]
    for seed in map(int, seeds.split(',')):
        for name in only.split(';') if only else NETWORKS:
            rows = pd.read_csv(FILE) if FILE.exists() else pd.DataFrame(columns=['name', 'seed'])
            if ((rows.name == name) & (rows.seed == seed)).any(): continue
            append_row(FILE, row := measure(name, seed, lr, items))
            print(*row.values(), flush=True)
