"""The rivals by name: timm's surface, sizes, quarter turns in double and single precision, files; and wrappers of any network."""
import pytest, torch
from harmformer.averaging import FrameAveraged, RotationAveraged
from harmformer.core import create_model, load_model, save_model
from harmformer.gallery import RIVALS
from harmformer.group_attention import GroupAttention, GroupTransformer
from harmformer.group_conv import GCNN, GroupConv2d, LiftConv2d, rotate_group
from harmformer.fields import analytic_image, rel_error
from harmformer.model import settle
from harmformer.upright import OrientationNet, Upright, rotate_back

PLAIN = ('cnn', 'vit', 'unet', 'resnet18')
EXACT = [n for n, c in RIVALS.items() if c.exact.startswith('quarter turns')]
MAPS = [n for n in (*PLAIN, *RIVALS) if 'unet' in n]


def made(name, **kw):
    "A model of that name in eval mode whose running statistics are those of some images, and other images."
    torch.manual_seed(0)
    model = create_model(name, **kw)
    some, others = [torch.rand(n, *model.default_cfg['input_size']) for n in (6, 4)]
    with torch.no_grad(): return settle(model, some), others


@torch.no_grad()
def turn_error(model, x, maps=False):
    "How far answers are from following a quarter turn, in units of their spread over the images."
    a, b = model(x), model(x.rot90(1, (-2, -1)))
    if maps: a = a.rot90(1, (-2, -1))
    return ((a - b).norm() / (a - a.mean(0)).norm()).item()


@pytest.mark.parametrize('name', [*PLAIN, *(n for n in RIVALS if n != 'resnet50')])
def test_timm_surface(name):
    model, x = made(name)
    with torch.no_grad():
        assert torch.equal(model.forward_head(model.forward_features(x)), model(x))
        assert torch.equal(model.get_classifier()(model.features(x)), model(x))
        assert model.features(x).shape[1] == model.num_features and model(x).shape[1] == model.num_classes
        body = model.forward_features(x)
        model.reset_classifier(3)
        assert model.num_classes == 3 and model(x).shape[1] == 3 and torch.equal(model.forward_features(x), body)
    assert 3 in (model.config.get('num_classes'), model.config.get('out_channels'))


@pytest.mark.parametrize('name', [n for n in RIVALS if n != 'resnet50'])
def test_saved_and_loaded_again(name, tmp_path):
    model, x = made(name)
    save_model(model, tmp_path/'a.safetensors')
    with torch.no_grad(): assert torch.equal(load_model(tmp_path/'a.safetensors')(x), model(x))


@pytest.mark.parametrize('name', EXACT)
def test_quarter_turns(name):
    model, x = made(name)
    assert turn_error(model, x, name in MAPS) < 1e-3
    assert turn_error(model.double(), x.double(), name in MAPS) < 1e-12


@pytest.mark.parametrize('name', [*PLAIN, *(n for n, c in RIVALS.items() if c.exact == 'nothing' and n != 'resnet50')])
def test_plain_ones_fail_the_same_test(name):
    model, x = made(name)
    assert turn_error(model.double(), x.double(), name in MAPS) > .1


@pytest.mark.parametrize('name', [n for n, c in RIVALS.items() if c.params])
def test_size_of_the_paper(name):
    stored = sum(p.numel() for p in create_model(name).parameters())
    assert abs(stored/RIVALS[name].params - 1) < .03


@pytest.mark.parametrize('turns', [4, 8, 12])
@pytest.mark.parametrize('kernel_size, padding', [(1, 0), (3, 1), (4, 0), (5, 2)])
def test_group_layers_of_any_size(turns, kernel_size, padding):
    torch.manual_seed(turns + kernel_size)
    lift, conv = LiftConv2d(2, 3, kernel_size, turns, padding).double(), GroupConv2d(3, 2, kernel_size, turns, padding).double()
    x = torch.rand(2, 2, 11, 14, dtype=torch.float64)
    with torch.no_grad():
        for q in (1, 2, 3): assert rel_error(conv(lift(x.rot90(q, (-2, -1)))), rotate_group(conv(lift(x)), q)) < 1e-12


def test_group_conv_refuses():
    with pytest.raises(ValueError, match='turns is 4, 8'): GCNN(turns=6)(torch.rand(2, 1, 32, 32))
    with pytest.raises(ValueError, match='even sizes'): GCNN()(torch.rand(2, 1, 33, 32))
    with pytest.raises(ValueError, match='at least 28 are needed'): GCNN()(torch.rand(2, 1, 26, 32))
    assert GCNN()(torch.rand(2, 1, 28, 28)).shape == (2, 10)  # the smallest that fits
    with pytest.raises(ValueError, match='depth is at least 3'): GCNN(depth=2)


