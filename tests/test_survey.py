"""One's own pictures before training: what is seen in a folder or a table, how it is split, every fault of it, and pixels of any kind."""
import shutil, sys
import numpy as np, pandas as pd, pytest, torch
from PIL import Image
from harmformer.calibrate import calibration_error, confused_pairs, fit_temperature, reliability, surest_mistakes
from harmformer.cli import harmformer_predict, harmformer_train
from harmformer.core import create_model, save_model
from harmformer.data import ImageSet, TensorDL, benchmark_dls
from harmformer.files import DataError
from harmformer.pixels import read_header, read_scaled, read_stored
from harmformer.plans import class_weights, fit_to_time, rival_names, rival_settings
from harmformer.predict import classify_pictures
from harmformer.survey import look_at_pictures, split_classes

RNG = np.random.RandomState(0)


def noise(*shape, dtype=np.uint8, top=256): return RNG.randint(0, top, shape).astype(dtype)


@pytest.fixture
def folder(tmp_path):
    "A function that writes pictures of noise, so many for each class, and returns the folder"
    def make(counts=dict(cats=10, dogs=10), name='pets', size=(40, 36, 3), where=''):
        for c, n in counts.items():
            (d := tmp_path/name/where/c).mkdir(parents=True)
            for i in range(n): Image.fromarray(noise(*size)).save(d/f'{i:02}.png')
        return tmp_path/name
    return make


@pytest.fixture
def table(folder):
    "A function that writes a CSV of 5 groups with 4 pictures each; `change` may spoil it"
    def make(change=lambda t: t):
        f = folder()
        rows = [dict(path=p.relative_to(f.parent), label=p.parent.name, group=f'slide {int(p.stem) % 5}') for p in sorted(f.rglob('*.png'))]
        change(pd.DataFrame(rows)).to_csv(f.parent/'all.csv', index=False)
        return f.parent/'all.csv'
    return make


def look(source, **kw): return look_at_pictures(source, progress=False, **kw)


# --- what is seen ---

def test_what_is_seen(folder):
    seen = look(folder(dict(cats=40, dogs=10))).read(progress=False)
    assert '50 pictures of 36×40 pixels, 2 classes: 35 to train, 7 to validate, 8 to test' in str(seen) and 'In colour, 8 bits' in str(seen)
    assert 'cats has 40 pictures, dogs 10' in str(seen) and seen.side == 32 and seen.title == 'pets'
    assert class_weights(seen) == [.625, 2.5] and class_weights(look(folder(name='even'))) is None


def test_parts_are_those_of_the_loaders_and_equal_shares(folder):
    seen = look(folder(dict(cats=40, dogs=20)))
    assert all(torch.equal(a, b) for a, b in zip(seen.parts.values(), split_classes(seen.y, 'folder')))
    dls = benchmark_dls(seen, device='cpu')
    assert [len(d.dataset) for d in dls.loaders] == [42, 9, 9, 9, 9] and dls.train.dataset.y.bincount().tolist() == [28, 14]


def test_copies_are_told_and_not_trained_on(folder):
    f = folder()
    seen = look(f)
    train, test = [seen.files[int(seen.parts[p][0])] for p in ('train', 'test')]
    shutil.copy(f/'cats'/'00.png', f/'dogs'/'00.png')
    shutil.copy(test, train)
    seen = look(f)
    said = str(seen)
    assert 'same bytes in two classes' in said and 'one to train and one to' in said
    contents = {p: {seen.files[i].read_bytes() for i in seen.parts[p].tolist()} for p in seen.parts}
    assert not contents['train'] & (contents['valid'] | contents['test'])


def test_odd_ones_are_named(folder):
    f = folder(dict(cats=30, dogs=30))
    Image.new('RGB', (40, 36), (9, 9, 9)).save(f/'cats'/'00.png')
    Image.fromarray(noise(90, 20, 3)).save(f/'cats'/'01.png')
    Image.fromarray(noise(10, 11, 3)).save(f/'dogs'/'00.png')
    said = str(look(f).read(progress=False))
    assert '1 picture (cats/00.png) has one colour only' in said and '(dogs/00.png) is smaller than half' in said and '(cats/01.png) is more than twice' in said
    assert '11×10 to' in said and 'most of 36×40' in said


