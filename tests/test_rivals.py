"""The rivals by name: timm's surface, sizes, quarter turns in double and single precision, files; and wrappers of any network."""
import pytest, torch
from harmformer.averaging import FrameAveraged, RotationAveraged
from harmformer.core import MODELS, create_model, load_model, save_model
from harmformer.gallery import RIVALS
from harmformer.group_conv import GCNN, GroupConv2d, LiftConv2d, rotate_group
from harmformer.fields import rel_error

PLAIN = ('cnn', 'vit', 'unet', 'resnet18')
EXACT = [n for n, c in RIVALS.items() if c.exact.startswith('quarter turns')]
MAPS = [n for n in (*PLAIN, *RIVALS) if 'unet' in n]


def made(name, **kw):
    "A model of that name in eval mode whose running statistics are those of some images, and other images."
    torch.manual_seed(0)
    model = create_model(name, **kw)
    for m in model.modules():
        if hasattr(m, 'momentum'): m.momentum = 1.
    x = torch.rand(6, *model.default_cfg['input_size'])
    with torch.no_grad(): model.train()(x)
    return model.eval(), torch.rand(4, *model.default_cfg['input_size'])


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


def test_names_and_cards():
    assert set(RIVALS) < set(MODELS)
    assert all(c.whose and c.what and c.figure and c.exact for c in RIVALS.values())


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
