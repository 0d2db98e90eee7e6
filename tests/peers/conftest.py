"""Fixtures of several files."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def path():
    """The GGUF file of the real model."""
    got = subprocess.run(["bash", ROOT / "examples" / "get_model.sh"], stdout=subprocess.PIPE, text=True)
    if got.returncode != 0:
        pytest.skip("the model cannot be fetched")
    return pathlib.Path(got.stdout.strip())
