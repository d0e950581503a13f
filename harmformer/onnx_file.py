"""An `.onnx` file that 18_export wrote, as a function of images. Needs onnxruntime, but none of the code that makes models."""

__all__ = ['OnnxModel', 'need_extra']

import json, re
from importlib.util import find_spec
from pathlib import Path
import torch
from harmformer.system import in_a_line


def need_extra(*names:str): # of packages
    "Say before any work which package of the extra `export` is missing"
    if lost := [n for n in names if find_spec(n) is None]:
        verb = 'is' if len(lost) == 1 else 'are'
        raise ImportError(f"{' and '.join(lost)} {verb} not installed: pip install 'harmformer[export]'")


class OnnxModel:
    "A file of `export_onnx` as a function of images"
    training = False

    def __init__(self,
        path,           # of the file
        threads:int=0,  # 0: onnxruntime chooses
    ):
        need_extra('onnxruntime')
        self.path, self.session = Path(path), _session(path, threads)
        said = self.session.get_modelmeta().custom_metadata_map
        if said.get('format') != 'harmformer':
            raise ValueError(f'{path} was not written by export_onnx: it does not say what its images are. Use harmformer_export.')
        self.about = {k: json.loads(v) for k, v in said.items() if k != 'format'}
        self.names = [o.name for o in self.session.get_outputs()]
        known = {k: self.about[k] for k in ('vocab', 'mean', 'std') if k in self.about}
        self.provenance = {**self.about['provenance'], **known}
        channels, *self.img_size = self.about['size']
        self.config = {**self.about['model'], 'img_size': self.img_size, 'in_channels': channels}
        if self.about['multiple']: self.multiple = self.about['multiple']

    def _run(self, names, x):
        want = self.session.get_inputs()[0].shape  # words where any number will do
        if x.ndim != 4 or any(isinstance(n, int) and n != k for n, k in zip(want, x.shape)):
            said = re.sub(r'\bs\d+', 'n', ', '.join(map(str, want)))  # torch calls a number that is open s34
            raise ValueError(f'{self.path} takes images ({said}), got {tuple(x.shape)}')
        return map(torch.from_numpy, self.session.run(names, {'images': x.detach().cpu().float().numpy()}))

    def answers(self, x)->dict: # {name: tensor}
        "Every output of the graph"
        return dict(zip(self.names, self._run(self.names, x)))

    def __call__(self, x): return next(self._run(['logits'], x))

    # what the functions that evaluate a model ask of it
    def parameters(self): return iter([torch.zeros(1)])
    def modules(self): return iter([])
    def eval(self): return self
    def train(self, mode=True): return self
    def to(self, *args): return self


def _session(path, threads):
    import onnxruntime as ort
    if not Path(path).is_file(): raise FileNotFoundError(f'{path} is missing or no file: correct the name')
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    try: return ort.InferenceSession(str(path), options, ['CPUExecutionProvider'])
    except Exception as e:  # a damaged file can fail in any way
        raise ValueError(f'{path} is damaged or no ONNX file ({in_a_line(e)}): export it again') from e
