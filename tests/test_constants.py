"""Derived constants (bases, spectra, masks, distances) survive whatever mode the model meets first. Each case uses a kernel size
of its own, so that nothing is in the cache when it begins."""
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from harmformer.constants import alone, derived
from harmformer.core import create_model


def tiny(kernel_size, size):
    torch.manual_seed(0)
    return create_model(channels=(2, 2), kernel_size=kernel_size, rings=2, img_size=size, depth=1, head_dim=4, dropout=0.), torch.rand(2, 1, size, size)


def under_fake_tensors(kernel_size, size):
    with FakeTensorMode() as mode:
        model, _ = tiny(kernel_size, size)
        model.eval()(torch.empty(2, 1, size, size))


def under_export(kernel_size, size):
    model, x = tiny(kernel_size, size)
    torch.export.export(model.eval(), (x,), strict=True)


def under_inference(kernel_size, size):
    model, x = tiny(kernel_size, size)
    with torch.inference_mode(): model(x)


def on_meta(kernel_size, size):
    with torch.device('meta'): tiny(kernel_size, size)


def in_threads(kernel_size, size):
    model, x = tiny(kernel_size, size)
    with ThreadPoolExecutor(4) as pool: answers = list(pool.map(deepcopy(model).eval(), [x]*4))
    assert all(torch.equal(a, answers[0]) for a in answers)


@pytest.mark.parametrize('kernel_size, size, first', [(7, 12, under_fake_tensors), (9, 20, under_export), (11, 24, under_inference),
                                                      (13, 28, on_meta), (17, 36, in_threads)], ids=lambda o: getattr(o, '__name__', ''))
def test_trains_after(kernel_size, size, first):
    first(kernel_size, size)
    model, x = tiny(kernel_size, size)
    y = model(x)
    assert type(y) is torch.Tensor and y.isfinite().all()
    y.square().sum().backward()
    assert all(type(p.grad) is torch.Tensor and p.grad.isfinite().all() for p in model.parameters())


def test_an_ordinary_cache_would_be_spoilt():
    from functools import lru_cache
    plain = lru_cache(lambda n: torch.arange(n, dtype=torch.float64))
    safe = derived(lambda n: torch.arange(n, dtype=torch.float64))
    with FakeTensorMode(): plain(3), safe(3, like=torch.empty(1))
    assert type(plain(3)) is not torch.Tensor
    assert torch.equal(safe(3, like=torch.empty(1)), torch.tensor([0., 1, 2]))


def test_precision_device_and_integers():
    numbers, counts = derived(lambda n: torch.arange(n)/3.), derived(lambda n: torch.arange(n))
    assert numbers(4, like=torch.zeros(1, dtype=torch.float64)).dtype == torch.float64 and counts(4, like=torch.zeros(1)).dtype == torch.int64
    assert numbers(4, like=torch.zeros(1, device='meta')).device.type == 'meta'
    like = torch.zeros(1)
    assert numbers(4, like=like) is numbers(4, like=like)


def test_errors_come_through_and_are_not_kept():
    calls = []
    @alone
    def fails(n): calls.append(n); raise ValueError('no such constant')
    for _ in range(2):
        with pytest.raises(ValueError, match='no such constant'): fails(1)
    assert calls == [1, 1]
