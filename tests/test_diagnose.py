"""The instruments on shapes, models and machines that 15_diagnose, 16_see and 17_orientation do not show."""
import sys
import matplotlib.pyplot as plt
import pytest, torch
from torch import nn
from harmformer.class_report import polar
from harmformer.core import analytic_image, create_model, rotate_image
from harmformer.diagnose import he_report
from harmformer.evaluate import plot_polar
from harmformer.orientation import relative_angle
from harmformer.see import brightest, explore, follows, turned_view, turning_animation, turning_figure

SMALL = dict(channels=(2, 4), kernel_size=7, rings=2, img_size=16, depth=2, heads=2, head_dim=4)
VARIANTS = [dict(img_size=(16, 24)), dict(orders=(0, 1)), dict(mixing='all'), dict(keep_phase=True), dict(depth=0), dict(in_channels=3), dict(dropout=.5, stem_dropout=.5)]


def model_and_images(train=False, **kw):
    torch.manual_seed(0)
    model = create_model(**{**SMALL, **kw}).double().train(train)
    return model, analytic_image(model.img_size, channels=model.stem.in_channels, batch=5)


@pytest.mark.parametrize('train', [False, True])
@pytest.mark.parametrize('kw', VARIANTS, ids=str)
def test_quarter_turns_are_exact(kw, train):
    model, x = model_and_images(train, **kw)
    for layers in (False, True):
        report = he_report(model, x, (90, 180), layers=layers, bs=2)
        assert report.table.error.max() < 1e-10 and report.culprit is None and model.training == train
    assert set(report.table.order) == {0, *model.orders}


@pytest.mark.parametrize('block', [0, 1])
def test_a_wrong_sign_is_found_where_it_is(block):
    model, x = model_and_images(dropout=0.)
    model.stem.blocks[block].convs[1].register_forward_hook(lambda m, args, z: torch.stack([z[0], -z[1]]))
    assert he_report(model, x, (45, 90)).culprit == f'block {block + 1}'
    assert he_report(model, x, (45, 90), layers=True).culprit == f'stem.blocks.{block}.convs.1'


def test_any_module():
    class Odd(nn.Module):
        "Children that give out a tuple, a map, a vector."
        def __init__(self):
            super().__init__()
            self.lstm, self.conv, self.out = nn.LSTM(16, 4), nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3, 2)
        def forward(self, x):
            self.lstm(x[0])
            return self.out(self.conv(x).mean((2, 3)))
    report = he_report(Odd(), torch.rand(3, 1, 16, 16), (30, 90))
    assert list(report.by_stage().index) == ['conv', 'out'] and report.culprit == 'conv'
    assert 'culprit: conv' in repr(report) and 'culprit: conv' in report._repr_html_()


def test_bar_only_where_asked_for(capfd):
    model, x = model_and_images()
    he_report(model, x, (90,))
    assert capfd.readouterr() == ('', '')
    he_report(model, x, (90,), progress=True)
    assert ''.join(capfd.readouterr())


@pytest.mark.parametrize('kw', [dict(mixing='all'), dict(keep_phase=True), dict(in_channels=3), dict(orders=(0, 1)), dict(img_size=(16, 24))], ids=str)
def test_views_of_variants(kw, tmp_path):
    model, x = model_and_images(**kw)
    model.eval()
    turning_figure(model, x[0], (0, 90))
    assert turning_animation(model, x[0], tmp_path/'sub'/'a.gif', step=90).stat().st_size
    q = brightest(model, x[0])
    a, b = [turned_view(model, x[0], d, q)['attention'] for d in (0, 180)]
    assert follows(a, b, 180) > .999999


def test_slider_and_its_stand_in(monkeypatch):
    model, x = model_and_images()
    model.eval()
    slider = explore(model, x[0], live=True)
    slider.children[0].value = 90
    slider.update()
    assert slider.result.axes[0].get_title() == '90°'
    assert isinstance(explore(model, x[0]), plt.Figure)
    monkeypatch.setenv('JPY_SESSION_NAME', 'a.ipynb')
    assert not isinstance(explore(model, x[0]), plt.Figure)
    monkeypatch.setitem(sys.modules, 'ipywidgets', None)
    assert isinstance(explore(model, x[0], live=True), plt.Figure)


def test_relative_angle_of_what_was_turned_before():
    model, x = model_and_images()
    model.eval()
    a, b = rotate_image(x, 90), rotate_image(x, 180)
    assert (relative_angle(model, a, b) - 90).abs().max() < 1e-6 and (relative_angle(model, b, a) + 90).abs().max() < 1e-6


def test_the_report_of_a_run_draws_the_same_figure():
    acc = {0.: .9, 90.: .5, 180.: .7, 270.: .4}
    a, b = [f.axes[0].lines[0].get_ydata().tolist() for f in (polar(dict(cnn=acc)), plot_polar(dict(cnn=acc), n=100))]
    assert a == b == [.9, .5, .7, .4, .9]