def test_group_conv_learns():
    "Gradients reach every weight."
    torch.manual_seed(0)
    model = GCNN(channels=3, turns=8)
    model(torch.rand(4, 1, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize('name', ['cnn', 'vit'])
@pytest.mark.parametrize('wrap', [lambda m: RotationAveraged(m, 4), lambda m: RotationAveraged(m, 8), FrameAveraged], ids=['4', '8', 'frame'])
def test_wrappers_are_exact_around_any_network(name, wrap):
    model, x = made(name)
    model, x = model.double(), x.double()
    assert turn_error(wrap(model), x) < 1e-11 < 1e-2 < turn_error(model, x)


def test_averages_are_probabilities():
    model, x = made('cnn')
    with torch.no_grad():
        assert torch.allclose(RotationAveraged(model, 5)(x).exp().sum(1), torch.ones(4), atol=1e-5)
        assert torch.allclose(RotationAveraged(model, 1)(x), model(x).log_softmax(1), atol=1e-5)
        wide = torch.rand(2, 1, 32, 40)
        assert torch.allclose(RotationAveraged(model, 4)(wide.rot90(1, (-2, -1))), RotationAveraged(model, 4)(wide), atol=1e-5)


def test_no_direction_is_no_fault():
    "A black image and a symmetric one have no brightest side."
    model, _ = made('cnn')
    for x in (torch.zeros(2, 1, 32, 32), torch.ones(2, 1, 32, 32)): assert FrameAveraged(model)(x).isfinite().all()


@pytest.mark.parametrize('encoding', ['gsa', 'ge'])
@pytest.mark.parametrize('window, crop', [(3, 0), (3, 1), (5, 0), (5, 1), (5, 2)])
def test_group_attention_of_any_size(encoding, window, crop):
    torch.manual_seed(window + crop)
    layer = GroupAttention(6, 4, 3, 5, window, crop, encoding).double()
    lift = GroupAttention(2, 6, 2, 4, window, encoding=encoding, lift=True).double()
    x = torch.rand(2, 1, 9, 12, 2, dtype=torch.float64)
    def turned(z, q): return rotate_group(z.movedim(-1, 1), q).movedim(1, -1)
    with torch.no_grad():
        z = layer(lift(x))
        assert z.shape == (2, 4, 9 - 2*crop, 12 - 2*crop, 4) and (z - z.mean((1, 2, 3), keepdim=True)).abs().max() > 1e-3
        for q in (1, 2, 3): assert rel_error(layer(lift(x.rot90(q, (2, 3)))), turned(z, q)) < 1e-12


def test_group_attention_refuses_and_learns():
    with pytest.raises(ValueError, match="encoding is 'ge' or 'gsa'"): GroupAttention(4, 4, encoding='vit')
    small = dict(channels=4, heads=2, head_dim=6, window=3)
    with pytest.raises(ValueError, match='even sizes'): GroupTransformer(**small, crops=((1,), (0,)))(torch.rand(2, 1, 13, 13))
    with pytest.raises(ValueError, match='too few to crop'): GroupTransformer(**small, crops=((1,), (1,)))(torch.rand(2, 1, 6, 6))
    torch.manual_seed(0)
    model = GroupTransformer(**small, crops=((1,), (0,)))
    (model(torch.rand(4, 1, 12, 12))*torch.randn(10)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    silent = [n for n, p in model.named_parameters() if p.grad.abs().max() == 0]
    assert silent == []


def test_upright_around_a_named_network():
    "The same answer for all quarter turns; only the estimator learns; both are in the state."
    torch.manual_seed(0)
    vit, x = made('vit')
    model = Upright(vit, OrientationNet(channels=(2, 4), kernel_size=7)).double()
    x = x.double()
    before = {k: v.clone() for k, v in vit.state_dict().items()}
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], .1)
    model.train()(x).square().sum().backward()
    opt.step()
    assert all(torch.equal(v, before[k]) for k, v in vit.state_dict().items())
    assert turn_error(model.eval(), x) < 1e-10 < 1e-2 < turn_error(vit, x)
    assert {k.split('.')[0] for k in model.state_dict()} == {'backbone', 'estimator'}


@pytest.mark.parametrize('degrees', [0., 33., 90., 200.])
def test_rotated_back_is_where_it_was(degrees):
    x = analytic_image((40, 40), degrees, batch=2)
    u = torch.polar(torch.ones(2, dtype=torch.float64), torch.full((2,), degrees, dtype=torch.float64).deg2rad())
    assert rel_error(rotate_back(x, u), analytic_image((40, 40), batch=2)) < (1e-12 if degrees % 90 == 0 else .05)
