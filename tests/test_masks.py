"""Training on one's own masks: what a folder may look like, every fault of it, patches, loss and scores, and the commands."""
import json, shutil
import numpy as np, pytest, torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from harmformer.cli import harmformer_eval, harmformer_report, harmformer_segment, harmformer_train
from harmformer.core import create_model, load_model
from harmformer.files import DataError
from harmformer.mask_runs import _fitting, mask_config
from harmformer.mask_scores import _tally, dice_interval, label_objects, matched_objects, score_pictures, turned_picture
from harmformer.masks import MaskLoss, MaskPatches, apart, is_mask_folder, look_at_masks
from harmformer.segment import segment

TINY = 'channels=(2,2),depth=1,heads=1,head_dim=4,kernel_size=7,rings=2'


def draw_cells(rng, h=72, w=80, n=6):
    "A picture (h, w) in uint8 of bright ellipses, and a mask that numbers them"
    y, x = np.mgrid[:h, :w]
    image, labels = np.full((h, w), .15), np.zeros((h, w), np.uint16)
    for k in range(1, n + 1):
        cy, cx, a, b, t = rng.uniform(0, h), rng.uniform(0, w), *rng.uniform(4, 10, 2), rng.uniform(0, np.pi)
        u, v = (x-cx)*np.cos(t) + (y-cy)*np.sin(t), (y-cy)*np.cos(t) - (x-cx)*np.sin(t)
        labels[inside := (u/a)**2 + (v/b)**2 < 1] = k
        image[inside] = .8
    return (255*np.clip(image + .05*rng.randn(h, w), 0, 1)).astype(np.uint8), labels


KINDS = dict(binary=lambda y: (y > 0)*np.uint8(255), ones=lambda y: (y > 0)*np.uint8(1), numbered=lambda y: y,
             classes=lambda y: np.where(y > 0, 1 + y % 2, 0).astype(np.uint8))


@pytest.fixture
def folder(tmp_path):
    def make(kind='binary', n=6, name='cells', **kw):
        rng = np.random.RandomState(0)
        for d in ('images', 'masks'): (tmp_path/name/d).mkdir(parents=True)
        for i in range(n):
            image, labels = draw_cells(rng, **kw)
            Image.fromarray(image).save(tmp_path/name/'images'/f'{i}.png')
            Image.fromarray(KINDS[kind](labels)).save(tmp_path/name/'masks'/f'{i}.png')
        return tmp_path/name
    return make


# --- the folder ---

@pytest.mark.parametrize('kind', KINDS)
def test_what_is_seen(folder, kind):
    f = folder(kind)
    seen = look_at_masks(f, ['ground', 'a', 'b'] if kind == 'classes' else [], progress=False)
    assert [len(seen.parts[p]) for p in ('train', 'valid', 'test')] == [4, 1, 1] and seen.channels == 1 and seen.out == (3 if kind == 'classes' else 1)
    assert seen.numbered == (kind == 'numbered') and '6 pictures of 80×72 pixels, without colour' in str(seen)
    assert ('number their objects' in str(seen)) == (kind == 'numbered') and is_mask_folder(f) and not is_mask_folder(f/'images')


def test_parts_that_are_there_are_kept(folder, tmp_path):
    f = folder(n=6)
    for part, numbers in dict(train='0123', valid='4', test='5').items():
        for kind in ('images', 'masks'):
            (tmp_path/'split'/part/kind).mkdir(parents=True)
            for i in numbers: shutil.copy(f/kind/f'{i}.png', tmp_path/'split'/part/kind)
    seen = look_at_masks(tmp_path/'split', progress=False)
    assert is_mask_folder(tmp_path/'split') and [o['name'] for o in seen.parts['test']] == ['5'] and len(seen.parts['train']) == 4
    shutil.rmtree(tmp_path/'split'/'valid')
    with pytest.raises(DataError, match='no valid'): look_at_masks(tmp_path/'split', progress=False)


def test_pictures_larger_than_memory_give_the_same_patches(folder):
    f = folder()
    here, stored = [look_at_masks(f, memory=m, progress=False) for m in (1e9, 0)]
    assert isinstance(stored.parts['train'][0]['image'], np.memmap) and not isinstance(here.parts['train'][0]['image'], np.memmap)
    assert 'temporary files' in str(stored) and 'temporary' not in str(here)
    a, b = [MaskPatches(s.parts['train'], 12, 32, channels=1, turn=True, augment=True).batch(range(12)) for s in (here, stored)]
    assert all(torch.equal(*o) for o in zip(a, b))


