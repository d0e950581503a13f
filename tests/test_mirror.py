"""Reflections: all eight symmetries of the square, to rounding, for every layer, variant and preset; and what must fail."""
import warnings
import pytest, torch
from torch import nn
from harmformer.attention import HAttention
from harmformer.cli import _arguments
from harmformer.conv import HConv2d
from harmformer.core import PRESETS, analytic_image, count_params, create_model, load_model, mirror_image, rotate_image, save_model
from harmformer.encoder import HEncoderBlock, HMLP
from harmformer.fields import analytic_he_error, he_error, own_orders
from harmformer.magnitude import CBatchNorm, CReLU, HNormAct, fold_moments
from harmformer.model import InvariantHead
from harmformer.reflections import D4, d4_errors
from harmformer.data import benchmark_dls
from harmformer.diagnose import he_report
from harmformer.orientation import handedness, handedness_matters
from harmformer.runs import mirror_advice, run_config
from harmformer.stem import HConvBlock, HLayerAct, HNetNorm, HSkip, HStem
from harmformer.tokens import HLayerNorm, HLinear, on_field
from harmformer.unet import HarmformerUNet

MIXINGS = 'same', 'all', 'cross_values', 'cross_keys', 'cross_queries'
SMALL = dict(channels=(2, 4), kernel_size=7, rings=2, img_size=16, depth=2, heads=2, head_dim=4, dropout=0.)
VARIANTS = ([{}] + [dict(mixing=m) for m in MIXINGS[1:]] + [dict(norm=n) for n in ('hnet', 'layer')] + [dict(stats='shared'), dict(layer_norm='map'), dict(keep_phase=True),
            dict(rpe=None), dict(mask=None), dict(mask='circle'), dict(chunk=5), dict(orders=(1, 0, -1)), dict(orders=(-1, 1), rpe=None), dict(orders=(0,)),
            dict(orders=(-2, -1, 0, 1, 2), kernel_size=15), dict(engine='direct'), dict(engine='fft'), dict(engine='dft'), dict(upscale=1), dict(residual=False),
            dict(depth=0), dict(img_size=(16, 24)), dict(in_channels=3)])
SIZES = (8, 8), (9, 7), (8, 6), (5, 5)


def stirred(layer, spread=.3):
    "The layer in double precision, with biases, tables and running statistics that differ from channel to channel and from order to order"
    torch.manual_seed(1)
    for name, p in layer.named_parameters():
        if p.ndim < 3: nn.init.normal_(p, mean=float(p.detach().mean()), std=spread)
    for name, b in layer.named_buffers():
        if b.is_floating_point(): b.uniform_(.5, 1.5)
    return layer.double()


def layers(tie, orders=(-1, 0, 1)):
    "Every layer that has parameters: name, layer, whether it takes images"
    r, k = dict(reflections=tie), (15, 3) if max(orders) > 1 else (5, 1)
    for e in ('auto', 'direct', 'fft', 'dft'): yield f'convolution, {e}', HConv2d(3, 4, *k, orders, orders, e, **r), False
    yield 'lifting', HConv2d(2, 4, *k, (0,), orders, **r), True
    yield 'to order 0', HConv2d(3, 4, *k, orders, (0,), **r), False
    yield 'norm-activation', HNormAct(3, orders, **r), False
    yield 'norm-activation, shared', HNormAct(3, orders, stats='shared', **r), False
    yield 'ℂ-BN', CBatchNorm(3, orders, **r), False
    yield 'norm of H-Nets', HNetNorm(3, orders, **r), False
    yield 'layer norm and ℂ-ReLU', HLayerAct(3, orders, **r), False
    yield 'ℂ-ReLU per order', CReLU(3, orders, scale=True, **r), False
    yield 'skip', HSkip(3, 4, orders, **r), False
    yield 'block', HConvBlock(3, 4, 2, 0., orders, None, *k, **r), False
    yield 'linear', on_field(HLinear(3, 4, orders, **r)), False
    yield 'layer norm', on_field(HLayerNorm(3)), False
    yield 'layer norm over the map', on_field(HLayerNorm(3, 'map')), False
    yield 'perceptron', on_field(HMLP(3, 5, orders, **r)), False
    for m in MIXINGS if 0 in orders else ('same', 'all'):
        yield f'attention, {m}', on_field(HAttention(3, 1, orders, m, grid=(9, 9), **r), grid=True), False
    yield 'encoder', on_field(HEncoderBlock(3, orders=orders, grid=(9, 9), **r), grid=True), False


