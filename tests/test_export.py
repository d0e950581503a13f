"""Files that run without the library: the same answers, standard operators only, small, and refused when damaged. Every preset: 18_export, #| slow."""
import re, subprocess, sys
from copy import deepcopy
import numpy as np, onnx, pytest, torch
from PIL import Image
from harmformer import cli, onnx_file
from harmformer.core import create_model, load_model, rel_error, rotate_image
from harmformer.export import OnnxModel, check_graph, export_onnx, export_program, load_program, to_inference

SMALL = dict(channels=(2, 4), kernel_size=7, rings=2, img_size=16, depth=1, heads=2, head_dim=2, dropout=0.)
UNET = dict(channels=(2, 2), kernel_size=7, rings=2, img_size=16, depth=1, heads=1, head_dim=4)


def images(model, n=8): return torch.rand(n, *model.default_cfg['input_size'], generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    model = load_model('digits')
    names = 'logits', 'fields', 'attention', 'orientation', 'phases'
    return model, export_onnx(model, tmp_path_factory.mktemp('export')/'digits.onnx', outputs=names)


@pytest.fixture(scope='module', params=[{}, dict(orders=(0, 1, 2), constant=True, parts=True)], ids=['paper', 'signs'])
def unet(request, tmp_path_factory):
    torch.manual_seed(0)
    model = create_model('harmformer_unet', **UNET, **request.param).eval()
    return model, export_onnx(model, tmp_path_factory.mktemp('export')/'unet.onnx')


@torch.no_grad()
def test_digits_answer_as_in_python(digits):
    (model, file), x = digits, images(digits[0], 64)
    want, got = model(x), OnnxModel(file)(x)
    assert rel_error(got, want) <= 1.3e-6 and torch.equal(got.argmax(1), want.argmax(1))
    assert rel_error(OnnxModel(file)(x.flip(0)), want) > .01                     # other images, other answers
    assert file.stat().st_size < 1.4e6


@torch.no_grad()
def test_extra_outputs_are_those_of_the_model(digits):
    (model, file), x = digits, images(digits[0], 3)
    found, maps = OnnxModel(file).answers(x), model.attention(x)
    assert rel_error(torch.complex(*found['fields']), model.stem(x)) < 1e-5
    assert rel_error(found['attention'], maps[0].mean(1)) < 1e-5
    turned = OnnxModel(file).answers(rotate_image(x, 90))
    for k in ('orientation', 'phases'):
        a, b = [torch.view_as_complex(o[k].contiguous()) for o in (found, turned)]
        assert rel_error(b, 1j*a) < 1e-3 < rel_error(b, a)
    assert rel_error(turned['logits'], found['logits']) < 1e-4


@torch.no_grad()
def test_unet_answers_as_in_python(unet):
    (model, file), x = unet, images(unet[0], 64)
    assert rel_error(OnnxModel(file)(x), model(x)) <= 5e-6
    assert OnnxModel(file)(x[:1]).shape == (1, 1, 16, 16)
    faint = .5 + .02*x                              # as dark parts of a photograph: their mean must not be rounded
    exact = deepcopy(model).double()(faint.double()).float()        # float32 in Python is itself 9e-6 away
    assert rel_error(OnnxModel(file)(faint), exact) <= 5e-6


def test_only_standard_operators(digits, unet):
    for _, file in (digits, unet):
        proto = onnx.load(file)
        check_graph(proto.graph)
        assert [o.version for o in proto.opset_import if o.domain in ('', 'ai.onnx')] == [18]
        proto.graph.node[0].op_type = 'DFT'
        with pytest.raises(ValueError, match='DFT'): check_graph(proto.graph)


@torch.no_grad()
@pytest.mark.parametrize('options', [dict(reflections=True, mixing='all', keep_phase=True, norm='layer', layer_norm='map'),
                                     dict(orders=(0, 1), norm='hnet', mixing='cross_values', rpe=None, mask='circle', upscale=2)], ids=['mirrors', 'hnet'])
def test_options(options, tmp_path):
    torch.manual_seed(0)
    model = create_model('harmformer_digits', **SMALL, **options).eval()
    x = images(model)
    assert rel_error(OnnxModel(export_onnx(model, tmp_path/'o.onnx'))(x), model(x)) < 5e-6


@torch.no_grad()
def test_any_size(tmp_path):
    torch.manual_seed(0)
    for name, args in (('harmformer_digits', SMALL), ('harmformer_unet', UNET)):
        model = create_model(name, **args).eval()
        file = export_onnx(model, tmp_path/'any.onnx', size='any')
        check_graph(onnx.load(file).graph)
        for h, w in ((16, 16), (8, 24), (32, 20)):
            x = torch.rand(3, model.in_channels, h, w)
            assert rel_error(OnnxModel(file)(x), model(x)) < 1e-5
    with pytest.raises(ValueError, match='PlainViT cannot be exported for any size'):
        export_onnx(create_model('vit'), tmp_path/'vit.onnx', size='any')


@torch.no_grad()
@pytest.mark.parametrize('name', ['cnn', 'vit', 'unet'])
def test_rivals(name, tmp_path):
    torch.manual_seed(0)
    model = create_model(name).eval()
    x = images(model, 3)
    assert rel_error(OnnxModel(export_onnx(model, tmp_path/'rival.onnx'))(x), model(x)) < 1e-5


@torch.no_grad()
def test_program(tmp_path):
    torch.manual_seed(0)
    model = create_model('harmformer_digits', **SMALL).eval()
    file = export_program(model, tmp_path/'small.pt2')
    program, plain = load_program(file), torch.export.load(file).module()
    assert len(program.graph.nodes) < .7*len(plain.graph.nodes)     # what does not depend on images is computed once
    for n in (1, 5): assert rel_error(program(images(model, n)), model(images(model, n))) < 1e-5
    (tmp_path/'bad.pt2').write_bytes(b'PK')
    with pytest.raises(ValueError, match='bad.pt2'): load_program(tmp_path/'bad.pt2')


def test_what_cannot_be_exported_is_said_first(tmp_path):
    model, file = create_model('harmformer_digits', **SMALL), tmp_path/'no.onnx'
    with pytest.raises(OSError, match='no folder'): export_onnx(model, tmp_path/'none'/'no.onnx')
    for why, args in {'multiples of 4': dict(size=18), 'not depth': dict(outputs=('logits', 'depth')), "or 'any'": dict(size='all')}.items():
        with pytest.raises(ValueError, match=why): export_onnx(model, file, **args)
    flat = create_model('harmformer_digits', **{**SMALL, 'depth': 0, 'orders': (0,)})
    for o in ('attention', 'orientation'):
        with pytest.raises(ValueError, match='no encoder|order 1'): export_onnx(flat, file, outputs=(o,))
    assert not file.exists()


def test_damaged_files_are_named(digits, tmp_path):
    whole = digits[1].read_bytes()
    for content in (b'', b'no graph', whole[:len(whole)//2]):
        (tmp_path/'broken.onnx').write_bytes(content)
        with pytest.raises(ValueError, match='broken.onnx'): OnnxModel(tmp_path/'broken.onnx')


def test_other_images_are_refused(digits):
    with pytest.raises(ValueError, match=r'digits.onnx takes images \(n, 1, 32, 32\), got \(1, 3, 32, 32\)'): OnnxModel(digits[1])(torch.zeros(1, 3, 32, 32))


def test_what_the_file_says(digits):
    said = OnnxModel(digits[1]).about
    assert said['vocab'] == list(map(str, range(10))) or said['vocab'] == list(range(10))
    assert len(said['mean']) == len(said['std']) == 1 and said['size'] == [1, 32, 32] and said['provenance']['benchmark'] == 'digits'
    assert 0 < said['he_error_90'] < 1e-4


def test_command(tmp_path, capsys):
    cli.harmformer_export('digits', out=str(tmp_path/'d.onnx'), check=True)
    said = capsys.readouterr().out
    found = {k: float(v) for k, v in re.findall(r'(\w+): ([\d.e+-]+)$', said, re.M)}
    assert found['error_model'] == found['error_file'] < .03 and found['difference'] < 1e-4 > found['he_90'] and found['he_45'] > 1e-3
    for why, args in {'onnx or pt2': dict(to='tf'), 'or any': dict(pixels='large'), 'no folder': dict(out=str(tmp_path/'no'/'x.onnx'))}.items():
        with pytest.raises(SystemExit, match=why): cli.harmformer_export('digits', **args)


def test_missing_extra_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_file, 'find_spec', lambda n: None)
    with pytest.raises(ImportError, match=r'onnx and onnxscript are not installed: .*harmformer\[export\]'):
        export_onnx(create_model('cnn'), tmp_path/'x.onnx')
    with pytest.raises(ImportError, match='onnxruntime is not'): OnnxModel(tmp_path/'x.onnx')


def test_predict_takes_the_file(digits, tmp_path, capsys):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 50, 4), dtype=np.uint8)).save(tmp_path/'a.png')
    Image.fromarray(rng.integers(0, 255, (32, 32), dtype=np.uint8)).save(tmp_path/'b.png')
    cli.harmformer_predict('digits', [str(tmp_path)])
    want = capsys.readouterr().out
    cli.harmformer_predict(str(digits[1]), [str(tmp_path)])
    said = capsys.readouterr().out
    assert said.endswith(want) and '1 of 2 pictures are cut' in said and 'transparent' in said