# --- parts that are given ---

def test_given_parts_are_kept_and_missing_ones_are_made(folder):
    f = folder(dict(a=20, b=20), where='train')
    folder(dict(a=3, b=3), where='val')
    seen = look(f)
    assert {seen.files[i].parent.parent.name for i in seen.parts['valid'].tolist()} == {'val'} and len(seen.parts['valid']) == 6
    assert {seen.files[i].parent.parent.name for k in ('train', 'test') for i in seen.parts[k].tolist()} == {'train'} and len(seen.parts['test']) == 6
    folder(dict(a=4, b=4), where='test')
    seen = look(f)
    assert [len(o) for o in seen.parts.values()] == [40, 6, 8] and 'as given' in str(seen)
    few = benchmark_dls(seen, size=10, device='cpu').train.dataset
    assert len(few) == 10 and few.y.unique().tolist() == [0, 1]                # the first ten are of both classes


def test_no_group_is_in_two_parts(table):
    seen = look(table())
    assert 'none of the 5 groups is in two parts' in str(seen) and sum(map(len, seen.parts.values())) == 20
    groups = [{seen.groups[i] for i in o.tolist()} for o in seen.parts.values()]
    assert sum(map(len, groups)) == 5 == len(set.union(*groups)) and min(map(len, groups)) >= 1
    assert all(seen.y[o].unique().tolist() == [0, 1] for o in seen.parts.values())


def test_a_class_in_one_group_is_trained_on_and_that_is_said(table):
    seen = look(table(lambda t: t.assign(group=['only dogs' if l == 'dogs' else g for l, g in zip(t.label, t.group)])))
    assert 'No picture of dogs is to validate' in str(seen) and 'No picture of dogs is to test' in str(seen) and 1 in seen.y[seen.parts['train']]


def test_a_table_of_parts(table):
    seen = look(table(lambda t: t.assign(part=t.group.map(lambda g: {'slide 0': 'test', 'slide 1': 'val'}.get(g, 'train')))))
    assert {seen.groups[i] for i in seen.parts['test'].tolist()} == {'slide 0'} and {seen.groups[i] for i in seen.parts['valid'].tolist()} == {'slide 1'}


# --- every fault is a sentence with a name and a cure ---

@pytest.mark.parametrize('change, why', [
    (lambda t: t.drop(columns='label'), 'all.csv has no column label'), (lambda t: t.drop(columns=['path', 'label']), 'no column path and no column label'),
    (lambda t: t.replace({'path': {t.path[3]: 'gone.png'}}), 'gone.png, in line 5 of .*is missing: correct the path'),
    (lambda t: t.assign(label=[''] + list(t.label[1:])), '00.png, in line 2 of .* has no label'), (lambda t: t.assign(label='cats'), 'two or more classes.*it has 1'),
    (lambda t: pd.concat([t, t[:1]]), '00.png is in .* twice: remove'), (lambda t: t.assign(group='one'), 'too few groups, the last is one'),
    (lambda t: t.assign(part=['train', 'test']*10), 'the group slide 0 of .* is in two parts, test and train: put all'),
    (lambda t: t.assign(part='some'), "line 2 of .* has the part 'some': it is train, valid or test"), (lambda t: t.assign(part='test'), 'nothing to train on'),
    (lambda t: t.assign(label=['rare'] + ['common']*19), 'too few are in rare: 1'),
    (lambda t: t.assign(group=[''] + list(t.group[1:])), '00.png has no group')])
def test_faults_of_a_table(table, change, why):
    with pytest.raises(DataError, match=why): look(table(change))


def spoil(f, name, content):
    (f/name).write_bytes(content)
    look(f).read(progress=False)


@pytest.mark.parametrize('counts, why', [(dict(cats=9), 'two or more classes.*it has 1'), (dict(cats=9, dogs=1), 'too few are in dogs: 1'), ({}, 'it has 0')])
def test_too_few(folder, tmp_path, counts, why):
    (tmp_path/'pets').mkdir()
    with pytest.raises(DataError, match=why): look(folder(counts))