def stir_all(f):
    "Stir a layer of tokens inside `on_field`, too"
    for c in [c.cell_contents for c in getattr(f, '__closure__', None) or ()]:
        if isinstance(c, nn.Module): stirred(c)
    return stirred(f) if isinstance(f, nn.Module) else f


def errors(layer, images, size, orders=(-1, 0, 1), train=True):
    out0 = getattr(layer, 'out_orders', None) == (0,)
    torch.manual_seed(2)
    x = torch.randn(2, 3, *size, dtype=torch.float64)[:, :2] if images else torch.randn(2, len(orders), 3, *size, dtype=torch.complex128)
    if isinstance(layer, nn.Module): layer.train(train)
    return d4_errors(layer, x, (0,) if images else orders, (0,) if out0 else orders)


@pytest.mark.parametrize('size', SIZES, ids=str)
@pytest.mark.parametrize('train', [True, False])
def test_every_layer_commutes_with_all_eight(size, train):
    for name, layer, images in layers(True):
        found = errors(stir_all(layer), images, size, train=train)
        assert len(found) == 8 and max(found.values()) < 1e-12, (name, found)


@pytest.mark.parametrize('orders', [(1, 0, -1), (-2, -1, 0, 1, 2), (-1, 1), (0,)], ids=str)
def test_other_symmetric_orders(orders):
    for name, layer, images in layers(True, orders):
        assert max(errors(stir_all(layer), images, (6, 9), orders).values()) < 1e-12, name


SHARED = {'norm-activation, shared', 'layer norm and ℂ-ReLU', 'layer norm', 'layer norm over the map'} # nothing in them belongs to an order


@pytest.mark.parametrize('train', [False])
def test_untied_layers_turn_and_do_not_mirror(train):
    for name, layer, images in layers(False):
        found = errors(stir_all(layer), images, (8, 8), train=train)
        turns, mirrors = [[e for n, e in found.items() if D4[n][1] == m] for m in (False, True)]
        assert max(turns) < 1e-12 and (min(mirrors) > 1e-3) == (name not in SHARED), (name, found)


def settled(name='harmformer_mnist', batch=3, **kw):
    "A model in eval mode with statistics of some images, and other images, in double precision"
    torch.manual_seed(0)
    model = create_model(name, **kw).double()
    x = torch.rand(batch, model.in_channels, *model.img_size, dtype=torch.float64)
    for m in model.modules():
        if hasattr(m, 'momentum'): m.momentum = 1.
    with torch.no_grad(): model.train()(x)
    return model.eval(), torch.rand_like(x)


@torch.no_grad()
def answers_differ(model, x): return (model(x.flip(0)) - model(x)).norm()/model(x).norm() > 1e-3


@pytest.mark.parametrize('train', [False, True])
@pytest.mark.parametrize('kw', VARIANTS, ids=str)
def test_every_variant_is_invariant_to_all_eight(kw, train):
    model, x = settled(**{**SMALL, **kw}, reflections=True)
    assert max(d4_errors(model.train(train), x).values()) < 1e-12 and answers_differ(model, x)


@pytest.mark.parametrize('name', [n for n in PRESETS if n != 'harmformer_cifar_large'])
def test_every_preset_is_invariant_to_all_eight(name):
    more = dict(orders=(-1, 0, 1)) if name == 'hnet_mnist' else {}
    model, x = settled(name, 2, reflections=True, **more)
    assert max(d4_errors(model, x).values()) < 1e-12 and answers_differ(model, x)


def test_the_largest_preset_on_smaller_images():
    model, x = settled('harmformer_cifar_large', 2, reflections=True, img_size=16)
    assert max(d4_errors(model, x).values()) < 1e-12


@pytest.mark.parametrize('kw', [{}, dict(mixing='all'), dict(norm='layer'), dict(img_size=(16, 24)), dict(stats='shared', keep_phase=True)], ids=str)
def test_the_unet_commutes_with_all_eight(kw):
    small = dict(channels=(2, 3), kernel_size=7, rings=2, img_size=16, depth=1, heads=1, head_dim=4)
    model, x = settled('harmformer_unet', **{**small, **kw}, reflections=True)
    assert model(x).shape[-2:] == x.shape[-2:] and max(d4_errors(model, x).values()) < 1e-12
    model, x = settled('harmformer_unet', **{**small, **kw})
    assert d4_errors(model, x)['left-right'] > 1e-3


def test_between_the_eight_a_finer_grid_helps():
    torch.manual_seed(0)
    coarse, fine = [max(analytic_he_error(HConv2d(1, 2, k, 2, (0,), reflections=True).double(), 30, n, mirror=True).values()) for k, n in ((7, 33), (7, 129))]
    assert fine < coarse/3


