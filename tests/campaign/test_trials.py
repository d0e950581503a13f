"""Random calls and damaged files, as `run.py torture` tries them by the thousand: right, or a sentence of our own."""
import warnings
import pytest, torch, trials
from hypothesis import HealthCheck, given, settings, strategies as st

LIMITS = settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope='module')
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield


@pytest.mark.parametrize('trial', [trials.call_model, trials.damage_file])
@LIMITS
@given(rng=st.randoms(use_true_random=False))
def test_right_or_refused(trial, rng):
    how, what = trial(rng)
    assert how in ('right', 'clear error'), what


def test_the_referee_sees_what_is_wrong(monkeypatch):
    "Each of these would be counted: a silent NaN, an answer that turns, an error from deep inside, weights that changed."
    def silent(): return 'silent wrong', ''
    assert trials.outcome(silent)[0] == 'silent wrong' and trials.outcome(lambda: 1/0)[0] == 'unclear'
    assert trials.outcome(lambda: torch.zeros(2) @ torch.zeros(3))[0] == 'unclear'
    assert trials.outcome(lambda: trials.create_model('harmformer_mnist', heads=0))[0] == 'clear error'

    class Upright(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.p = dict(in_channels=1, img_size=16, num_classes=1), torch.nn.Parameter(torch.ones(1))
        def forward(self, x): return x[:, 0, :8].sum((1, 2))[:, None]*self.p
    monkeypatch.setattr(trials, 'create_model', lambda name, **_: Upright())
    monkeypatch.setattr(trials, '_images', lambda *_: (torch.rand(2, 1, 16, 16), ''))
    found = {trials.call_model(trials.random.Random(i)) for i in range(40)}
    assert any(how == 'silent wrong' and 'quarter turn' in what for how, what in found)
