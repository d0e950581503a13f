"""Segmentation as a user runs it: training on photographs, and maps of their own pictures."""
import json
from pathlib import Path
import numpy as np, pytest, torch
from conftest import write_drive
from PIL import Image
from harmformer import runs
from harmformer.core import create_model, load_model, rotate_image, save_model
from harmformer.cli import harmformer_eval, harmformer_segment, harmformer_train
from harmformer.evaluate import read_rows
from harmformer.segment import segment, segment_bands, tile_starts

TINY = 'channels=(2,2),depth=1,heads=1,head_dim=4,kernel_size=7,rings=2'


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('weights')/'tiny.safetensors'
    save_model(create_model('harmformer_unet', channels=(2, 2), depth=1, heads=1, head_dim=4, kernel_size=7, rings=2), path, benchmark='drive')
    return path


@pytest.fixture
def photo(tmp_path):
    def make(name, size=(100, 90)):
        rng = np.random.RandomState(len(name))
        Image.fromarray(rng.randint(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(tmp_path/name)
        return str(tmp_path/name)
    return make


def test_three_pictures_for_each(weights, photo, tmp_path, capsys):
    files = [photo('one.png'), photo('three.tif', (64, 131))]
    harmformer_segment(files, out=str(tmp_path/'out'), weights=str(weights))
    assert sorted(p.name for p in (tmp_path/'out').iterdir()) == sorted(f'{n}_{k}.png' for n in ('one', 'three') for k in ('prob', 'mask', 'overlay'))
    prob, mask, overlay = [Image.open(tmp_path/'out'/f'three_{k}.png') for k in ('prob', 'mask', 'overlay')]
    assert prob.size == mask.size == overlay.size == (64, 131) and prob.mode == mask.mode == 'L' and overlay.mode == 'RGB'
    x = torch.from_numpy(np.array(Image.open(files[1]))).permute(2, 0, 1)/255
    p = segment(load_model(weights), x)[0]
    assert np.abs(np.array(prob)/255 - p.numpy()).max() < .51/255 and set(np.unique(mask)) <= {0, 255}
    assert ((np.array(mask) > 0) == (p > .5).numpy()).mean() > .999
    assert 'pixels are vessels' in capsys.readouterr().out


@pytest.mark.parametrize('n', [64, 65, 100, 565, 584])
def test_tiles_are_the_same_from_both_ends(n):
    starts = tile_starts(n, 64)
    assert starts == [n - 64 - s for s in reversed(starts)] and starts[-1] + 64 == n
    assert all(b - a <= 32 for a, b in zip(starts, starts[1:]))


def test_turned_picture_has_the_turned_map(weights):
    model, x = load_model(weights).double(), torch.rand(3, 97, 130, generator=torch.Generator().manual_seed(0)).double()
    assert (rotate_image(segment(model, x), 90) - segment(model, rotate_image(x, 90))).abs().max() < 1e-10


@pytest.mark.parametrize('size', [(50, 60), (64, 40), (20, 70), (64, 64), (131, 64)])
def test_bands_are_the_map_and_bytes_are_floats(weights, size):
    model, x = load_model(weights), torch.randint(0, 256, (3, *size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    p = segment(model, x)
    assert p.shape == (1, *size) and torch.equal(p, torch.cat(list(segment_bands(model, x)), 1)) and torch.allclose(p, segment(model, x/255), atol=1e-6)


def test_tiles_leave_no_seams(weights):
    "The step from pixel to pixel across borders of tiles, relative to the step everywhere: without overlap the tiles show their edges."
    model, g = load_model(weights), torch.Generator().manual_seed(1)
    waves = torch.nn.functional.interpolate(torch.rand(12, 3, 8, 16, generator=g), scale_factor=8, mode='bicubic').clamp(0, 1)
    def seam(overlap):
        maps = torch.stack([segment(model, o, overlap=overlap)[0] for o in waves])
        steps = (maps[..., 1:] - maps[..., :-1]).abs().mean((0, 1))
        return (steps[[s + 63 for s in tile_starts(128, 64, overlap)[:-1]]].mean()/steps.mean()).item()
    assert seam(.5) < 1.2 < 1.5 < seam(0.), (seam(.5), seam(0.))


@pytest.mark.parametrize('harm, why', [
    (lambda p: Image.new('L', (70, 70)).save(p), "bad.png is not RGB but of mode 'L'"),
    (lambda p: p.write_bytes(b'no picture'), 'bad.png is truncated or no image'),
    (lambda p: None, 'bad.png is missing'),
])
def test_bad_pictures_stop_it_before_anything_is_written(weights, photo, tmp_path, harm, why):
    harm(tmp_path/'bad.png')
    with pytest.raises(SystemExit) as e: harmformer_segment([photo('good.png'), str(tmp_path/'bad.png')], out=str(tmp_path/'out'), weights=str(weights))
    assert why in str(e.value) and not (tmp_path/'out').exists()


def test_other_mistakes(weights, photo, tmp_path):
    with pytest.raises(SystemExit, match='does not segment'): harmformer_segment([photo('a.png')], weights='digits')
    with pytest.raises(SystemExit, match='no weights at'): harmformer_segment([photo('a.png')], weights='nonsense')
    with pytest.raises(SystemExit, match='several pictures are called a'): harmformer_segment([photo('a.png'), photo('a.tif')], weights=str(weights))
    with pytest.raises(SystemExit, match='probability'): harmformer_segment([photo('a.png')], weights=str(weights), threshold=2.)


def test_training_leaves_a_report_and_eval_a_row(tmp_path, monkeypatch, capsys):
    write_drive(tmp_path, 'training', range(21, 26), (100, 90))
    monkeypatch.setenv('HARMFORMER_DATA', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('harmformer.runs.commit', lambda: '1061e09')  # a commit that looks like a number: it happened
    augmented, fit = [], runs.fit
    monkeypatch.setattr(runs, 'fit', lambda learn, **kw: (augmented.append(learn.dls.train.dataset.augment), fit(learn, **kw)))
    harmformer_train('drive', budget=True, size=32, epochs=2, set=TINY)
    assert augmented == [True, True]
    path = tmp_path/'runs'/'drive-harmformer_unet-seed0'
    assert (path/'report.html').read_text().count('data:image/png;base64') == 3
    rows = json.loads((path/'results.json').read_text())['rows']
    assert [r['model'] for r in rows] == ['harmformer_unet', 'unet'] and all(0 <= r[k] <= 1 for r in rows for k in ('auc', 'auc_45', 'auc_90', 'dice', 'accuracy'))
    assert abs(rows[0]['auc'] - rows[0]['auc_90']) < 1e-4 < abs(rows[1]['auc'] - rows[1]['auc_90'])
    for _ in range(2): harmformer_eval(str(path/'best.safetensors'), csv=str(tmp_path/'rows.csv'))
    first, second = [dict(zip(*[l.split(',') for l in (head, line)])) for head, *lines in [(tmp_path/'rows.csv').read_text().splitlines()] for line in lines]
    assert first == second and float(first['test_auc']) == rows[0]['auc'] and first['images_seen'] in ('32', '64') and first['seed'] == '0' and first['commit'] == '1061e09'
    assert read_rows(tmp_path/'rows.csv').commit.tolist() == ['1061e09']*2
    assert f"area under the ROC curve: {rows[0]['auc']:.4f}" in capsys.readouterr().out


def test_the_notebook_shows_no_photographs_of_drive():
    "DRIVE may not be passed on, and outputs are committed: what 24_drive shows is drawn, so it may not look for the data at all."
    cells = json.loads((Path(__file__).parent.parent/'nbs'/'24_drive.ipynb').read_text(encoding='utf-8'))['cells']
    code = '\n'.join(''.join(c['source']) for c in cells if c['cell_type'] == 'code')
    assert 'draw_retina' in code
    for word in ('find_file', 'read_drive', 'benchmark_dls', 'harmformer.data', 'harmformer.files', 'HARMFORMER_DATA', 'Image.open'): assert word not in code, word
