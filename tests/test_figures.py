"""The pictures of notebooks (harmformer.figures): sharp, small, white, with their colours."""
import base64, io

import nbformat, numpy as np, pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient
from PIL import Image

from harmformer.figures import _few_colours, sharp_png


@pytest.mark.parametrize('draw', ['_ = plt.figure(figsize=(3, 2), dpi=50); plt.plot([1, 2]);',
                                  'fig, ax = plt.subplots(figsize=(3, 2))\nax.plot([1, 2])\nplt.close(fig)\nfig'])
def test_figures_are_sharp(make_nb, draw):
    "Shown by the end of a cell or as its value: two pixels for each one of the page, whatever the figure's dpi."
    nb = nbformat.read(make_nb('00_a', 'import matplotlib.pyplot as plt', '%load_ext harmformer.figures', draw), 4)
    NotebookClient(nb, kernel_name='python3').execute()
    shown = [o for o in nb.cells[-1].outputs if 'image/png' in o.data]
    png = base64.b64decode(shown[0].data['image/png'])
    image, size = Image.open(io.BytesIO(png)), shown[0].metadata['image/png']
    assert len(shown) == 1 and len(png) < 10_000
    assert abs(image.width - 2*size['width']) <= 1 and abs(image.height - 2*size['height']) <= 1 and 250 < size['width'] < 300


def test_transparent_and_empty_figures_are_white():
    for facecolor in ('none', 'w'):
        png, size = sharp_png(Figure(figsize=(2, 1), facecolor=facecolor))
        image = Image.open(io.BytesIO(png)).convert('RGB')
        assert image.getcolors() == [(image.width*image.height, (255, 255, 255))] and image.width == 2*size['width'] > 0


def test_figures_keep_their_colours():
    "A photograph has more than 256 colours: it keeps all hues, to a 64th."
    rows, cols = np.mgrid[:256, :256]
    smooth = np.stack([rows, cols, 255 - rows//2 - cols//2], -1).astype('uint8')
    for array, mode in ((smooth, 'RGB'), (smooth//200*200, 'P')):
        small = _few_colours(Image.fromarray(array))
        assert small.mode == mode and abs(np.asarray(small.convert('RGB')).astype(int) - array).max() <= 4
