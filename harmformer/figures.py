"""Figures of a notebook, sharp and small: `%load_ext harmformer.figures` draws two pixels for each one of the page, in few colours."""

__all__ = ['sharp_png', 'load_ipython_extension']

from io import BytesIO

import numpy as np
from PIL import Image

INCH = 96  # pixels of a page: CSS calls this an inch, so text of 8 points has 8 points


def _few_colours(image):
    "The image in 256 colours if that is not visible, as for curves; otherwise in 32 levels of red, green and blue."
    old = np.asarray(image, dtype=float)
    palette = image.quantize(256, kmeans=1, dither=Image.Dither.NONE)
    if np.quantile(abs(np.asarray(palette.convert('RGB')) - old).max(-1), .99) < 8: return palette
    return Image.fromarray(((old*31/255).round()*255/31).round().astype('uint8'))


def sharp_png(
    fig,             # of matplotlib
    scale:int=2,     # pixels of the picture for each one of the page
)->tuple:            # PNG as bytes, and {'width', 'height'} in pixels of the page
    "A figure as a picture of its own size in inches, whatever its dpi"
    file, small = BytesIO(), BytesIO()
    fig.savefig(file, format='png', dpi=scale*INCH, bbox_inches='tight', facecolor=fig.get_facecolor())
    drawn = Image.open(file).convert('RGBA')
    image = Image.new('RGB', drawn.size, 'white')
    image.paste(drawn, mask=drawn.getchannel('A'))
    _few_colours(image).save(small, 'png', optimize=True, dpi=(scale*INCH,)*2)
    return small.getvalue(), {'width': image.width//scale, 'height': image.height//scale}


def load_ipython_extension(shell):
    "What `%load_ext harmformer.figures` does: from here on, figures are shown as `sharp_png` draws them."
    import matplotlib_inline.backend_inline  # noqa: F401  registers its own way of showing figures, once
    from matplotlib.figure import Figure
    shell.display_formatter.formatters['image/png'].for_type(Figure, sharp_png)
