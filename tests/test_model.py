"""The whole model, in single precision and over random shapes: what 08_model shows in double precision."""
import pytest, torch
from harmformer.core import *
from harmformer.core import PRESETS
from harmformer.model import settle

SMALL = dict(channels=(2, 4), kernel_size=7, rings=2, img_size=16, depth=2, heads=2, head_dim=4)
VARIANTS = ([dict(mixing=m) for m in ('all', 'cross_values', 'cross_keys', 'cross_queries')] + [dict(norm=n) for n in ('fused', 'hnet', 'layer')] +
            [dict(stats='shared'), dict(layer_norm='map'), dict(keep_phase=True), dict(rpe=None), dict(mask=None), dict(mask='circle'), dict(chunk=5),
             dict(orders=(0, 1)), dict(orders=(-2, -1, 0, 1, 2), kernel_size=15), dict(engine='direct'), dict(engine='fft'), dict(upscale=1),
             dict(residual=False), dict(depth=0), dict(constant=True), dict(orders=(0, 1, 2)), dict(img_size=(16, 24))])


def images(model, seed=1): return analytic_image(model.img_size, seed=seed, channels=model.stem.in_channels, batch=3, dtype=torch.float32)


def settled(name, **kw):
    "A model in eval mode whose running statistics are those of some images."
    torch.manual_seed(0)
    model = create_model(name, **kw)
    with torch.no_grad(): return settle(model, images(model, 0))


@torch.no_grad()
def turn_error(model, x):
    y = model(x)
    assert rel_error(model(x.flip(0)), y) > 1e-3  # other images get other answers
    return rel_error(model(rotate_image(x, 90)), y).item()


@pytest.mark.parametrize('name', PRESETS)
def test_preset_turns_in_single_precision(name):
    model = settled(name)
    assert turn_error(model, images(model)) < 1e-4


@pytest.mark.parametrize('kw', VARIANTS, ids=str)
def test_variant_turns_in_single_precision(kw):
    model = settled('harmformer_mnist', **{**SMALL, **kw})
    assert turn_error(model, images(model)) < 1e-4


@pytest.mark.parametrize('kw', [dict(engine='fft'), dict(engine='direct'), dict(mixing='all', chunk=5)], ids=str)
def test_autocast_changes_nothing(kw):
    model = settled('harmformer_mnist', **{**SMALL, **kw})
    x = images(model)
    with torch.no_grad():
        plain = model(x)
        with torch.autocast('cpu', torch.bfloat16): mixed = model(x)
    assert torch.equal(plain, mixed)


def test_a_plain_network_fails_the_same_test():
    torch.manual_seed(0)
    cnn = create_model('cnn', img_size=16).eval()
    x = analytic_image(16, batch=3, seed=1, dtype=torch.float32)
    assert turn_error(cnn, x) > 1e-2


def test_training_mode_turns_too():
    torch.manual_seed(0)
    model = create_model(**SMALL, dropout=0.).double().train()
    x = images(model).double()
    assert rel_error(model(rotate_image(x, 90)), model(x)) < 1e-10


def test_chunks_and_engines_do_not_change_the_gradient():
    grads = []
    for kw in (dict(), dict(chunk=7), dict(engine='direct')):
        torch.manual_seed(0)
        model = create_model(**SMALL, dropout=0., **kw).double()
        model(images(model).double()).square().sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for g in grads[1:]: assert rel_error(g, grads[0]) < 1e-9


@pytest.mark.parametrize('size', [(16, 16), (20, 12), (24, 40)])
def test_sizes_it_was_not_built_for(size):
    model = settled('harmformer_mnist', **SMALL)
    assert turn_error(model, analytic_image(size, batch=2, dtype=torch.float32)) < 1e-4


def test_star_import_is_the_public_names_and_nothing_else():
    import harmformer.core as core
    names = {}
    exec('from harmformer.core import *', names)
    names.pop('__builtins__')
    assert set(names) == set(core.__all__) and {'HConv2d', 'Harmformer', 'create_model', 'he_error', 'count_params'} <= set(names)
    assert not {'torch', 'nn', 'F', 'math'} & set(names)


@pytest.mark.parametrize('x, says', [(torch.zeros(2, 3, 16, 16), 'channels'), (torch.zeros(2, 1, 15, 16), 'multiples'),
                                     (torch.zeros(1, 16, 16), 'images'), (torch.zeros(2, 1, 16, 16, dtype=torch.float64), 'float64')])
def test_wrong_input_is_named(x, says):
    with pytest.raises((ValueError, TypeError), match=says): create_model(**SMALL)(x)
