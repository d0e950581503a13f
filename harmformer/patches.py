"""Random patches of whole pictures, cut when they are needed; 12_data shows them and proves what they promise."""

__all__ = ['Patches', 'PatchSet']

import copy, math
from typing import Any
import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as TF
from harmformer.fields import rotate_image
from harmformer.files import DataError
from harmformer.system import random_stream


def _tint(x, factors, stretch):
    "Brightness, contrast and saturation of images in [0, 1] changed by `factors` (b, 3); those to `stretch` get full contrast"
    def one(x, b, c, s): return TF.adjust_saturation(TF.adjust_contrast(TF.adjust_brightness(x, b), c), s)
    x = torch.stack([one(o, *f) for o, f in zip(x, factors.tolist())])
    x[stretch] = TF.autocontrast(x[stretch])
    return x


class Patches:
    "`n` random patches of pictures, with their masks as targets; which they are is a function of `key`"
    layout = 3, .55
    batch:Any
    drawn:Any       # what is random in all patches, from a stream of random numbers
    def __init__(self, stream, vocab, n, size, augment, key, turn):
        self.stream, self.vocab, self.n, self.size, self.augment, self.key, self.turn = stream, vocab, n, size, augment, key, turn
        self.window = 2*math.ceil(size/2*2**.5) if turn else size               # a turned patch needs its surroundings
        self.margin = (self.window - size)//2
        self._drawn:Any = None, None                                            # key and what was drawn for it

    def __len__(self): return self.n
    def __getitem__(self, i): return tuple(o[0] for o in self.batch([i]))

    def draw(self, key):
        "What is `drawn` for `key`, remembered until another one comes"
        key = self.key or key
        if self._drawn[0] != key: self._drawn = key, self.drawn(random_stream(self.stream, *key))
        return self._drawn[1]

    def show(self, ax, x, y, pred=None):
        "A patch, its mask and the predicted mask, side by side"
        def grey(o): return (o.float()/(len(self.vocab) - 1)).reshape(1, *o.shape[-2:])
        maps = [o.detach().cpu().expand(3, -1, -1) for o in (x, grey(y), *([] if pred is None else [grey(pred)]))]
        ax.imshow(torch.cat(maps, -1).clamp(0, 1).permute(1, 2, 0))


class PatchSet(Patches):
    "`n` random patches of whole images of one size, with their masks as targets; which they are is a function of `key`"
    def __init__(self,
        items,              # as of read_drive, all of one size
        n:int,              # patches
        size:int=64,        # of a patch
        augment:bool=False, # flips, colours and contrast at random
        key=None,           # words that fix the patches; None: the key of each batch does
        turn:bool=False,    # each patch by its own angle
    ):
        super().__init__('patches', ['background', 'vessel'], n, size, augment, key, turn)
        for i in items:
            if i['image'].shape != items[0]['image'].shape or min(i['image'].shape[1:]) <= size:
                raise DataError(f'{i["name"]} has {i["image"].shape[2]}×{i["image"].shape[1]} pixels: '
                                'all must be of one size, and larger than the patches.')
        maps = torch.stack([torch.cat([i['image'], i['mask']]) for i in items])*255
        self.maps = F.pad(maps.round().byte(), (self.margin,)*4).permute(0, 2, 3, 1).contiguous()          # (k, h, w, 4)
        h = size//2
        self.corners = torch.stack([i['fov'][0, h:h-size, h:h-size] for i in items]).nonzero().int()       # (many, 3)

    def new_empty(self):
        res = copy.copy(self)
        res.n, res._drawn, res.maps, res.corners = 0, (None, None), self.maps[:0].clone(), self.corners[:0].clone()
        return res

    def drawn(self, rng):
        "Corners (n, 3) as image, row, column; and six more numbers from U[0, 1) per patch (n, 6)"
        u = torch.from_numpy(rng.random_sample((self.n, 7)))
        return self.corners[(u[:, 0]*len(self.corners)).long()].long(), u[:, 1:]

    def cut(self, where, flip=None):
        "Windows (b, 4, window, window) of image and mask at `where` (b, 3); `flip` (b, 2) reads rows and columns backwards"
        k, row, col = where.T[..., None, None]
        i = torch.arange(self.window).expand(2, len(where), -1)
        if flip is not None: i = torch.where(flip.T[..., None], i.flip(-1), i)
        return self.maps[k, row + i[0][:, :, None], col + i[1][:, None]].permute(0, 3, 1, 2).contiguous()

    def batch(self, idxs, key=(0, 0)):
        "Patches (b, 3, size, size) and masks (b, 1, size, size), in [0, 1]"
        where, u = [o[torch.as_tensor(idxs)] for o in self.draw(key)]
        z, o = self.cut(where, u[:, :2] < .5 if self.augment else None), self.margin
        if self.turn: z = rotate_image(z.double(), 360*u[:, 0]).round()[..., o:o+self.size, o:o+self.size]
        x, y = z[:, :3].float()/255, (z[:, 3:] > 127).float()
        return (_tint(x, 1 + .4*(u[:, 2:5] - .5), u[:, 5] < .5) if self.augment else x), y
