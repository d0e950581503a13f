"The figures that we show: each belongs to weights that ship or to a run that can be repeated, and the front page shows no older ones."
import json, sys
from pathlib import Path

import pandas as pd, pytest
from harmformer.core import load_model, model_card
from harmformer.data import benchmark_dls
from harmformer.evaluate import final_scores, front_table, our_runs, read_rows

ROOT = Path(__file__).parent.parent
RESULTS = ROOT/'nbs'/'results'
WEIGHTS = sorted(p.stem for p in (ROOT/'harmformer'/'weights').glob('*.safetensors'))


def rows_of(weights):
    "The rows of the results that name the very run which these weights say that they come from."
    rows, said = pd.concat([read_rows(RESULTS/'runs.csv'), read_rows(RESULTS/'drive.csv')]), load_model(weights).provenance
    return rows[(rows.title == said['title']) & (rows.commit == said['commit']) & (rows.seed == said['seed']) & ((rows.valid_loss - said['valid_loss']).abs() < 1e-9)]


@pytest.mark.parametrize('weights', WEIGHTS)
def test_weights_that_ship_have_their_row(weights): assert len(rows_of(weights)) == 1


@pytest.mark.parametrize('weights', WEIGHTS)
def test_cards_tell_every_stage(weights):
    said = load_model(weights).provenance
    assert said['stages'][-1]['epochs'] == said['epochs'] and '| epochs |' not in model_card(weights)
    if 'images_seen' in said: assert sum(s['images_seen'] for s in said['stages']) == said['images_seen']
    for s in said['stages']: assert f"{s['epochs']} epoch" in model_card(weights)


def test_eval_gives_the_row_again():
    row, found = rows_of('digits').iloc[0], final_scores(load_model('digits'), benchmark_dls('digits', val_bs=100))
    assert {k: row[f'test_{k}'] for k in found} == found


@pytest.mark.parametrize('weights', ['mnist-rot-test', 'mnist-rot-test-vit', 'digits'])
def test_consistency_is_that_of_weights_that_ship(weights):
    rows, model = read_rows(RESULTS/'consistency.csv'), load_model(weights)
    row = rows[(rows.title == model.provenance['title']) & (rows.model == model.config['name'])]
    assert row.commit.tolist() == [model.provenance['commit']]
    angles = pd.read_csv(RESULTS/'angles.csv').merge(row[['title', 'model']])
    assert len(angles) == row.angles.item() and angles.accuracy.min() == pytest.approx(row.worst.item())
    assert 1 - row.consistency.item() >= (row.upright.item() - row.worst.item())/row.upright.item() - 1e-9  # lost at the worst angle alone


def front_page(nb): return [''.join(o['data']['text/markdown']) for c in nb['cells'] if 'front_table()' in ''.join(c['source']) for o in c.get('outputs', [])]


def test_front_page_shows_the_rows():
    nb = json.loads((ROOT/'nbs'/'index.ipynb').read_text(encoding='utf-8'))
    assert front_page(nb) == [front_table(RESULTS)]


def test_a_row_more_changes_the_front_page(tmp_path):
    for f in RESULTS.glob('*.csv'): (tmp_path/f.name).write_text(f.read_text())
    better = read_rows(RESULTS/'runs.csv').query('model == "harmformer_mnist"').iloc[:1].assign(images_seen=10**7, test_turned=.9999)
    pd.concat([read_rows(RESULTS/'runs.csv'), better]).to_csv(tmp_path/'runs.csv', index=False)
    assert '0.01 %' in front_table(tmp_path) != front_table(RESULTS)
    assert our_runs(better.title.iloc[0], tmp_path).error.min() == pytest.approx(.01)


def test_the_picture_of_small_data_is_that_of_its_notebook():
    sys.path.insert(0, str(ROOT/'tools'))
    from make_images import IMAGES, small_data
    assert (IMAGES/'small-data.png').read_bytes() == small_data() and len(small_data()) < 100_000, 'run tools/make_images.py'