def spoil(name, content=None, **arrays):
    def do(f):
        if content is not None: (f/name).write_bytes(content)
        else: Image.fromarray(arrays['x']).save(f/name)
    return do


def every_mask(f, change):
    for p in (f/'masks').iterdir(): Image.fromarray(change(np.array(Image.open(p)))).save(p)


FAULTS = {
    'another size': (spoil('masks/2.png', x=np.zeros((70, 80), np.uint8)), ['2.png', '80×70', '80×72', 'same size']),
    'no mask': (lambda f: (f/'masks'/'3.png').unlink(), ['3.png', 'has no mask', 'put 3.png into']),
    'all empty': (lambda f: every_mask(f, np.zeros_like), ['are empty', 'mark the foreground']),
    'unreadable picture': (spoil('images/1.png', b'no picture'), ['1.png', 'truncated or no image', 'good copy']),
    'unreadable mask': (spoil('masks/1.png', b''), ['1.png', 'truncated or no image', 'good copy']),
    'colours': (spoil('masks/1.png', x=np.dstack([np.eye(72, 80)*255, *np.zeros((2, 72, 80))]).astype(np.uint8)), ['1.png', 'colours', 'one number per pixel']),
    'fractions': (lambda f: (Image.fromarray(np.full((72, 80), .5, np.float32)).save(f/'masks'/'1.tif'), (f/'masks'/'1.png').unlink()),
                  ['1.tif', 'whole numbers', '8 or 16 bits']),
    'losses': (lambda f: Image.open(f/'masks'/'1.png').save(f/'masks'/'1.jpg') or (f/'masks'/'1.png').unlink(), ['1.jpg', 'losses', 'PNG']),
    'smoothed': (lambda f: every_mask(f, lambda y: np.array(Image.fromarray(y).resize((160, 144)).resize((80, 72), Image.Resampling.BILINEAR))),
                 ['smoothed edges', '0 and 255']),
    'twice': (lambda f: shutil.copy(f/'images'/'1.png', f/'images'/'1.bmp'), ['1.bmp', '1.png', 'same name']),
    'too few': (lambda f: [p.unlink() for k in ('images', 'masks') for p in (f/k).iterdir() if p.stem > '1'], ['holds 2 pictures', 'three are needed']),
    'no pictures': (lambda f: [p.unlink() for p in (f/'images').iterdir()], ['holds no pictures']),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_faults_are_one_sentence_before_training(folder, fault, tmp_path, capsys):
    f = folder()
    look_at_masks(f, progress=False)                            # nothing is wrong with it yet
    spoil, words = FAULTS[fault]
    spoil(f)
    with pytest.raises(SystemExit) as e: harmformer_train(str(f), out=str(tmp_path/'runs'))
    said = str(e.value)
    assert all(w in said for w in words) and '\n' not in said and str(tmp_path) in said, said
    assert not (tmp_path/'runs').exists() and 'Training' not in capsys.readouterr().out


def test_values_that_are_not_classes(folder):
    f = folder('classes')
    look_at_masks(f, ['ground', 'a', 'b'], progress=False)
    Image.fromarray(np.full((72, 80), 7, np.uint8)).save(f/'masks'/'4.png')
    with pytest.raises(DataError, match=r'4\.png holds the value 7, but --classes names 3'): look_at_masks(f, ['ground', 'a', 'b'], progress=False)


@pytest.mark.parametrize('settings,words', [
    (dict(classes='cell'), 'name the background too'), (dict(classes='1'), 'at least 2'), (dict(classes='a,b,b'), 'twice'),
    (dict(rival='resnet18'), 'does not segment'), (dict(model='cnn'), 'does not segment'), (dict(pixels=50), 'multiple of 4'),
    (dict(set='depht=3'), 'depht')])
def test_settings_that_do_not_fit(folder, tmp_path, settings, words):
    with pytest.raises(SystemExit, match=words): harmformer_train(str(folder()), out=str(tmp_path/'runs'), **settings)


# --- patches ---

def test_half_of_the_patches_have_something_marked(folder):
    seen = look_at_masks(folder(h=200, w=220), progress=False)
    def hit(marked): return MaskPatches(seen.parts['train'], 200, 32, channels=1, marked=marked).batch(range(200))[1].amax((1, 2, 3)).mean()
    assert hit(1.) == 1 and hit(0.) < hit(.5) - .1 < .9


@pytest.mark.parametrize('turn', [False, True])
def test_masks_go_with_their_pictures(turn):
    y = np.zeros((90, 100), np.uint8)
    y[30:60, 40:45] = y[70:74, 10:80] = 1
    picture = dict(name='a', image=(y*255)[..., None], labels=y, numbered=False)
    x, t = MaskPatches([picture], 40, 48, channels=1, augment=True, turn=turn).batch(range(40))
    assert x.shape == t.shape == (40, 1, 48, 48) and ((x > .5).float() - t).abs().mean() < .01
    assert ((x > .5).float() - t.flip(-1)).abs().mean() > .05   # mirrored masks would not
    a, b = [MaskPatches([picture], 40, 48, channels=1).batch(range(40), key) for key in ((0, 0), (0, 1))]
    assert not torch.equal(a[0], b[0])                          # every epoch has its own


def test_small_pictures_are_mirrored():
    image = np.arange(20*30, dtype=np.uint16).reshape(20, 30).astype(np.uint8)
    o = dict(name='a', image=image[..., None], labels=(image > 90).astype(np.uint8), numbered=False)
    x, y = MaskPatches([o], 4, 64, channels=1).batch(range(4))
    wide = np.pad(image, [(0, 44), (0, 34)], mode='reflect')
    assert torch.equal(x[0, 0], torch.from_numpy(wide)/255) and torch.equal(y[0, 0], torch.from_numpy((wide > 90)*1.).float())


def test_touching_objects_come_apart():
    y = np.zeros((20, 20), np.uint16)
    y[5:15, 3:10], y[5:15, 10:17] = 1, 2
    assert label_objects(y > 0).max() == 1 and label_objects(apart(y)).max() == 2


@pytest.mark.parametrize('several', [False, True])
def test_loss_is_small_where_the_map_is_right(several):
    y = (torch.rand(2, 8, 8) > .7).long()
    logits = 20.*(torch.nn.functional.one_hot(y, 2).permute(0, 3, 1, 2) - .5) if several else 20*(y[:, None] - .5)
    loss, t = MaskLoss(), y if several else y[:, None].float()
    assert loss(logits, t) < .01 and loss(-logits, t) > 5
    assert torch.equal(loss.decodes(logits).long().squeeze(1), y)


# --- scores ---

def test_objects_are_matched_one_to_one():
    true = np.zeros((30, 30), int)
    true[2:8, 2:8], true[12:18, 2:8], true[20:28, 20:28] = 1, 2, 3
    assert matched_objects(true, true) == 3 and matched_objects(0*true, true) == 0
    said = np.roll(true, 1, 0)                                  # 5 of 7 rows shared: more than half
    assert matched_objects(said, true) == 3 and matched_objects(np.roll(true, 3, 0), true) == 0
    merged = (true > 0).astype(int)
    merged[8:12, 2:8] = 1                                       # two in one: neither has half of the union
    assert matched_objects(label_objects(merged), true) == 1


def test_scores_are_those_of_sklearn_and_of_their_definitions():
    rng = np.random.RandomState(0)
    y, p = (rng.rand(40, 50) > .7).astype(np.uint8), rng.rand(1, 40, 50)
    p[0][y > 0] += .3
    p /= p.max()
    inside = np.ones(y.shape, bool)
    inside[:5] = False
    s, said, true = _tally(p, y, inside, False).scores(), p[0][inside] > .5, y[inside] > 0
    assert abs(s['auc'] - roc_auc_score(true, p[0][inside])) < 1e-4
    assert abs(s['dice'] - 2*(said & true).sum()/(said.sum() + true.sum())) < 1e-12 and abs(s['iou'] - (said & true).sum()/(said | true).sum()) < 1e-12
    assert abs(_tally(p, y, inside | True, False).scores()['dice'] - s['dice']) > 1e-6  # what is outside would count


def test_turned_pictures():
    rng = np.random.RandomState(0)
    image, labels = draw_cells(rng, 64, 64)
    a, b, inside = turned_picture(image[..., None], labels, 90)
    assert inside.all() and (a[..., 0] == np.rot90(image)).all() and (b == np.rot90(labels)).all()
    a, b, inside = turned_picture(image[..., None], labels, 45)
    assert .8 < inside.mean() < .86 and inside[32, 32] and not inside[0, 0] and not b[~inside].any()
    assert ((a[..., 0] > 115) == (b > 0))[inside].mean() > .97 > ((a[::-1, :, 0] > 115) == (b > 0))[inside].mean()
    big, _, _ = turned_picture(np.zeros((40, 60, 1), np.uint8), np.zeros((40, 60), np.uint8), 45, most=32)
    assert big.shape == (32, 32, 1)


def test_the_network_scores_the_same_rotated_by_90_degrees(folder):
    seen = look_at_masks(folder(), progress=False)
    torch.manual_seed(0)
    tiny = dict(channels=(2, 2), depth=1, heads=1, head_dim=4, kernel_size=7, rings=2)
    ours, plain = create_model('harmformer_unet', in_channels=1, **tiny).double(), create_model('unet', in_channels=1).double()
    def apart_by(m):
        a, b = [score_pictures(m, seen.parts['test'], d)['auc'] for d in (0, 90)]
        return abs(a - b)
    assert apart_by(ours) < 1e-6 < apart_by(plain)


def test_interval_holds_the_dice(folder):
    seen = look_at_masks(folder(), progress=False)
    found = [_tally((o['labels'] > 0)[None]*.3 + .6*np.random.RandomState(i).rand(*o['labels'].shape), o['labels'], np.ones(o['labels'].shape, bool), False)
             for i, o in enumerate(seen.parts['train'])]
    low, high = dice_interval(found)
    assert low <= sum(found[1:], found[0]).scores()['dice'] <= high and low < high


def test_several_classes_exclude_each_other():
    torch.manual_seed(0)
    model = create_model('unet', out_channels=3)
    p = segment(model, torch.rand(3, 70, 80))
    assert p.shape == (3, 70, 80) and (p.sum(0) - 1).abs().max() < 1e-5


# --- the commands ---

@pytest.mark.parametrize('kind', ['numbered', 'classes'])
def test_from_masks_to_maps(folder, tmp_path, capsys, kind):
    f, runs = folder(kind), tmp_path/'runs'
    several = dict(classes='ground,light,dark') if kind == 'classes' else {}
    again = dict(out=str(runs), epochs=2, size=32, valid=1, pixels=32, set=TINY, rival='unet,unet+rot', **several)
    harmformer_train(str(f), **again)
    run = runs/'cells-harmformer_unet-seed0'
    said = capsys.readouterr().out
    assert '6 pictures' in said and said.count('Training') == 3 and 'on 1 test pictures' in said
    results, config = [json.loads((run/n).read_text()) for n in ('results.json', 'config.json')]
    assert [r['model'] for r in results['rows']] == ['harmformer_unet', 'unet', 'unet+rot'] and config['kind'] == 'masks'
    assert {'dice', 'iou', 'auc', 'f1', 'found', 'true', 'dice_45', 'f1_45', 'seconds', 'patches'} <= {*results['rows'][0]}
    assert 'plain U-Net with rotations' in (run/'report.html').read_text(encoding='utf-8')
    assert load_model(run/'unet+rot').provenance['rotations'] and not load_model(run/'unet').provenance['rotations']

    harmformer_segment([str(f/'images'/'0.png')], out=str(tmp_path/'maps'), weights=str(run))
    mask = np.array(Image.open(tmp_path/'maps'/'0_mask.png'))
    assert mask.shape == (72, 80) and set(np.unique(mask)) <= ({0, 1, 2} if several else {0, 255})
    assert ('are light' if several else 'are foreground') in capsys.readouterr().out

    (run/'report.html').unlink()
    harmformer_report(str(run))
    assert (run/'report.html').exists()
    harmformer_eval(str(run), csv=str(tmp_path/'scores.csv'))
    assert '45°: Dice' in capsys.readouterr().out and 'dice_45' in (tmp_path/'scores.csv').read_text()
    harmformer_train(str(f), **again, resume=True)              # all is done: nothing is trained again
    assert json.loads((run/'results.json').read_text())['rows'][0]['dice'] == results['rows'][0]['dice']
    with pytest.raises(SystemExit, match='other settings'): harmformer_train(str(f), **{**again, 'epochs': 3}, resume=True)


def test_minutes_choose_the_patches(folder):
    f = folder()
    seen = look_at_masks(f, progress=False)
    few, many = [_fitting(mask_config(f, minutes=m, pixels=32, arguments=dict(channels=(2, 2), depth=1)), seen, ['harmformer_unet']) for m in (.01, 100)]
    assert few % 16 == many % 16 == 0 and many > 100*few
    with pytest.raises(ValueError, match='more than 0'): mask_config(f, minutes=0)
