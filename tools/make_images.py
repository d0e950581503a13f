"""Makes the site's small pictures from the project's own: python3 tools/make_images.py, by hand.

nbs/images/favicon.png is a circular harmonic (hue is phase); nbs/images/card.png is what a link to the site shows:
two frames of nbs/images/turning.gif below the title; nbs/images/small-data.png is the first figure of 27_small_data,
as the notebook holds it: make it again when that notebook has run on new rows."""
import base64, json
from pathlib import Path

import matplotlib, numpy as np
from matplotlib.colors import hsv_to_rgb
from PIL import Image, ImageDraw, ImageFont

IMAGES = Path(__file__).parent.parent/'nbs'/'images'
FONTS = Path(matplotlib.get_data_path())/'fonts'/'ttf'


def favicon(size=64):
    "e^{iθ}, once around a disc that fades at its rim and at its centre."
    y, x = np.mgrid[1:-1:size*1j, -1:1:size*1j]
    r, phase = np.hypot(x, y), np.arctan2(y, x)/(2*np.pi) % 1
    colour = hsv_to_rgb(np.stack([phase, 0.85 + 0*r, 0.95 + 0*r], -1))
    alpha = np.clip((1 - r)*size/4, 0, 1)*np.clip((r - 0.25)*size/4, 0, 1)
    return Image.fromarray((255*np.dstack([colour, alpha])).astype(np.uint8))


def card(frames=(0, 4)):
    "1200×630, the shape that open-graph and twitter cards show uncut."
    out = Image.new('RGB', (1200, 630), '#16181d')
    draw, font = ImageDraw.Draw(out), lambda name, size: ImageFont.truetype(FONTS/f'{name}.ttf', size)
    draw.text((60, 28), 'harmformer', 'white', font('DejaVuSans-Bold', 60))
    draw.text((60, 112), 'A transformer that rotates with its image', '#b8c4d6', font('DejaVuSans', 32))
    gif = Image.open(IMAGES/'turning.gif')
    for row, frame in enumerate(frames):
        gif.seek(frame)
        strip = gif.convert('RGB').crop((8, 27, 712, 164))
        strip = strip.resize((1080, 209), Image.NEAREST)
        out.paste(strip, (60, 178 + row*216))
    return out.quantize(128)  # flat colours: a quarter of the bytes


def small_data(cell='sd2707'):
    "The picture that a cell of 27_small_data shows, as bytes."
    nb = json.loads((IMAGES.parent/'27_small_data.ipynb').read_text(encoding='utf-8'))
    outputs = next(c['outputs'] for c in nb['cells'] if c['id'] == cell)
    return base64.b64decode(''.join(next(o['data']['image/png'] for o in outputs if 'image/png' in o['data'])))


if __name__ == '__main__':
    (IMAGES/'small-data.png').write_bytes(small_data())
    favicon().save(IMAGES/'favicon.png', optimize=True)
    card().save(IMAGES/'card.png', optimize=True)
