from services.simulator.adapters import Adapters


def loaded(*names: str, capacity: int = 2) -> Adapters:
    adapters = Adapters(capacity, 10)
    for name in names:
        adapters.request(name, 0, ())
    adapters.finish_loads(10)
    return adapters


def test_the_adapter_that_was_used_longest_ago_makes_room() -> None:
    adapters = loaded("a", "b")
    adapters.use("a")
    adapters.leave("a")
    assert not adapters.request("c", 20, ())
    assert (adapters.loaded, adapters.evictions) == (("a",), 1)


def test_an_adapter_that_others_wait_for_keeps_its_place() -> None:
    adapters = loaded("a", capacity=1)
    assert not adapters.request("b", 20, {"a"})
    assert adapters.loaded == ("a",)
