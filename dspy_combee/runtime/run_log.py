"""The files of a run: a log that survives a kill, files that are never half written, and whose run they are.

What the records mean is decided by whoever writes them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspy_combee.errors import ResumeMismatchError, RunLogError
from dspy_combee.runtime.stable_json import stable_json

logger = logging.getLogger(__name__)

_FINGERPRINT_FILE = "fingerprint.json"


class RunLog:
    """An append-only file of JSON records, one a line, safe to append to from several threads of one process.

    A record is on the disk when `append` returns. A process that is killed in the middle of a write leaves a torn line
    at most, which reading skips.
    """

    def __init__(self, directory: str | os.PathLike[str], *, name: str = "run_log.jsonl") -> None:
        """Make the directory where it is missing; the file appears with the first record.

        Args:
            directory: Where the files of the run are.
            name: The name of this log in it.
        """
        self.path = Path(directory) / name
        self._lock = threading.Lock()
        self._ends_in_newline = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunLogError(f"the directory of a run must be writable, got {error}") from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until it is on the disk.

        Raises:
            TypeError: When the record is no mapping or holds what JSON cannot; nothing is written then.
        """
        if not isinstance(record, Mapping):
            raise TypeError(f"a record must be a mapping, got {type(record).__name__}")
        line = json.dumps(dict(record)).encode("ascii") + b"\n"
        with self._lock, open(self.path, "ab") as file:
            if not self._ends_in_newline and not _ends_in_newline(self.path):
                # A line that a killed process or a full disk tore must not swallow this one.
                line = b"\n" + line
            self._ends_in_newline = False
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self._ends_in_newline = True

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield every whole record, oldest first; nothing when there is no file."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record = _parse(line)
            if isinstance(record, dict):
                yield record
            else:
                logger.warning("%s: line %d is no whole record and is skipped: %.80r", self.path, number, line)


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file as a whole: whoever reads it sees the old text or the new one. The old one stays as `.previous`.

    Args:
        path: The file; its directory is made where it is missing.
        text: The new contents.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _replace(_previous(path), path.read_bytes())
    _replace(path, text.encode("utf-8"))
    _sync_directory(path.parent)


def read_with_fallback(path: str | os.PathLike[str]) -> Any:
    """Return what a JSON file holds, or what its `.previous` version does when the file is missing or broken.

    Raises:
        FileNotFoundError: When neither file exists.
        RunLogError: When there are files but none can be read as JSON.
    """
    path = Path(path)
    previous = _previous(path)
    failures: list[str] = []
    for candidate in (path, previous):
        try:
            contents = json.loads(candidate.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (ValueError, OSError) as error:
            failures.append(f"{candidate.name}: {error}")
            continue
        if candidate == previous:
            logger.warning(
                "%s cannot be read (%s): using the version before it", path, "; ".join(failures) or "missing"
            )
        return contents
    if failures:
        raise RunLogError(f"{path} must be a JSON file, got {'; '.join(failures)}")
    raise FileNotFoundError(f"neither {path} nor {previous.name} exists")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What makes a run this run: named parts, each with a digest of its contents."""

    digests: Mapping[str, str]

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> Fingerprint:
        """Digest named parts of any type (`stable_json`); the names are what a mismatch will be explained with."""
        return cls({name: _digest(part) for name, part in parts.items()})


def fingerprint_run(
    program: Any, *, trainset: Sequence[Any], valset: Sequence[Any] | None, config: Mapping[str, Any]
) -> Fingerprint:
    """Return the fingerprint of an optimizer's run.

    Args:
        program: The student as it was given; its predictors' names, signatures and instructions count.
        trainset: The training examples, in order.
        valset: The validation examples, in order, or None.
        config: The optimizer's settings that a resumed run must share. Leave out what may change: the budget, the
            number of threads, progress.
    """
    predictors = program.named_predictors()
    parts = {
        "predictor names": [name for name, _ in predictors],
        "signatures": [list(predictor.signature.fields) for _, predictor in predictors],
        "seed instructions": [predictor.signature.instructions for _, predictor in predictors],
        "trainset": list(trainset),
        "valset": None if valset is None else list(valset),
    }
    return Fingerprint.of({**parts, **{f"config {name}": value for name, value in config.items()}})


def difference(old: Fingerprint, new: Fingerprint) -> tuple[str, ...]:
    """Name the parts that changed, came or went; empty for the same run."""
    names = [*old.digests, *(name for name in new.digests if name not in old.digests)]
    return tuple(name for name in names if old.digests.get(name) != new.digests.get(name))


def check_fingerprint(directory: str | os.PathLike[str], fingerprint: Fingerprint) -> bool:
    """Mark a directory as this run's, or make sure that it is.

    Returns:
        Whether the directory belonged to this run already, so that there may be something to resume.

    Raises:
        ResumeMismatchError: When it belongs to another run; the message names what differs.
    """
    path = Path(directory) / _FINGERPRINT_FILE
    try:
        known = read_with_fallback(path)
    except FileNotFoundError:
        write_atomically(path, json.dumps(dict(fingerprint.digests), indent=1))
        return False
    if not isinstance(known, dict):
        raise RunLogError(f"{path} must hold a JSON object, got {type(known).__name__}")
    changed = difference(Fingerprint(known), fingerprint)
    if changed:
        raise ResumeMismatchError(
            f"{directory} must belong to the same run to be resumed, but these changed: {', '.join(changed)}. Use "
            "another log_dir for a new run, or restore what changed."
        )
    return True


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _ends_in_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _previous(path: Path) -> Path:
    return path.with_name(path.name + ".previous")


def _replace(path: Path, contents: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return  # elsewhere a directory cannot be opened
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(part: Any) -> str:
    return hashlib.sha256(stable_json(part).encode("ascii")).hexdigest()
