"""The queue of training runs (benchmarks/campaign.py): killed anywhere and taken on elsewhere it writes the same rows."""
import importlib.util, os, shutil, signal, subprocess, sys, time
from pathlib import Path
import numpy as np
import pandas as pd
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location('campaign', ROOT/'benchmarks'/'campaign.py')
campaign = importlib.util.module_from_spec(spec)
spec.loader.exec_module(campaign)
TINY = dict(model='harmformer_digits', epochs=3, bs=4, depth=1, channels=[2, 2], head_dim=2)


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    "Two classes of 20 pictures, dark and bright noise."
    folder, rng = tmp_path_factory.mktemp('pictures'), np.random.RandomState(0)
    for name, top in (('dark', 120), ('bright', 256)):
        (folder/name).mkdir()
        for i in range(20): Image.fromarray(rng.randint(0, top, (32, 32), dtype=np.uint8)).save(folder/name/f'{i}.png')
    return folder


@pytest.fixture
def home(tmp_path, pictures):
    "A function that writes a queue of one run, changed by what it is given, and returns its folder."
    def make(name='one', judge='valid', stop={}, **recipe):
        folder = tmp_path/name
        folder.mkdir()
        run = dict(name='run', benchmark=str(pictures), seed=1, priority=1, recipe={**TINY, **recipe}, stop=stop, judge=judge,
                   rows=str(folder/'rows.csv'), about=dict(question='q', variant=name))
        campaign.write(folder/'queue.json', [run])
        return folder
    return make


def row(folder): return pd.read_csv(folder/'rows.csv').drop(columns=['variant', 'seconds', 'cpu_seconds']).to_dict('records')


def start(folder):
    "Work on a queue in a process of its own."
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, ROOT/'benchmarks'/'campaign.py', 'work', '--home', folder]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def wait_for(file, process):
    "Until `file` is there, as long as `process` lives."
    while not file.exists() and process.poll() is None: time.sleep(.05)
    assert file.exists()


@pytest.mark.parametrize('recipe', [{}, dict(optimizer=['SGD', dict(momentum=.9)])])
def test_killed_and_finished_elsewhere_is_the_same(home, tmp_path, recipe):
    straight, killed = home('straight', epochs=12, **recipe), home('killed', epochs=12, **recipe)
    campaign.work(straight)
    process = start(killed)
    wait_for(killed/'run'/'log.csv', process)
    process.kill(); process.wait()
    assert not (killed/'rows.csv').exists() and campaign.status(killed).state.tolist() == ['started']
    moved = tmp_path/'moved'
    shutil.copytree(killed, moved)
    queue = campaign.read(moved/'queue.json')
    campaign.write(moved/'queue.json', [{**queue[0], 'rows': str(moved/'rows.csv')}])
    campaign.work(moved)
    assert row(moved) == row(straight)
    assert not (moved/'run').exists()                                           # only the row stays
    assert campaign.status(moved).state.tolist() == ['done'] and len(campaign.read(moved/'queue.json')[0]['done']) == 1


def test_asked_to_stop_it_saves(home, capsys):
    folder = home(epochs=500)
    process = start(folder)
    wait_for(folder/'run'/'log.csv', process)
    assert campaign.busy(folder, 'run') and campaign.status(folder).state.tolist() == ['running']
    campaign.work(folder)
    assert 'other processes' in capsys.readouterr().out                         # and this one returned without training it
    process.send_signal(signal.SIGTERM)
    assert 'stopped and saved' in process.communicate(timeout=60)[0]
    table = campaign.status(folder).iloc[0]
    assert table.state == 'started' and table.images > 0 and not campaign.busy(folder, 'run')


def test_hours_end_it_too(home):
    folder = home(epochs=500)
    campaign.work(folder, hours=0)
    assert 'done' not in campaign.read(folder/'queue.json')[0] and campaign.status(folder).images[0] == 4   # one batch


def test_a_stop_rule_ends_a_stage_early(home):
    folder = home(epochs=500, stop=dict(stall=2))
    campaign.work(folder)
    assert 3 <= row(folder)[0]['epochs'] < 500
    folder = home('hours', epochs=500, stop=dict(hours=0))
    campaign.work(folder)
    assert row(folder)[0]['epochs'] == 1


def test_small_form_first_and_the_test_set_once(home):
    folder = home(judge='test', epochs=1, small=1, upscale=2, rpe=None)
    run = campaign.read(folder/'queue.json')[0]
    assert list(campaign.stages(run)) == ['small', '.'] and campaign.stages(run)['small']['upscale'] == 1
    campaign.work(folder)
    rows = pd.read_csv(folder/'rows.csv')
    assert len(rows) == 1 and 0 <= rows.test_turned[0] <= 1 and rows.images_seen[0] == 2*28
    assert sorted(o.name for o in (folder/'run').iterdir()) == ['best.safetensors', 'log.csv']
    assert len(campaign.read(folder/'queue.json')[0]['done']) == 2
    best = campaign.load_model(folder/'run'/'best.safetensors')
    assert best.config['rpe'] is None
    said = best.provenance['stages']
    assert [(s['upscale'], s['kernel_size'], s['epochs'], s['images_seen']) for s in said] == [(1, 9, 1, 28), (2, 9, 1, 28)]


def test_both_sides_after_every_epoch_and_fewer_test_images(home):
    folder = home(judge='test')
    run, = campaign.read(folder/'queue.json')
    campaign.write(folder/'queue.json', [{**run, 'epochs': str(folder/'epochs.csv'), 'tested': 4}])
    campaign.work(folder)
    epochs, log = pd.read_csv(folder/'epochs.csv'), pd.read_csv(folder/'run'/'log.csv')
    assert epochs.run.tolist() == ['run']*3 and epochs.epoch.tolist() == [0, 1, 2] and set(epochs.test_samples) == {6}
    assert np.allclose(epochs.valid, 1 - log.accuracy) and np.allclose(epochs.valid_turned, 1 - log.turned)
    row, = pd.read_csv(folder/'rows.csv').to_dict('records')
    assert row['samples'] == row['samples_at'] == 4 and row['test_turned'] in (0, .25, .5, .75, 1)


def test_the_most_urgent_first_and_expected_hours(home, monkeypatch):
    folder = home()
    run, asked = campaign.read(folder/'queue.json')[0], []
    runs = [{**run, 'name': n, 'priority': p, 'recipe': {**TINY, 'size': 24}} for n, p in (('b', 2), ('c', 3), ('a', 1))]
    campaign.write(folder/'queue.json', runs)
    def fake(run, folder, until): asked.append(run['name']); return 1, 0
    def judged(*_): return [dict(images=24*3, seconds=7200, cpu=7000)]
    monkeypatch.setattr(campaign, 'train', fake); monkeypatch.setattr(campaign, 'judge', judged)
    campaign.work(folder)
    assert asked == ['a', 'b', 'c']
    queue = campaign.read(folder/'queue.json')
    del queue[1]['done']
    campaign.write(folder/'queue.json', queue)
    table = campaign.status(folder).set_index('run')
    assert table.state.to_dict() == dict(a='done', b='done', c='left') and table.hours_left.tolist() == [0, 0, 2]


def test_average(home):
    folder = home(average=.9, schedule='flat')
    campaign.work(folder)
    assert row(folder)[0]['epochs'] == 3
