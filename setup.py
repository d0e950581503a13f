"All metadata stands in settings.ini; this file hands it to setuptools."
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup

here = Path(__file__).parent
ini = ConfigParser(delimiters=['='])
ini.read(here/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
words = lambda key: cfg.get(key, '').split()

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], url=cfg['git_url'],
    long_description=(here/'README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    author=cfg['author'], author_email=cfg['author_email'], keywords=cfg['keywords'],
    license='Apache-2.0', license_files=['LICENSE'],
    classifiers=[f"Intended Audience :: {cfg['audience']}", f"Natural Language :: {cfg['language']}",
                 'Development Status :: 3 - Alpha', 'Programming Language :: Python :: 3'],
    packages=['harmformer'], package_data={'harmformer': ['weights/*.safetensors']},
    python_requires='>=' + cfg['min_python'], install_requires=words('requirements'),
    extras_require={'dev': words('dev_requirements'), 'hub': words('hub_requirements'),
                    'export': words('export_requirements'), 'tiff': words('tiff_requirements')}, zip_safe=False,
    entry_points={'console_scripts': words('console_scripts'), 'nbdev': [f"{cfg['lib_name']}={cfg['lib_path']}._modidx:d"]},
)
