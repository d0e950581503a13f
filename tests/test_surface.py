"""What users of timm, fastai and the hub expect, as they would write it."""
import pydoc, subprocess, sys, warnings
from pathlib import Path

import pytest, torch
from fastai.learner import load_learner
from PIL import Image
import harmformer
from harmformer.core import MODELS, create_model, load_model, model_names, own_weights
from harmformer.data import benchmark_dls
from harmformer.train import harmformer_learner

TINY = dict(channels=(2, 4), depth=1, head_dim=4, kernel_size=7, rings=2)


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    "A folder of three classes: bars that lie, bars that stand, and squares."
    folder = tmp_path_factory.mktemp('shapes')
    for name, (w, h) in dict(lying=(20, 4), standing=(4, 20), square=(12, 12)).items():
        (folder/name).mkdir()
        for i in range(10):
            im = Image.new('L', (40, 40), 10)
            im.paste(200 + i, (20 - w//2, 20 - h//2, 20 + w//2, 20 + h//2))
            im.save(folder/name/f'{i}.png')
    return folder


@pytest.mark.parametrize('name', [n for n in model_names() if MODELS[n][2]])
def test_pretrained_true_is_the_models_own(name):
    model = create_model(name, pretrained=True)
    assert model.training and model.config['name'] == name
    fresh = create_model(name)
    assert fresh.training and fresh.default_cfg['classifier'] == model.default_cfg['classifier']
    saved = load_model(own_weights(name))
    assert not saved.training and all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), saved.state_dict().values()))


@pytest.mark.parametrize('name, classes', [('harmformer_digits', 'num_classes'), ('vit', 'num_classes'), ('harmformer_unet', 'out_channels'), ('unet', 'out_channels')])
def test_other_classes_keep_the_body_and_say_so(name, classes):
    with pytest.warns(UserWarning, match='but those of the head, which is new, for 3'): model = create_model(name, pretrained=True, **{classes: 3})
    old, head = load_model(own_weights(name)).state_dict(), model.default_cfg['classifier']
    new = model.state_dict()
    assert len(new[f'{head}.weight']) == 3
    assert all(torch.equal(new[k], v) for k, v in old.items() if not k.startswith(head + '.'))


@pytest.mark.parametrize('name', ['harmformer_digits', 'vit'])
def test_other_colours_answer_to_grey_as_before(name):
    x = torch.rand(2, 1, 32, 32)
    with torch.no_grad(): a, b = load_model(own_weights(name))(x), create_model(name, pretrained=True, in_channels=3).eval()(x.expand(-1, 3, -1, -1))
    assert torch.allclose(a, b, atol=1e-4)


def test_no_warning_without_a_reason():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        create_model('harmformer_digits', pretrained=True, num_classes=10, in_channels=1, engine='direct')


def test_wrong_names_list_the_right_ones():
    with pytest.raises(ValueError, match='there are harmformer_mnist'): create_model('harmformer_imagenet')
    with pytest.raises(ValueError, match='there are some for harmformer_mnist'): create_model('cnn', pretrained=True)
    with pytest.raises(FileNotFoundError, match='the package has cifar-rot-test'): create_model('harmformer_mnist', pretrained='imagenet')


def test_import_harmformer_is_enough_and_light():
    code = "import sys, harmformer; assert 'torch' not in sys.modules; print(harmformer.create_model('harmformer_digits').num_classes)"
    r = subprocess.run([sys.executable, '-W', 'ignore', '-c', code.replace('.num_classes', ".default_cfg['num_classes']")], capture_output=True, text=True)
    assert r.stdout.strip() == '10', r.stderr
    assert harmformer.Harmformer is type(harmformer.create_model('harmformer_digits', **TINY)) and 'create_model' in dir(harmformer)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"): harmformer.nothing


def test_help_shows_what_arguments_mean():
    text = pydoc.plain(pydoc.render_doc(harmformer.create_model))
    assert 'pretrained (= False): True' in text and 'Returns:' in text and 'in training mode, as in timm' in text
    assert 'rings (int = 3): learned radii' in pydoc.plain(pydoc.render_doc(harmformer.HConv2d))
    assert 'stats (str' in harmformer.HNormAct.__doc__                # whose __init__ is that of its base
    assert 'degrees: counter-clockwise' in harmformer.rotate_image.__doc__
    assert 'schedule (str' in __import__('harmformer.train', fromlist=['fit']).fit.__doc__


def test_learner_from_pictures_to_file_and_back(pictures, tmp_path):
    dls, new = benchmark_dls(str(pictures), bs=8), Image.open(pictures/'square'/'3.png')
    with pytest.warns(UserWarning, match='head'): learn = harmformer_learner(dls, 'harmformer_digits', pretrained=True)
    frozen = learn.model.stem.blocks[0].convs[0].weight.clone()
    with learn.no_bar(), learn.no_logging():
        learn.freeze(); learn.fit(1, 1e-2)
        assert torch.equal(frozen, learn.model.stem.blocks[0].convs[0].weight)
        learn.fine_tune(2, 1e-2)
        assert not torch.equal(frozen, learn.model.stem.blocks[0].convs[0].weight)
        learn.show_results()
        said = [learn.predict(o) for o in (pictures/'square'/'3.png', str(pictures/'square'/'3.png'), new)]
        learn.export(tmp_path/'learn.pkl')
    assert len({o[0] for o in said}) == 1 and said[0][0] in dls.vocab and said[0][2].sum().item() == pytest.approx(1, abs=1e-5)
    again = load_learner(tmp_path/'learn.pkl')
    with again.no_bar(): name, number, probs = again.predict(new)
    assert name == said[0][0] and torch.allclose(probs, said[0][2], atol=1e-5)


def test_hub_in_a_folder_offline(tmp_path, monkeypatch):
    pytest.importorskip('huggingface_hub')
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    from harmformer.hub import HubModel
    model, x = load_model('digits'), torch.rand(2, 1, 32, 32)
    HubModel(model).save_pretrained(tmp_path/'mine')
    again = HubModel.from_pretrained(tmp_path/'mine')
    with torch.no_grad(): assert torch.equal(again(x), model(x))
    assert again.model.provenance['benchmark'] == 'digits' and 'harmformer_digits' in (tmp_path/'mine'/'README.md').read_text()
    assert hasattr(again, 'push_to_hub')
    with pytest.warns(UserWarning, match='head'): assert HubModel.from_pretrained(tmp_path/'mine', num_classes=4)(x).shape == (2, 4)
    with open(tmp_path/'mine'/'model.safetensors', 'r+b') as f: f.seek(-1, 2); f.write(b'\x7f')
    with pytest.raises(ValueError, match='is damaged'): HubModel.from_pretrained(tmp_path/'mine')


def test_hub_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    monkeypatch.delitem(sys.modules, 'harmformer.hub', raising=False)
    with pytest.raises(ImportError, match='pip install'): __import__('harmformer.hub')
