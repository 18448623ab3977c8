"""The tools' world: copies that the tools act on, and objects that stand for the user's own."""

import functools

import pytest

from dspy_evocue import deepcopy_environment, reexecuting_environment
from dspy_evocue.environments import Environment, ForkingEnvironment, current_world
from dspy_evocue.errors import EnvironmentFault


class Drawer:
    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)
        return len(self.items)


class Desk:
    def __init__(self):
        self.drawer = Drawer()
        self.notes = []

    def note(self, text):
        self.notes.append(text)
        return len(self.notes)

    def __call__(self, text):
        return self.note(text)


@pytest.fixture
def desk():
    return Desk()


@pytest.mark.parametrize("make", [lambda desk: deepcopy_environment(desk), lambda desk: reexecuting_environment(Desk)])
def test_tools_act_on_the_world_of_their_run_and_never_on_the_users_own(desk, make):
    environment = make(desk)
    environment.reset(None)
    assert environment.bind(desk.note)("a") == 1
    assert environment.bind(desk.drawer.put)("b") == 1
    assert environment.bind(functools.partial(desk.note, "c"))() == 2
    assert environment.bind(desk)("d") == 3
    assert (desk.notes, desk.drawer.items) == ([], [])
    assert environment.counterpart(desk).notes == ["a", "c", "d"]


def test_a_function_that_has_nothing_to_do_with_the_world_stays_as_it_is(desk):
    other = Desk()
    environment = deepcopy_environment(desk)
    assert environment.bind(len) is len
    assert environment.bind(other.note).__self__ is other


def test_a_snapshot_is_restored_any_number_of_times_and_in_a_fork(desk):
    environment = deepcopy_environment(desk)
    environment.reset(None)
    environment.bind(desk.note)("before")
    token = environment.snapshot()
    fork = environment.fork()
    fork.reset(None)
    for each in (environment, environment, fork):
        each.bind(desk.note)("after")
        each.restore(token)
        assert each.counterpart(desk).notes == ["before"]


def test_forks_do_not_share_a_world(desk):
    environment = deepcopy_environment(desk)
    forks = [environment.fork() for _ in range(2)]
    forks[0].bind(desk.note)("a")
    assert forks[1].counterpart(desk).notes == []


def test_the_scene_is_set_for_each_run_on_a_pristine_copy(desk):
    environment = deepcopy_environment(desk, reset=lambda copied, example: copied.note(example))
    for example in ("one", "two"):
        environment.reset(example)
        assert environment.counterpart(desk).notes == [example]


def test_the_factory_gets_the_example_where_it_takes_one(desk):
    def make(example):
        made = Desk()
        made.note(example)
        return made

    environment = reexecuting_environment(make)
    environment.reset("scene")
    assert environment.counterpart(desk).notes == ["scene"]


def test_both_helpers_are_environments_that_can_fork(desk):
    for environment in (deepcopy_environment(desk), reexecuting_environment(Desk)):
        assert isinstance(environment, Environment)
        assert isinstance(environment, ForkingEnvironment)


def test_wrong_use_is_refused(desk):
    with pytest.raises(ValueError, match="at least one object"):
        deepcopy_environment()
    with pytest.raises(TypeError, match="must be callable"):
        reexecuting_environment(desk.notes)
    with pytest.raises(EnvironmentFault, match="what snapshot returned"):
        deepcopy_environment(desk).restore("token")
    with pytest.raises(EnvironmentFault, match="no snapshots"):
        reexecuting_environment(Desk).restore(None)


def test_outside_of_a_run_an_object_stands_for_itself(desk):
    assert current_world(desk) is desk
