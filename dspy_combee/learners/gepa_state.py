"""GEPA's checkpoint on disk: is there one, is it whole, what is in it.

GEPA writes one pickle before each iteration and reads it without a look at whose it is. The version before the last
one is kept beside it, so that a torn file costs one iteration and not the run.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy

from dspy_combee.errors import ResumeMismatchError, RunLogError
from dspy_combee.instructions import with_instructions

logger = logging.getLogger(__name__)

STATE_FILE = "gepa_state.bin"
PREVIOUS_FILE = "gepa_state.previous.bin"


def keep_previous(directory: str) -> None:
    """Copy the checkpoint that was just written, so that the next one cannot take it away."""
    path = Path(directory) / STATE_FILE
    if path.exists():
        temporary = path.with_name(PREVIOUS_FILE + ".tmp")
        shutil.copyfile(path, temporary)
        os.replace(temporary, path.with_name(PREVIOUS_FILE))


def read_checkpoint(directory: str) -> dict[str, Any] | None:
    """Return what GEPA's checkpoint holds, putting the version before it in place when it is torn.

    Only read directories that you trust: a checkpoint is a pickle.

    Returns:
        The attributes of GEPA's state by name; None when there is no checkpoint.

    Raises:
        RunLogError: there are checkpoints, and none can be read.
    """
    path, previous = Path(directory) / STATE_FILE, Path(directory) / PREVIOUS_FILE
    if not path.exists() and not previous.exists():
        return None
    contents = _load(path)
    if contents is not None:
        return contents
    contents = _load(previous)
    if contents is None:
        raise RunLogError(f"{path} must be a whole checkpoint, it cannot be read; delete {directory} to start anew")
    logger.warning("%s cannot be read: going on from the checkpoint before it", path)
    shutil.copyfile(previous, path)
    return contents


def check_checkpoint(
    checkpoint: Mapping[str, Any], seed_candidate: Mapping[str, str], val_size: int, directory: str
) -> None:
    """Refuse a checkpoint of another program, which GEPA would fail on with a bare `KeyError` or mix in silently.

    Raises:
        ResumeMismatchError: the predictors or their first instructions differ, or examples were validated that there
            are not; the message names them.
    """
    known = checkpoint["program_candidates"][0]
    changed = sorted(name for name in {*known, *seed_candidate} if known.get(name) != seed_candidate.get(name))
    if changed:
        raise ResumeMismatchError(
            f"{directory} must belong to the same run to be resumed, but the predictors {changed} are missing there, "
            "new, or had another instruction. Use another log_dir for a new run."
        )
    last = max(checkpoint["prog_candidate_val_subscores"][0], default=-1)
    if isinstance(last, int) and last >= val_size:
        raise ResumeMismatchError(
            f"{directory} must belong to the same run to be resumed, but it has scores of more than {val_size} "
            "validation examples. Use another log_dir for a new run."
        )


def load_candidates(log_dir: str | os.PathLike[str], program: dspy.Module) -> list[dspy.Module]:
    """Return all candidates of a run as programs, without a model; the student first.

    Args:
        log_dir: The run's directory. Only read directories that you trust: the checkpoint is a pickle.
        program: The program that was compiled; it is not changed.

    Raises:
        FileNotFoundError: there is no checkpoint in the directory.
        ResumeMismatchError: the checkpoint belongs to a program with other predictors.
    """
    directory = os.fspath(log_dir)
    checkpoint = read_checkpoint(directory)
    if checkpoint is None:
        raise FileNotFoundError(f"{directory} must hold a checkpoint of a run, there is none")
    names = {name for name, _ in program.named_predictors()}
    known = set(checkpoint["program_candidates"][0])
    if known != names:
        raise ResumeMismatchError(f"the program must have the predictors {sorted(known)}, it has {sorted(names)}")
    return [with_instructions(program, candidate) for candidate in checkpoint["program_candidates"]]


def _load(path: Path) -> dict[str, Any] | None:
    try:
        contents = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - a torn pickle raises nearly anything
        logger.debug("%s: %s", path, error)
        return None
    return contents if isinstance(contents, dict) and "program_candidates" in contents else None