def test_no_model_code_is_imported(digits, unet, tmp_path):
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path/'a.png')
    for command in (f"harmformer_predict({str(digits[1])!r}, ['a.png'])", f"harmformer_segment(['a.png'], weights={str(unet[1])!r})"):
        code = f'import sys\nfrom harmformer.cli import *\n{command}\nprint(*[o for o in sys.modules if o.startswith(("harmformer.", "fastai"))], sep=";")'
        said = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        loaded = set(said.splitlines()[-1].split(';'))
        assert 'harmformer.onnx_file' in loaded
        assert not {'fastai', *[f'harmformer.{o}' for o in ('conv', 'attention', 'model', 'unet', 'core', 'data', 'train', 'export')]} & loaded


def test_segment_takes_the_file(unet, digits, tmp_path, capsys):
    picture = np.random.default_rng(0).integers(0, 255, (20, 37, 4), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path/'a.png')
    cli.harmformer_segment([str(tmp_path/'a.png')], out=str(tmp_path/'out'), weights=str(unet[1]))
    assert Image.open(tmp_path/'out/a_mask.png').size == (37, 20) and 'transparent' in capsys.readouterr().out
    with pytest.raises(SystemExit, match='does not segment'):
        cli.harmformer_segment([str(tmp_path/'a.png')], out=str(tmp_path/'out'), weights=str(digits[1]))
