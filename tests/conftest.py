"""Every test starts from DSPy's default settings and an empty cache of its own, and leaves no trace in either."""

from __future__ import annotations

import importlib
import os

# Before dspy is imported: litellm would otherwise fetch its price map over the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import copy
import signal
from collections.abc import Iterator

import dspy
import hypothesis
import pytest
from dspy.clients.base_lm import GLOBAL_HISTORY
from streamed_app import Streamed

# The package exports an object under the module's name, so a plain import would give that.
_settings_module = importlib.import_module("dspy.dsp.utils.settings")

hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")
# A shell starts what it puts in the background with SIGINT ignored, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _cache_directory_of_child_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep processes that a test starts out of the user's own DSPy cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPY_CACHEDIR", str(tmp_path_factory.mktemp("dspy_cache")))
        yield


@pytest.fixture(autouse=True)
def _fresh_dspy() -> Iterator[None]:
    """Give the test default settings that it may configure, and a memory cache; restore both afterwards."""
    configured = dict(_settings_module.main_thread_config)
    owners = (_settings_module.config_owner_thread_id, _settings_module.config_owner_async_task)
    overrides = _settings_module.thread_local_overrides.get()
    cache = vars(dspy).get("cache")

    _replace_settings(copy.deepcopy(dict(_settings_module.DEFAULT_CONFIG)), owners=(None, None))
    _settings_module.thread_local_overrides.set(type(overrides)())
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    GLOBAL_HISTORY.clear()

    yield

    _replace_settings(configured, owners=owners)
    _settings_module.thread_local_overrides.set(overrides)
    if cache is None:
        vars(dspy).pop("cache", None)  # dspy builds it again on first use
    else:
        vars(dspy)["cache"] = cache


def _replace_settings(config: dict, *, owners: tuple) -> None:
    """Set the global settings and who may configure them: dspy lets only the first thread and task do so."""
    _settings_module.main_thread_config.clear()
    _settings_module.main_thread_config.update(config)
    _settings_module.config_owner_thread_id, _settings_module.config_owner_async_task = owners


@pytest.fixture
def streamed() -> Streamed:
    """Return the receiving end of a streaming app."""
    return Streamed()