def test_an_untied_beta_is_found():
    torch.manual_seed(0)
    tied, loose = HConv2d(2, 2, 7, reflections=True).double(), HConv2d(2, 2, 7).double()
    with torch.no_grad(): [q.copy_(p[[2, 1, 0, 1, 2]]) for p, q in ((tied.weight, loose.weight), (tied.beta, loose.beta))]
    x = torch.randn(2, 3, 2, 9, 9, dtype=torch.complex128)
    assert torch.equal(tied(x), loose(x)) and max(d4_errors(loose, x).values()) < 1e-12
    with torch.no_grad(): loose.beta[1] += .1               # of order −1 alone
    found = d4_errors(loose, x)
    assert min(found[n] for n in found if D4[n][1]) > 1e-2 and max(found[n] for n in found if not D4[n][1]) < 1e-12


def test_a_head_that_tells_the_streams_apart_is_found():
    model, x = settled(**SMALL, reflections=True)
    torch.manual_seed(0)
    model.head = InvariantHead(8, 10, model.orders).double().eval()
    found = d4_errors(model, x)
    assert min(found[n] for n in found if D4[n][1]) > 1e-3 and max(found[n] for n in found if not D4[n][1]) < 1e-12


def test_beta_of_order_0_stays_free():
    layer = HConv2d(1, 1, 7, reflections=True).double()
    nn.init.constant_(layer.beta, 0.)
    with torch.no_grad(): layer.beta[0] = 1.234
    assert max(d4_errors(layer, torch.randn(1, 3, 1, 8, 8, dtype=torch.complex128)).values()) < 1e-12


@pytest.mark.parametrize('make', [lambda: HConv2d(1, 1, in_orders=(0, 1), reflections=True), lambda: HConv2d(1, 1, 9, in_orders=(0,), out_orders=(0, 1), reflections=True),
                                  lambda: HNormAct(1, (0, 1), reflections=True), lambda: HLayerAct(1, (0, 1), reflections=True), lambda: CReLU(1, (0, 1), reflections=True),
                                  lambda: HSkip(1, 2, (0, 1), reflections=True), lambda: HLinear(1, 1, (0, 1), reflections=True), lambda: InvariantHead(1, 1, (0, 1), True),
                                  lambda: HAttention(1, orders=(0, 1), reflections=True), lambda: create_model('hnet_mnist', reflections=True),
                                  lambda: create_model('harmformer_unet', orders=(-1, 0), reflections=True)])
def test_orders_without_their_mirror_are_refused(make):
    with pytest.raises(ValueError, match=r'a mirror exchanges orders m and -m, but \(.*\) has no -?1: use orders such as \(-1, 0, 1\)'): make()


def test_a_word_is_no_answer():
    with pytest.raises(ValueError, match="reflections is True or False, not 'yes'"): create_model(reflections='yes')


@pytest.mark.parametrize('name', ['harmformer_mnist', 'harmformer_unet'])
def test_tied_parameters_are_saved_and_counted_once(name):
    tied, loose = create_model(name, reflections=True), create_model(name)
    a, b = tied.state_dict(), loose.state_dict()
    assert list(a) == list(b) and all(a[k].numel() <= b[k].numel() for k in a)
    assert len({v.data_ptr() for v in a.values()}) == len(a)
    lifted, hidden = [p.shape[0] for p in ((tied.stem.blocks if name == 'harmformer_mnist' else tied.down)[0].convs[i].weight for i in (0, 1))]
    assert (lifted, hidden) == (2, 3) and .5 < count_params(tied)/count_params(loose) < .7
    assert count_params(tied, real=True) == sum(p.numel() for p in tied.parameters())


def test_files_keep_the_tie(tmp_path):
    model, x = settled(**SMALL, reflections=True)
    model = model.float()
    save_model(model, tmp_path/'a.safetensors')
    again = load_model(tmp_path/'a.safetensors')
    assert again.config['reflections'] is True and torch.equal(again(x.float()), model(x.float()))
    with pytest.raises(ValueError, match='do not fit'), warnings.catch_warnings(): load_model(tmp_path/'a.safetensors', reflections=False)


def test_weights_of_old_files_are_not_tied():
    model = load_model('digits')
    assert model.config['reflections'] is False and model.head.linear.in_features == 3*16


def test_statistics_are_those_of_both_streams_together():
    X = torch.rand(4, 5, 3, 6, 7, dtype=torch.float64)*torch.arange(1, 6)[:, None, None, None]
    mean, var = X.mean((0, 3, 4)), X.var((0, 3, 4), correction=0)
    both, spread = fold_moments(mean, var, (-2, -1, 0, 1, 2))
    for i, pair in enumerate(((2,), (1, 3), (0, 4))):
        assert torch.allclose(both[i], X[:, pair].mean((0, 1, 3, 4))) and torch.allclose(spread[i], X[:, pair].var((0, 1, 3, 4), correction=0))