def test_faults_of_pictures(folder):
    f = folder()
    good = (f/'cats'/'03.png').read_bytes()
    with pytest.raises(DataError, match='03.png is truncated or no image.*Put a good copy'): spoil(f, 'cats/03.png', good[:len(good)//2])
    with pytest.raises(DataError, match='03.png is truncated or no image'): spoil(f, 'cats/03.png', b'')
    (f/'cats'/'03.png').write_bytes(good)
    np.save(f/'cats'/'a.npy', noise(9, 9, 5))
    with pytest.raises(DataError, match='a.npy is an array, others are ordinary pictures'): look(f)


@pytest.mark.parametrize('part, counts, why', [('test', dict(birds=3), 'test/birds is a class that .*train does not have'), ('valid', {}, 'valid holds no pictures'),
                                               ('test', dict(a=3), 'No picture of b is to test')])
def test_faults_of_given_parts(folder, part, counts, why):
    f = folder(dict(a=20, b=20), where='train')
    (f/part).mkdir()
    folder(counts, where=part)
    if why.startswith('No picture'): assert why in str(look(f))                # said, and no fault
    else:
        with pytest.raises(DataError, match=why): look(f)


@pytest.mark.parametrize('args, why', [(dict(minutes=0.), '--minutes is more than 0'), (dict(rival='cnn,resnet'), "--rival: no model is called 'resnet'"),
                                       (dict(patience=0), '--patience is at least 1'), (dict(pixels=33), '--pixels: .*take 36'), (dict(set='depth=deep'), '--set')])
def test_mistakes_in_the_command(folder, monkeypatch, args, why):
    f = folder()
    monkeypatch.chdir(f.parent)
    with pytest.raises(SystemExit, match=why): harmformer_train(str(f), **args)
    with pytest.raises(SystemExit, match='--minutes is for your own pictures'): harmformer_train('digits', minutes=3.)
    assert not (f.parent/'runs').exists()


# --- pixels of any kind ---

@pytest.mark.parametrize('shape, kind', [((20, 24), np.uint8), ((20, 24), np.uint16), ((20, 24, 5), np.float32), ((5, 20, 24), np.uint16)])
def test_arrays(tmp_path, shape, kind):
    a = noise(*shape, dtype=kind, top=200)
    np.save(tmp_path/'a.npy', a)
    h, x = read_header(tmp_path/'a.npy'), read_stored(tmp_path/'a.npy')
    want = a[..., None] if a.ndim == 2 else a.transpose(1, 2, 0) if shape[0] == 5 else a
    assert (h.width, h.height, h.channels, h.deep) == (24, 20, want.shape[-1], kind != np.uint8) and (x == want).all()


@pytest.mark.parametrize('pages, kind', [(4, np.uint16), (2, np.uint8)])
def test_pages_of_a_tiff_are_channels(tmp_path, pages, kind):
    a = [noise(20, 24, dtype=kind, top=200) for _ in range(pages)]
    Image.fromarray(a[0]).save(tmp_path/'a.tif', save_all=True, append_images=[Image.fromarray(o) for o in a[1:]])
    assert (read_stored(tmp_path/'a.tif') == np.stack(a, -1)).all() and read_header(tmp_path/'a.tif').channels == pages
    assert read_scaled([tmp_path/'a.tif'], 16, pages).shape == (1, pages, 16, 16)


@pytest.mark.parametrize('shape, kind, how', [
    ((20, 24, 7), np.uint16, 'minisblack'), ((6, 20, 24), np.float32, 'minisblack'), ((20, 24, 2), np.uint16, 'minisblack'),
    ((20, 24, 5), np.uint8, 'rgb'), ((20, 24, 2), np.uint8, 'minisblack')])            # of the last two Pillow would read some channels only
def test_tiffs_with_many_values_per_pixel(tmp_path, monkeypatch, capfd, shape, kind, how):
    tifffile = pytest.importorskip('tifffile')
    a, file = noise(*shape, dtype=kind, top=200), tmp_path/'a.tif'
    tifffile.imwrite(file, a, photometric=how, planarconfig='separate' if shape[0] == 6 else 'contig')
    want = a.transpose(1, 2, 0) if shape[0] == 6 else a
    h, n = read_header(file), want.shape[-1]
    assert (h.width, h.height, h.channels, h.deep, h.plain) == (24, 20, n, kind != np.uint8, False) and (read_stored(file) == want).all()
    assert read_scaled([file], 16, n).shape == (1, n, 16, 16) and not capfd.readouterr().err
    monkeypatch.setitem(sys.modules, 'tifffile', None)
    for read in (read_header, read_stored):
        with pytest.raises(DataError, match=f'a.tif is a TIFF with {n} values per pixel: `pip install tifffile` to read it, or save it as .npy.$'): read(file)


def test_tiffs_with_many_values_that_are_damaged_or_stacks(tmp_path):
    tifffile = pytest.importorskip('tifffile')
    file = tmp_path/'a.tif'
    tifffile.imwrite(file, noise(3, 20, 24, 6), photometric='minisblack', planarconfig='contig')
    with pytest.raises(DataError, match='a.tif is a stack of 3 pictures with 6 channels each'): read_stored(file)
    tifffile.imwrite(file, noise(20, 24, 6), photometric='minisblack', planarconfig='contig')
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(DataError, match='a.tif is truncated or no image.*Put a good copy in its place'): read_stored(file)


def test_a_folder_of_tiffs_with_many_values_per_pixel(tmp_path):
    tifffile = pytest.importorskip('tifffile')
    for c in ('cats', 'dogs'):
        (tmp_path/'pets'/c).mkdir(parents=True)
        for i in range(10): tifffile.imwrite(tmp_path/'pets'/c/f'{i}.tif', noise(20, 24, 6, dtype=np.uint16), photometric='minisblack', planarconfig='contig')
    dls = benchmark_dls(str(tmp_path/'pets'), img_size=16, device='cpu')
    assert dls.n_in == 6 and dls.train.one_batch()[0].shape[1:] == (6, 16, 16)


@pytest.mark.parametrize('bad, why', [(np.zeros((3, 3), complex), 'array of numbers'), (np.zeros(4), 'array of numbers'), (np.full((9, 9), np.nan), 'no numbers')])
def test_arrays_that_are_no_pictures(tmp_path, bad, why):
    np.save(tmp_path/'a.npy', bad)
    with pytest.raises(DataError, match=f'a.npy.*{why}'): read_header(tmp_path/'a.npy'); read_stored(tmp_path/'a.npy')
    (tmp_path/'a.npy').write_bytes(b'no array')
    with pytest.raises(DataError, match='a.npy is truncated or no array'): read_header(tmp_path/'a.npy')


def test_deep_pictures_keep_their_values_and_each_channel_its_own_statistics(tmp_path, capsys):
    for c, level in dict(dim=300, bright=3000).items():                        # each scaled to its brightest value, they would be alike
        (tmp_path/'deep'/c).mkdir(parents=True)
        for i in range(10): np.save(tmp_path/'deep'/c/f'{i}.npy', (noise(20, 24, 2, dtype=np.uint16, top=100) + [level, 7]).astype(np.uint16))
    dls = benchmark_dls(str(tmp_path/'deep'), img_size=16, device='cpu')
    x = torch.cat([dls.train.dataset.batch(range(14))[0]])
    assert dls.n_in == 2 and x.mean((0, 2, 3)).abs().max() < .01 and (x.std((0, 2, 3)) - 1).abs().max() < .01
    assert dls.reading['as_stored'] == 2 and dls.train.dataset.x.max() > 2900
    assert dls.new_empty().train.dataset.as_stored == 2        # also in an exported Learner
    means = [x[dls.train.dataset.y == k, 0].mean() for k in (0, 1)]
    assert abs(means[0] - means[1]) > 1.5 and dls.turned.dataset.x.is_floating_point()
    torch.manual_seed(0)
    model = create_model('cnn', num_classes=2, in_channels=2, channels=(4,))
    model.config['img_size'] = 16
    said = classify_pictures(model.eval(), [tmp_path/'deep'/'dim'/'0.npy'], **dls.reading)
    z = model(dls.test_dl([tmp_path/'deep'/'dim'/'0.npy']).one_batch()[0]).softmax(1)
    assert said.probability[0] == pytest.approx(z.max().item(), abs=1e-6)
    save_model(model, tmp_path/'w.safetensors', **dls.reading)
    harmformer_predict(str(tmp_path/'w.safetensors'), [str(tmp_path/'deep'/'dim')])
    assert len(capsys.readouterr().out.splitlines()) == 10


@pytest.mark.parametrize('cache', [False, True])
def test_pictures_larger_than_memory_give_the_same_batches(folder, cache):
    f = folder()
    here, files = [benchmark_dls(look(f).read(32, cache, False, m), device='cpu') for m in (1e9, 0)]
    for a, b in zip(here.loaders, files.loaders):
        assert not isinstance(b.dataset.x, torch.Tensor)
        (x, y), (u, v) = [d.dataset.batch(range(len(d.dataset))) for d in (a, b)]
        assert torch.equal(y, v) and torch.allclose(x*here.train.dataset.std, u*here.train.dataset.std, atol=1e-3)
    assert 'temporary file' in str(look(f).read(32, cache, False, 0)) if cache else 'read for every batch' in str(look(f).read(32, cache, False, 0))


# --- rivals, time, calibration ---

def test_rivals():
    assert rival_names('cnn,cnn+rot,cnn', 'x', True) == ['cnn', 'cnn+rot'] and rival_names(None, 'x', True) == ['cnn+rot']
    assert rival_names(None, 'digits', False) == ['cnn'] and rival_names('none', 'digits', False) == [] and rival_names(None, 'drive', False) == ['unet']
    recipe = dict(model='harmformer_small_64', epochs=3, bs=16, lr=.004, schedule='onecycle', dropout=0., small=2)
    own = rival_settings('resnet18+rot', recipe, 64)
    assert own == dict(model='resnet18', epochs=3, bs=16, lr=.0003, schedule='onecycle', mask='tukey', reduce=2)
    assert rival_settings('cnn', recipe) == dict(model='cnn', epochs=3, bs=16, lr=.004, schedule='onecycle')   # of benchmarks, as ever


def test_minutes_choose_epochs_then_sizes_then_pictures(folder, monkeypatch):
    import harmformer.plans as plans
    seen = look(folder(dict(a=100, b=100), size=(70, 70, 3)))
    def cost(settings, side, channels, classes): return 1e-3*side**2/32**2*(.3 if 'tiny' in settings['model'] else 1)*(.1 if settings['model'] == 'cnn' else 1)
    monkeypatch.setattr(plans, 'step_seconds', cost)
    recipe = dict(model='harmformer_small_64', epochs=16, bs=16, lr=.004)
    def fit(minutes, **kw): return fit_to_time(seen, recipe, minutes, 64, ['cnn+rot'], **kw)
    long, some, short = fit(10), fit(.36), fit(.345)
    assert (long[0]['epochs'], long[1], long[2]) == (40, 64, None) and long[0]['model'] == 'harmformer_small_64'
    assert some[1] in (32, 64) and 2 <= some[0]['epochs'] < 40
    assert short[1] == 32 and short[0]['model'] in ('harmformer_small_32', 'harmformer_tiny_32')
    assert fit(.1)[2] is not None and fit(.1)[0]['epochs'] == 2                # not enough for anything: few pictures
    assert fit(.36, fixed=['pixels'])[1] == 64


def test_temperature_undoes_what_was_done():
    torch.manual_seed(0)
    z = 2*torch.randn(4000, 5)
    y = torch.distributions.Categorical(logits=z).sample()
    for t in (.5, 1., 3.): assert fit_temperature(z*t, y) == pytest.approx(t, rel=.06)
    assert calibration_error(z, y) < .03 < .1 < calibration_error(3*z, y) and calibration_error(3*z, y, 3.) == pytest.approx(calibration_error(z, y), abs=1e-6)
    assert sum(n for *_, n in reliability(z.softmax(1).amax(1), z.argmax(1) == y)) == 4000


def test_mistakes_and_pairs():
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    z = torch.eye(3)[[0, 1, 1, 1, 0, 2]]*torch.tensor([9., 2, 5, 9, 3, 9])[:, None]
    assert [(a, b, i) for a, b, i in confused_pairs(z, y)] == [(0, 1, [2, 1]), (2, 0, [4])]
    assert [i for i, *_ in surest_mistakes(z, y)] == [2, 4, 1]
