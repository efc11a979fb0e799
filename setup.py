"""List the packages to install; `pyproject.toml` says everything else.

Four folders install as one package. Subpackages are found in each of them, so nothing has to be listed, and nothing is
missed where the links in `prunerecover/` became text files (Windows, zip downloads).
"""

from setuptools import find_packages, setup

FOLDERS = {
    "prunerecover": "prunerecover",
    "prunerecover.callbacks": "callbacks",
    "prunerecover.configs": "configs",
    "prunerecover.recipes": "recipes",
}
FOUND = {f"{name}.{inner}" for name, folder in FOLDERS.items() for inner in find_packages(folder)}

setup(packages=sorted({*FOLDERS, *FOUND}), package_dir=FOLDERS)
