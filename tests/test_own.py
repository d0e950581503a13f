"""`harmformer_train` on one's own pictures, from the folder to the report: rivals, seconds, temperature, early end, resumption, tables."""
import json
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
from PIL import Image
from harmformer.cli import harmformer_eval, harmformer_predict, harmformer_report, harmformer_train
from harmformer.core import load_model
from harmformer.predict import classify_pictures
from harmformer.runs import run_config
from harmformer.system import read_tensors

TINY = 'channels=(2,2),depth=1,head_dim=4,kernel_size=7,rings=2'


def draw(seed, bars, size=36):
    "Grey noise with one bright bar, or two"
    rng = np.random.RandomState(seed)
    x = rng.randint(0, 60, (size, size, 3)).astype(np.uint8)
    for at in (10, 22)[:bars]: x[6:30, at:at+4] = 200 + rng.randint(0, 50)
    return Image.fromarray(x)


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    "A folder with pictures of one bar and of two, three times as many of the first"
    d = tmp_path_factory.mktemp('own')
    for name, n, bars in (('one', 24, 1), ('two', 8, 2)):
        (d/'bars'/name).mkdir(parents=True)
        for i in range(n): draw(100*bars + i, bars).save(d/'bars'/name/f'{i:02}.png')
    return d


@pytest.fixture(scope='module')
def finished(work):
    with pytest.MonkeyPatch.context() as m:
        m.chdir(work)
        harmformer_train('bars', epochs=3, bs=4, rival='cnn+rot,vit', set=TINY)
    return work/'runs'/'bars-harmformer_small_32-seed0'


def test_the_run(finished):
    config, results = [json.loads((finished/f).read_text()) for f in ('config.json', 'results.json')]
    assert config['class_weights'] == [.6765, 1.9167] and config['img_size'] == 32 and config['rival'] == 'cnn+rot,vit'
    rows = {r['model']: r for r in results['rows']}
    assert list(rows)[:2] == ['harmformer_small_32', 'cnn+rot'] and {'vit'} <= {*rows} <= {*list(rows)[:2], 'vit', 'cnn+rot, as long', 'vit, as long'}
    assert {rows[n]['images_seen'] for n in ('harmformer_small_32', 'cnn+rot', 'vit')} == {60}      # the same images seen
    assert 'Imbalance: one has 24 pictures, two 8' in results['seen']
    rotated, plain = [load_model(finished/n) for n in ('cnn+rot', 'vit')]
    assert rotated.provenance['rotations'] and 'rotations' not in plain.provenance
    assert all(m.config['mask'] == 'tukey' for m in (rotated, plain))           # the same disc for all
    for r in rows.values():
        if r['model'].endswith('as long'): assert r['folder'].endswith('-as-long') and r['images_seen'] != 60


def test_the_report(finished):
    text = (finished/'report.html').read_text()
    for title in ('Errors', 'Accuracy against angle', 'By class', 'Rotating', 'Calibration', 'Confusion', 'Most confused', 'Surest mistakes', 'Training', 'Settings'):
        assert f'<h2>{title}</h2>' in text
    assert 'plain CNN with rotations' in text and '95 % interval' in text and 'Imbalance' in text
    kept = (finished/'results.json').read_text()
    old = json.loads(kept)                                                      # as runs of earlier versions have it
    for r in old['rows']:
        for k in ('temperature', 'images_seen'): r.pop(k)
    (finished/'results.json').write_text(json.dumps({k: old[k] for k in ('rows', 'by_angle', 'says')}))
    harmformer_report(str(finished))
    assert '<h2>Calibration</h2>' in (finished/'report.html').read_text()
    (finished/'results.json').write_text(kept)


def test_the_temperature_is_in_the_weights_and_used(finished, work):
    file = work/'bars'/'one'/'00.png'
    model = load_model(finished)
    t = model.provenance['temperature']
    rows = json.loads((finished/'results.json').read_text())['rows']
    assert t == rows[0]['temperature'] and read_tensors(finished/'best.safetensors')[0]['temperature'] == t
    p = classify_pictures(model, [file]).probability[0]
    model.provenance['temperature'] = 1.
    z = np.log(np.array([q := classify_pictures(model, [file]).probability[0], 1 - q]))/t
    assert p == pytest.approx(float(np.exp(z).max()/np.exp(z).sum()), abs=1e-5)


def test_finished_is_not_trained_again_and_scores_agree(finished, work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    (state, (header, best)) = (finished/'checkpoint.safetensors').read_bytes(), read_tensors(finished/'best.safetensors')
    harmformer_train('bars', epochs=3, bs=4, rival='cnn+rot,vit', set=TINY, resume=True)
    assert (finished/'checkpoint.safetensors').read_bytes() == state           # not written again
    again, weights = read_tensors(finished/'best.safetensors')                  # written again, with the temperature
    assert again == header and all(torch.equal(weights[k], v) for k, v in best.items())
    capsys.readouterr()
    harmformer_eval(str(finished))
    turned = json.loads((finished/'results.json').read_text())['rows'][0]['turned']
    assert f'{1 - turned:.4%}' in capsys.readouterr().out
    harmformer_predict(str(finished), [str(work/'bars'/'one')])
    assert len(capsys.readouterr().out.splitlines()) == 24
    with pytest.raises(SystemExit, match='other settings'): harmformer_train('bars', epochs=4, bs=4, rival='cnn+rot,vit', set=TINY, resume=True)


def test_a_table_with_groups_minutes_and_an_early_end(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    files = sorted(Path('bars').rglob('*.png'))
    pd.DataFrame(dict(path=files, label=[p.parent.name for p in files], group=[int(p.stem) % 8 for p in files])).to_csv('bars.csv', index=False)
    args = dict(minutes=.4, bs=4, rival='none', patience=1, lr=1e-8, set=TINY + ',norm=hnet', pixels=32, out='timed')
    harmformer_train('bars.csv', **args)
    said = capsys.readouterr().out
    assert 'none of the 8 groups is in two parts' in said and 'In all about' in said
    path = work/'timed'/'bars-harmformer_small_32-seed0'
    config, state = json.loads((path/'config.json').read_text()), read_tensors(path/'checkpoint.safetensors')[0]
    assert config['minutes'] == .4 and config['patience'] == 1
    losses = pd.read_csv(path/'log.csv').valid_loss
    if state['epoch'] < config['recipe']['epochs']: assert losses.iloc[-1] >= losses.min() and losses.idxmin() == len(losses) - 2
    else: assert losses[:-1].is_monotonic_decreasing
    harmformer_train('bars.csv', **args, resume=True)                           # the machine is faster or slower now: the run keeps its epochs
    assert json.loads((path/'config.json').read_text())['recipe'] == config['recipe'] and len(pd.read_csv(path/'log.csv')) == len(losses)


def test_reflections_of_ones_own_pictures(work):
    config = run_config(str(work/'bars'), reflections=True)
    assert config['recipe']['reflections'] is True and config['recipe']['model'] == 'harmformer_small_32' and config['rival'] == 'cnn+rot'
