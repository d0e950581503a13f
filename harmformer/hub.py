"""Models on the Hugging Face hub, or in a folder laid out as there. Needs huggingface_hub, which the library itself does not."""

__all__ = ['HubModel']

import json
from pathlib import Path
from torch import nn
from harmformer.core import load_model, model_card, save_model
try: from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
except ImportError as e: raise ImportError("huggingface_hub is not installed: pip install 'harmformer[hub]'") from e

FILE = 'model.safetensors'


class HubModel(nn.Module, PyTorchModelHubMixin, library_name='harmformer', tags=['equivariance'], license='apache-2.0'):
    "A model of `create_model` with `save_pretrained`, `push_to_hub` and `from_pretrained`; its file is that of `save_model`"
    def __init__(self,
        model:nn.Module, # of create_model or load_model
    ):
        super().__init__()
        self.model = model

    def forward(self, x): return self.model(x)

    def _save_pretrained(self, save_directory):
        known = {k: v for k, v in getattr(self.model, 'provenance', {}).items() if k != 'sha256'}
        folder, head = Path(save_directory), '---\nlibrary_name: harmformer\nlicense: apache-2.0\n---\n\n'
        save_model(self.model, folder/FILE, **known)
        (folder/'config.json').write_text(json.dumps(self.model.config), encoding='utf-8')
        (folder/'README.md').write_text(head + model_card(folder/FILE) + '\n', encoding='utf-8')

    @classmethod
    def _from_pretrained(cls, *, model_id, **kwargs):
        hub = {k: kwargs.pop(k) for k in ('revision', 'cache_dir', 'force_download', 'local_files_only', 'token') if k in kwargs}
        for k in ('config', 'map_location', 'strict', 'proxies', 'resume_download'): kwargs.pop(k, None)
        here = Path(model_id)/FILE
        return cls(load_model(here if here.is_file() else hf_hub_download(model_id, FILE, **hub), **kwargs))