def test_after_training_too():
    model, x = settled(**SMALL, reflections=True)
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(5):
        loss = nn.functional.cross_entropy(model.train()(x), torch.arange(3))
        opt.zero_grad(); loss.backward(); opt.step()
    assert max(d4_errors(model.eval(), x).values()) < 1e-12


def test_in_single_precision():
    model, x = settled(**SMALL, reflections=True)
    assert max(d4_errors(model.float(), x.float()).values()) < 1e-4


def test_the_command_line_takes_it():
    config = run_config('digits', **_arguments('reflections=True,channels=(2,4),depth=1'))
    assert config['recipe']['reflections'] is True
    with pytest.raises(ValueError, match='a mirror exchanges orders'): run_config('digits', **_arguments('reflections=True,orders=(0,1)'))


def test_the_eight_are_what_they_are_called():
    x = torch.rand(1, 1, 4, 6)
    named = {'up-down': x.flip(-2), 'left-right': x.flip(-1), '/': x.mT.flip(-1, -2), '\\': x.mT, '180°': x.flip(-1, -2)}
    for name, want in named.items():
        degrees, mirror = D4[name]
        assert torch.equal(rotate_image(mirror_image(x) if mirror else x, degrees), want)
    assert len(set(D4.values())) == 8


@pytest.mark.parametrize('kw', [{}, dict(mixing='all'), dict(img_size=(16, 24)), dict(norm='hnet')], ids=str)
def test_the_report_asks_about_mirrors(kw):
    model, x = settled(**{**SMALL, **kw}, reflections=True)
    for layers in (False, True):
        t = he_report(model, x, (0, 90, 180, 270), layers=layers).table
        assert set(t['mirror']) == {False, True} and t.error.max() < 1e-11
    loose, _ = settled(**{**SMALL, **kw})
    assert not he_report(loose, x, (0, 90)).table['mirror'].any() and he_report(loose, x, (0, 90)).culprit is None
    assert he_report(loose, x, (0, 90), mirror=True).culprit == 'block 1'
    t = he_report(loose, x, (0, 90), mirror=True)
    assert t.by_stage()['quarter turns'].max() < 1e-11 < .01 < t.by_stage().mirrors.max() and 'mirrors' in t.plot().axes[0].get_title()


def test_the_report_about_the_unet_and_about_any_module():
    model, x = settled('harmformer_unet', 2, channels=(2, 3), kernel_size=7, rings=2, img_size=16, depth=1, heads=1, head_dim=4, reflections=True)
    assert he_report(model, x, (90, 180)).table.error.max() < 1e-11
    same = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU())
    x = torch.rand(2, 1, 9, 9)
    assert he_report(same, x, (0,), mirror=True).culprit == '0'
    with torch.no_grad(): same[0].weight.copy_((same[0].weight + same[0].weight.flip(-2))/2)
    assert he_report(same, x, (0,), mirror=True).culprit is None and he_report(same, x, (90,), mirror=True).culprit == '0'
    with pytest.raises(ValueError, match='a mirror exchanges orders'): he_report(create_model(**SMALL, orders=(0, 1)).eval(), torch.rand(1, 1, 16, 16), (0,), mirror=True)


def test_handedness_of_quarter_turns():
    model, x = settled(**SMALL)
    for degrees in (0, 90, 180, 270):
        assert handedness(model, x, rotate_image(x, degrees)).min() > 0 > handedness(model, x, rotate_image(mirror_image(x), degrees)).max()


def test_reflections_are_recommended_where_mirrors_do_no_harm():
    dls, model = benchmark_dls('digits', device='cpu'), load_model('digits')
    assert handedness_matters(model, dls.valid)['matters'] and mirror_advice(model, dls) == ''
    same = dls.valid.dataset.subset(torch.isin(dls.valid.dataset.y, torch.tensor([0, 1, 8])).nonzero()[:, 0])
    dls.loaders[1] = dls.valid.new(same)
    assert '--set reflections=True' in mirror_advice(model, dls)
    assert mirror_advice(create_model('harmformer_digits', reflections=True), dls) == ''       # it has them
    assert mirror_advice(create_model('harmformer_digits'), dls) == ''                          # it has learnt nothing
    assert mirror_advice(create_model('cnn'), dls) == ''                                        # it cannot have them
    dls.loaders[1] = dls.valid.new(same.subset(range(40)))
    assert mirror_advice(model, dls) == ''                                                      # too few pictures to say
