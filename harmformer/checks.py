"""What models refuse: arguments out of range, images that cannot be answered, files that ask for too much. Layers need not look again."""

__all__ = ['RANGES', 'check_arguments', 'guard', 'Budget']

import math
from numbers import Integral, Real
from types import NoneType
from typing import Any
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from harmformer.model import Harmformer
from harmformer.rivals import PlainCNN, PlainUNet, PlainViT

RANGES = dict( # what arguments may be; a float as the limit admits floats
    num_classes=(1, 10**6), out_channels=(1, 10**4), in_channels=(1, 10**4), img_size=(1, 10**4),
    channels=(1, 10**4), convs=(1, 100), depth=(0, 1000), heads=(1, 10**3), head_dim=(1, 10**4), dim=(1, 10**5),
    patch=(1, 10**3), kernel_size=(1, 255), rings=(1, 100), upscale=(1, 16), chunk=(1, 10**9),
    mlp_ratio=(1e-3, 1e3), norm_eps=(1e-30, 1e30), dropout=(0., .999), stem_dropout=(0., .999))


def _is(o, kind): return isinstance(o, kind) and not isinstance(o, bool)


def check_arguments(name:str, arguments:dict):
    "Say which argument of a model is out of range, before anything is made"
    for k in ('mask', 'norm', 'stats', 'layer_norm', 'mixing', 'rpe', 'engine'):
        if not isinstance(arguments.get(k), (str, NoneType)): raise ValueError(f'{name}: {k} is a word or None, not {arguments[k]!r}')
    if not isinstance(arguments.get('reflections', False), bool):
        raise ValueError(f"{name}: reflections is True or False, not {arguments['reflections']!r}")
    for k, v in arguments.items():
        if k not in RANGES or (v is None and k == 'chunk'): continue
        low, high = RANGES[k]
        many:Any = v if isinstance(v, (tuple, list)) else (v,)
        if not many: raise ValueError(f'{name}: {k} is empty; it needs at least one number')
        kind = Real if isinstance(high, float) else Integral
        if bad := [o for o in many if not (_is(o, kind) and low <= o <= high)]:
            what = 'a number' if kind is Real else 'a whole number'
            raise ValueError(f'{name}: {k} is {what} from {low:g} to {high:g}, not {bad[0]!r}')
    if arguments.get('rings', 1) > arguments.get('kernel_size', 1):
        raise ValueError(f"{name}: {arguments['rings']} rings do not fit into {arguments['kernel_size']} pixels")
    if 'patch' in arguments and arguments['depth'] < 1: raise ValueError(f'{name}: depth is at least 1')
    if arguments.get('dim', 1) % (arguments.get('heads') or 1) and 'patch' in arguments:
        raise ValueError(f'{name}: heads has to divide dim')
    if 'patch' in arguments and isinstance(arguments['img_size'], int) and arguments['patch'] > arguments['img_size']:
        raise ValueError(f'{name}: a patch is larger than the image')


def _check_images(module, args):
    "Say what is wrong with the images that a model gets; nothing is asked while it is compiled or exported"
    if torch.compiler.is_compiling() or not args: return
    x, p = args[0], next(module.parameters(), None)
    if not isinstance(x, torch.Tensor):
        raise TypeError(f'images are a tensor (b, c, h, w), not a {type(x).__name__}: torch.as_tensor makes one')
    if p is None: return
    if p.dtype not in (torch.float32, torch.float64):
        raise TypeError(f'the model computes in float32 or float64, not in {p.dtype}: call model.float()')
    if x.dtype != p.dtype:
        raise TypeError(f'images are {x.dtype}, the weights {p.dtype}: convert one of them, for instance by x.to(torch.float32)')
    if x.ndim != 4: raise ValueError(f'images (b, c, h, w) expected, got {tuple(x.shape)}')
    config, (h, w) = getattr(module, 'config', {}), x.shape[-2:]
    if x.shape[1] != config.get('in_channels', x.shape[1]):
        raise ValueError(f"images with {config['in_channels']} channels expected, got {tuple(x.shape)}")
    if isinstance(module, PlainViT) and {h, w} != {config['img_size']}:
        raise ValueError(f"vit takes images of {config['img_size']} pixels, not of {h}×{w}")
    least = 2**len(config['channels']) if isinstance(module, PlainCNN) else 2*module.multiple if isinstance(module, PlainUNet) else 1
    if min(h, w) < least and x.numel(): raise ValueError(f'{h}×{w} pixels are too few: at least {least} are needed')
    if isinstance(module, PlainUNet) and (h % module.multiple or w % module.multiple):
        raise ValueError(f'{h}×{w} pixels: both sides have to be multiples of {module.multiple}')
    if not x.numel(): raise ValueError(f'there are no images in {tuple(x.shape)}: give at least one')
    if module.training and len(x) == 1 and isinstance(module, Harmformer):
        raise ValueError('training needs at least two images in a batch: give more, or call eval()')


def _check_answer(module, args, answer):
    "Say so if finite images lead to an answer that is not: they were too large for the precision"
    if torch.compiler.is_compiling() or not isinstance(answer, torch.Tensor): return
    try: finite = bool(answer.isfinite().all())
    except RuntimeError: return                 # under vmap, or with fake tensors, nobody knows
    if not finite and args and bool(args[0].isfinite().all()):
        raise FloatingPointError(f'the answer is not finite: images up to {args[0].abs().max():.0e} are too large. Scale them')


def guard(model):
    "Let a model say what is wrong with its images, and whether its answer is finite"
    model.register_forward_pre_hook(_check_images)
    model.register_forward_hook(_check_answer)
    return model


class Budget(TorchDispatchMode):
    "Refuses tensors that are larger than what a file of weights can need, before they are allocated"
    def __init__(self, tensors):
        super().__init__()
        self.limit = max(2**22, 8*sum(v.numel() for v in tensors.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sizes = [math.prod(a) for a in args if isinstance(a, (list, tuple)) and all(isinstance(o, int) for o in a)]
        if max(sizes, default=0) > self.limit: raise ValueError('its arguments ask for far more memory than its weights have')
        self.limit -= sum(sizes)//64                    # many small ones are large, too
        return func(*args, **(kwargs or {}))
