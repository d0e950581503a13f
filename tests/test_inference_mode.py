"""Whatever is cached in inference mode must serve training afterwards."""
import subprocess, sys

CODE = '''
import torch
from harmformer.core import create_model
model, x = create_model(channels=(2, 2), kernel_size=7, rings=2, img_size=16, depth=1, head_dim=4), torch.rand(2, 1, 16, 16)
with torch.inference_mode(): model(x)
model(x).sum().backward()
'''


def test_inference_mode_first_then_training():
    out = subprocess.run([sys.executable, '-c', CODE], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
